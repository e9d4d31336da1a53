"""Summaries before the reduce: each shard is compressed first, then one call reads all summaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from combee_dspy.aggregators._joining import joined, traced
from combee_dspy.aggregators._plan import plan_scan
from combee_dspy.aggregators._prompts import LearnFromSummaries, SummarizeExamples
from combee_dspy.aggregators._reading import (
    LEARN,
    LESSON_TOKENS,
    Asking,
    Held,
    Question,
    below,
    check_call_tokens,
    check_least,
    read_texts,
    token_budget,
)
from combee_dspy.aggregators._sharded import Sharded
from combee_dspy.aggregators._stream import Course
from combee_dspy.aggregators._telling import ScanTeller
from combee_dspy.records import NodeOutput, Reflection
from combee_dspy.reflections import estimate_tokens
from combee_dspy.strategies import StrategyContext

__all__ = ["Summarize"]

_SUMMARIZE = Question(SummarizeExamples, "most_points", "key_points")
_WORDS_PER_TOKEN = 0.75
# Below this a summary holds too few points to be one.
_LEAST_SUMMARY_TOKENS = 5 * LESSON_TOKENS


class Summarize(Sharded):
    """Compresses each shard by one call, all at once, then lets one call write the lessons from all summaries.

    A shard holds few enough reflections that its reader sees each of them, and
    no more than fit its call. Summaries share the room of the last call
    equally: each is told how many words it may have, and points beyond its
    share are cut from the end, with an event. Where there would be so many
    shards that a share is less than five points, shards grow instead. A single
    shard needs no summary: one call reads it and writes the lessons.

    A summary that fails is missing from the last call. If the last call fails
    or returns nothing, the points themselves are the lessons.

    Args:
        shard_items: The most reflections one summary is made of. 10 is the smallest of
            the prompt sizes (10, 20 and 30 documents) of Liu et al. 2023 (arXiv 2307.03172),
            who find that what stands in the middle is used the less the more there is.
        max_call_tokens: Estimated tokens one call may take, the prompt included.
        max_points: The most points a summary may have: two for each reflection of a full shard.
    """

    name: ClassVar[str] = "summarize"

    def __init__(self, shard_items: int = 10, max_call_tokens: int = 24_000, max_points: int = 20) -> None:
        self.shard_items = shard_items
        self.max_call_tokens = max_call_tokens
        self.max_points = max_points

    def validate(self) -> None:
        """Check the parameters, before anything is spent.

        Raises:
            ArgumentValueError: A parameter is out of its range.
        """
        check_least(self, {"shard_items": 2, "max_points": 1})
        check_call_tokens(self.max_call_tokens)

    def _course(self, size: int, room: int, context: StrategyContext, tokens: int | None) -> None:
        # How long a summary may be depends on how many there are, which long reflections decide.
        return None

    def _course_over(self, items: Sequence[Reflection], room: int, context: StrategyContext) -> Course:
        most_shards = max(room // _LEAST_SUMMARY_TOKENS, 1)
        size = max(self.shard_items, -(-len(items) // most_shards))
        plan = plan_scan(len(items), 1, size, context.stream("shuffle"), budget=token_budget(items, room))
        shards = [node.sources for node in plan.levels[0]]
        if len(shards) == 1:
            return Course(shards, (1,), Asking(LEARN, self.max_points), lambda told, read: [])
        share = min(room // len(shards), self.max_points * 2 * LESSON_TOKENS)
        words = {"most_words": max(int(share * _WORDS_PER_TOKEN), 1)}

        def merge(told: ScanTeller, read: list[Held]) -> list[list[Held]]:
            return [[self._learned([_cut(one, share, told) for one in read], told)]]

        return Course(shards, (len(shards), 1), Asking(_SUMMARIZE, self.max_points, words), merge)

    def _learned(self, read: Sequence[Held], told: ScanTeller) -> Held:
        context = told.context
        lists = [held.lessons for held in read]
        sources = below(read)
        lessons, failed = joined(lists), None
        if lessons:
            given = {
                "current_instruction": context.text,
                "summaries": [[point.text for point in points] for points in lists if points],
            }
            answer = context.predict(LearnFromSummaries, [given], role="proposer")[0]
            texts, failed = read_texts(told, (2, 0), answer, "lessons", sum(map(len, lists)))
            if texts:
                lessons = traced(texts, lists, sources)
            else:
                failed = failed or "EmptyAnswer: the summaries gave no lessons"
        root = Held(NodeOutput(2, 0, sources, tuple(lesson.text for lesson in lessons), failed), lessons)
        told.level_done((root.output,))
        return root


def _cut(held: Held, share: int, told: ScanTeller) -> Held:
    """Return what a summary may take of the last call: its first points, at least one."""
    kept, left = 0, share
    for point in held.lessons:
        left -= estimate_tokens(point.text)
        if left < 0 and kept:
            break
        kept += 1
    if kept < len(held.lessons):
        lost = len(held.lessons) - kept
        told.note(1, held.output.node, f"AnswerCut: {lost} points pass the summary's share of {share:,} tokens")
    return replace(held, lessons=held.lessons[:kept])
