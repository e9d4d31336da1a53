"""The tree above the shards of a scan: one call of ``predict`` per level, joins by position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from combee_dspy.aggregators._joining import joined, traced
from combee_dspy.aggregators._plan import PlanNode, merge_levels
from combee_dspy.aggregators._prompts import MergeLessons
from combee_dspy.aggregators._reading import Held, below, read_texts
from combee_dspy.aggregators._telling import ScanTeller
from combee_dspy.records import NodeOutput
from combee_dspy.reflections import estimate_record_tokens

__all__ = ["merged_tree"]


def merged_tree(told: ScanTeller, read: list[Held], fan_in: int, room: int) -> list[list[Held]]:
    """Merge what shards returned, level by level, up to one node.

    A merge that fails, returns nothing or would pass ``room`` is replaced by
    code: the node holds all its children's lessons, so nothing found is lost.
    So is the last one where whoever gets the lessons joins them.

    Args:
        told: Emits the nodes of each level; its context is the way to the LM.
        read: What level 1 holds, at least one node.
        fan_in: The most lists that one call may merge, at least 2.
        room: Estimated tokens that the lists of one merge may take together.

    Returns:
        What every node holds, by level from 2; the last level holds the root alone.
        Nothing where level 1 is one node.
    """
    levels = [read]
    for level, nodes in enumerate(merge_levels(len(read), fan_in), start=2):
        levels.append(_merge_level(told, level, nodes, levels[-1], room))
    return levels[1:]


def _merge_level(
    told: ScanTeller, level: int, nodes: Sequence[PlanNode], lower: Sequence[Held], room: int
) -> list[Held]:
    context = told.context
    left = context.joined_later and len(nodes) == 1
    children = [[lower[position].lessons for position in node.sources] for node in nodes]
    sources = [below(lower[position] for position in node.sources) for node in nodes]
    called = [
        position
        for position, lists in enumerate(children)
        if not left and _needs_call(told, (level, position), [[x.text for x in lessons] for lessons in lists], room)
    ]
    inputs: list[dict[str, Any]] = [
        {
            "current_instruction": context.text,
            "lesson_lists": [[lesson.text for lesson in lessons] for lessons in children[position] if lessons],
        }
        for position in called
    ]
    answers = dict(zip(called, context.predict(MergeLessons, inputs, role="proposer") if inputs else (), strict=True))
    held: list[Held] = []
    for node, lists in enumerate(children):
        lessons, failed = joined(lists), None
        if node in answers:
            most = sum(len(found) for found in lists)
            texts, failed = read_texts(told, (level, node), answers[node], "lessons", most)
            if not texts:
                failed = failed or "EmptyAnswer: the merge returned no lessons"
            else:
                lessons = traced(texts, lists, sources[node])
        output = NodeOutput(level, node, sources[node], tuple(lesson.text for lesson in lessons), failed)
        held.append(Held(output, lessons))
    told.level_done(one.output for one in held)
    return held


def _needs_call(told: ScanTeller, place: tuple[int, int], lists: Sequence[Sequence[str]], room: int) -> bool:
    """Whether lists are worth a call that merges them: at least two of them hold something, and all of them fit.

    Args:
        told: Hears of lists that do not fit.
        place: Level and node.
        lists: The texts of each child.
        room: Estimated tokens that they may take together.
    """
    found = [texts for texts in lists if texts]
    if len(found) < 2:
        return False
    tokens = estimate_record_tokens(found)
    if tokens <= room:
        return True
    told.note(*place, f"AnswerCut: lists of {tokens:,} tokens pass {room:,}: joined by code, no merge was asked for")
    return False
