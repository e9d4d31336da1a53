"""Shards return deltas and code joins them: a reduce that costs no call and loses nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, get_args

from combee_dspy.aggregators._joining import joined_near, traced
from combee_dspy.aggregators._plan import plan_scan
from combee_dspy.aggregators._prompts import AddLessons, ShortenLessons
from combee_dspy.aggregators._reading import (
    Asking,
    Held,
    Question,
    below,
    check_call_tokens,
    check_least,
    read_texts,
    token_budget,
)
from combee_dspy.aggregators._sharded import Dealt
from combee_dspy.aggregators._stream import Course
from combee_dspy.aggregators._telling import ScanTeller
from combee_dspy.aggregators._topics import topic_groups
from combee_dspy.aggregators._vectors import reflection_vectors, text_vectors
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import Lesson, NodeOutput, Reflection
from combee_dspy.reflections import estimate_tokens
from combee_dspy.shuffle import Placement
from combee_dspy.strategies import StrategyContext

__all__ = ["Sharding", "Union"]

Sharding = Literal["shuffle", "topic"]
SHARDINGS: tuple[str, ...] = get_args(Sharding)

_ADD = Question(AddLessons, "most_lessons", "lessons")
# 0.75 words a token is the common rule for English; the rest is room for an LM that counts roughly.
_WORDS_PER_TOKEN = 0.65


class Union(Dealt):
    """Reads shards of reflections in parallel; each returns lines to add, and code joins the lines.

    The shards are those of :class:`combee_dspy.aggregators.ParallelScan`. Their
    lists are joined in node order; near-duplicates become one lesson with the
    sources of all its wordings and the longest of them. No call merges, so no
    merge can lose a lesson. Only a joined list that passes ``max_tokens`` is
    given to an LM to shorten; an answer that fails, is empty or still does not
    fit is dropped with an event, and everything is kept: what the text may
    take is the operator's to enforce.

    Its nodes are the shards at level 1 and the joined list at level 2; where it
    was shortened, the short list follows at level 3 (in parts, joined at level
    4, where it takes several calls).

    Args:
        copies: Copies of each reflection, p; 2 is the paper's default (§3.2).
        placement: ``"distinct"`` keeps copies in different shards; ``"plain"`` reproduces the paper.
        fan_in: The most reflections one call may take. 16 keeps the paper's ⌊√n⌋ shards up to 56
            reflections at two copies; larger batches get more shards rather than longer ones. In the
            sweep on the simulated service (see the results), which takes in about 12 records a call, 16
            keep 0.94 of the lessons of a batch of 240 and 32 keep 0.78, for a fifth fewer tokens. Beyond
            some 500 reflections on 64 slots 16 are slower, 1.8 times at 10,000.
        max_call_tokens: Estimated tokens one call may take, the prompt included.
        max_lessons: The most lines a shard may return: two for each reflection of a full shard.
        window: How many shards a copy may travel, or ``None`` for no bound; for shuffled shards. 4: from
            eight shards on (57 reflections) they are dealt in blocks of four to seven, so that an early
            shard need not wait for the last rollout. ``combee_dspy.bench.placement`` shows, with the
            paper's number of shards, that copies stay apart as without a bound.
        max_tokens: Estimated tokens of the joined list from which an LM shortens it. 8,000, about
            two hundred lessons, is a third of a call: below that a reader is not crowded by it.
        similarity: Jaccard similarity of word pairs from which two lessons count
            as one, in (0, 1]. 0.8 lets one word in about seventeen differ.
        sharding: ``"shuffle"``, or ``"topic"``: reflections that are alike share a
            shard, so one call sees all that is known about a mistake. Copies are
            then divided by different cuts, each copy into shards of its own.
    """

    name: ClassVar[str] = "union"

    def __init__(  # noqa: PLR0913 - flat names are what a run's file holds; each has a default
        self,
        copies: int = 2,
        placement: Placement = "distinct",
        fan_in: int = 16,
        max_call_tokens: int = 24_000,
        max_lessons: int = 32,
        window: int | None = 4,
        max_tokens: int = 8_000,
        similarity: float = 0.8,
        sharding: Sharding = "shuffle",
    ) -> None:
        self.copies = copies
        self.placement: Placement = placement
        self.fan_in = fan_in
        self.max_call_tokens = max_call_tokens
        self.max_lessons = max_lessons
        self.window = window
        self.max_tokens = max_tokens
        self.similarity = similarity
        self.sharding: Sharding = sharding

    def validate(self) -> None:
        """Check the parameters, before anything is spent.

        Raises:
            ArgumentValueError: A parameter is out of its range.
        """
        check_least(self, {"max_lessons": 1, "max_tokens": 1})
        self._check_deal()
        if self.sharding not in SHARDINGS:
            raise ArgumentValueError("sharding", self.sharding, "is unknown", f"Give {' or '.join(SHARDINGS)}.")
        if not 0 < self.similarity <= 1:
            raise ArgumentValueError("similarity", self.similarity, "is not in (0, 1]", "1 joins equal lessons only.")
        check_call_tokens(self.max_call_tokens)

    def _course(self, size: int, room: int, context: StrategyContext, tokens: int | None) -> Course | None:
        if self.sharding == "topic":
            return None
        shards = self._shards(size, room, context, tokens)
        return self._over(shards, room)

    def _course_over(self, items: Sequence[Reflection], room: int, context: StrategyContext) -> Course:
        budget = token_budget(items, room)
        plan = plan_scan(len(items), self.copies, self.fan_in, context.stream("shuffle"), self.placement, budget=budget)

        def fits(members: Sequence[int]) -> bool:
            return len(members) <= self.fan_in and sum(budget.tokens[member] for member in members) <= room

        vectors, each = reflection_vectors(items), -(-len(plan.levels[0]) // plan.copies)
        dealt = (topic_groups(vectors, each, context.stream("topic", copy), fits) for copy in range(plan.copies))
        return self._over([group for groups in dealt for group in groups], room)

    def _over(self, shards: Sequence[tuple[int, ...]], room: int) -> Course:
        def merge(told: ScanTeller, read: list[Held]) -> list[list[Held]]:
            return self._merged(told, read, room)

        return Course(shards, (len(shards), 0), Asking(_ADD, self.max_lessons), merge)

    def _merged(self, told: ScanTeller, read: list[Held], room: int) -> list[list[Held]]:
        lessons = joined_near((held.lessons for held in read), self.similarity)
        levels = [[_node(2, 0, lessons, below(read))]]
        told.level_done(held.output for held in levels[-1])
        if _size(lessons) > self.max_tokens:
            levels += self._shortened(lessons, room, told, below(read))
        return levels

    def _shortened(
        self, lessons: tuple[Lesson, ...], room: int, told: ScanTeller, sources: tuple[int, ...]
    ) -> list[list[Held]]:
        """Return the levels that shorten a list: one node, or parts of similar lessons and their join."""
        parts = _parts(lessons, room, told.context)
        total = _size(lessons)
        shares = [max(self.max_tokens * _size(part) // total, 1) for part in parts]
        inputs: list[dict[str, Any]] = [
            {
                "current_instruction": told.context.text,
                "long_lessons": [lesson.text for lesson in part],
                "most_words": max(int(share * _WORDS_PER_TOKEN), 1),
            }
            for part, share in zip(parts, shares, strict=True)
        ]
        answers = told.context.predict(ShortenLessons, inputs, role="proposer")
        level: list[Held] = []
        for node, (part, share, answer) in enumerate(zip(parts, shares, answers, strict=True)):
            texts, failed = read_texts(told, (3, node), answer, "lessons", len(part))
            within = _united(part) if len(parts) > 1 else sources
            short = joined_near([traced(texts, [part], within)], self.similarity)
            failed = failed or _misfit(short, share)
            if failed:
                told.note(3, node, f"{failed}: {len(part)} lessons stay as they are")
            level.append(_node(3, node, part if failed else short, within, failed))
        told.level_done(held.output for held in level)
        if len(level) == 1:
            return [level]
        root = _node(4, 0, joined_near((held.lessons for held in level), self.similarity), sources)
        told.level_done((root.output,))
        return [level, [root]]


def _parts(lessons: tuple[Lesson, ...], room: int, context: StrategyContext) -> list[tuple[Lesson, ...]]:
    """Return lists that each fit a call: all of them, or groups of similar ones."""
    if _size(lessons) <= room:
        return [lessons]
    vectors = text_vectors([lesson.text for lesson in lessons])

    def fits(members: Sequence[int]) -> bool:
        return _size([lessons[member] for member in members]) <= room

    groups = topic_groups(vectors, -(-_size(lessons) // room), context.stream("shorten"), fits)
    # In the order of the lessons that they begin with, so that a join keeps nearly the order that was.
    return [tuple(lessons[member] for member in group) for group in sorted(groups)]


def _misfit(lessons: Sequence[Lesson], share: int) -> str | None:
    if not lessons:
        return "EmptyAnswer: the shortened list holds no lessons"
    size = _size(lessons)
    return f"OverBudget: the shortened list takes {size:,} tokens of {share:,}" if size > share else None


def _node(
    level: int, node: int, lessons: tuple[Lesson, ...], sources: tuple[int, ...], failed: str | None = None
) -> Held:
    return Held(NodeOutput(level, node, sources, tuple(lesson.text for lesson in lessons), failed), lessons)


def _united(lessons: Sequence[Lesson]) -> tuple[int, ...]:
    return tuple(sorted({source for lesson in lessons for source in lesson.sources}))


def _size(lessons: Sequence[Lesson]) -> int:
    return sum(estimate_tokens(lesson.text) for lesson in lessons)
