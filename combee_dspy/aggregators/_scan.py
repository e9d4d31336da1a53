"""Carrying out the plan of a scan: one call of ``predict`` per level, joins by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from combee_dspy.aggregators._joining import joined, traced
from combee_dspy.aggregators._plan import PlanNode, ScanPlan
from combee_dspy.aggregators._prompts import MergeLessons
from combee_dspy.aggregators._reading import LEARN, Held, read_level, read_texts
from combee_dspy.aggregators._telling import ScanTeller
from combee_dspy.records import NodeOutput, Reflection
from combee_dspy.reflections import estimate_record_tokens

__all__ = ["run_scan"]


@dataclass(frozen=True, slots=True)
class _Scan:
    plan: ScanPlan
    reflections: Sequence[Reflection]
    told: ScanTeller
    room: int

    def sources(self, level: int, node: int) -> tuple[int, ...]:
        return tuple(sorted({self.reflections[position].index for position in self.plan.below(level, node)}))


def run_scan(
    plan: ScanPlan, reflections: Sequence[Reflection], told: ScanTeller, *, room: int, most: int
) -> list[list[Held]]:
    """Carry out a plan.

    A level-1 call that fails loses its shard's lessons there and nowhere else.
    A merge that fails, returns nothing or would pass ``room`` is replaced by
    code: the node holds all its children's lessons, so nothing found is lost.

    Args:
        plan: A plan over these reflections, with at least one level.
        reflections: In the order of the plan's positions.
        told: Emits the nodes of each level; its context is the way to the LM.
        room: Estimated tokens that the lists of one merge may take together.
        most: The most lessons a level-1 call may return.

    Returns:
        What every node holds, by level; the last level holds the root alone.
    """
    scan = _Scan(plan, reflections, told, room)
    shards = [[reflections[position] for position in node.sources] for node in plan.levels[0]]
    levels = [read_level(told, shards, LEARN, most)]
    for level, nodes in enumerate(plan.levels[1:], start=2):
        levels.append(_merge_level(scan, level, nodes, levels[-1]))
    return levels


def _merge_level(scan: _Scan, level: int, nodes: Sequence[PlanNode], below: Sequence[Held]) -> list[Held]:
    context = scan.told.context
    children = [[below[position].lessons for position in node.sources] for node in nodes]
    called = [
        position
        for position, lists in enumerate(children)
        if _needs_call(scan.told, (level, position), [[x.text for x in lessons] for lessons in lists], scan.room)
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
            texts, failed = read_texts(scan.told, (level, node), answers[node], "lessons", most)
            if not texts:
                failed = failed or "EmptyAnswer: the merge returned no lessons"
            else:
                lessons = traced(texts, lists, scan.sources(level, node))
        output = NodeOutput(level, node, scan.sources(level, node), tuple(lesson.text for lesson in lessons), failed)
        held.append(Held(output, lessons))
    scan.told.level_done(one.output for one in held)
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
