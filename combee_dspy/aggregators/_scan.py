"""Carrying out the plan of a scan: one call of ``predict`` per level, joins by position."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from combee_dspy.aggregators._parse import parse_lessons
from combee_dspy.aggregators._plan import PlanNode, ScanPlan
from combee_dspy.aggregators._prompts import LearnFromExamples, MergeLessons
from combee_dspy.events import ErrorRaised
from combee_dspy.records import FailedCall, Lesson, NodeOutput, Reflection
from combee_dspy.reflections import estimate_record_tokens, normalised, render_records
from combee_dspy.strategies import StrategyContext

__all__ = ["Held", "run_scan"]


@dataclass(frozen=True, slots=True)
class Held:
    """What a node holds once its level is done.

    Attributes:
        output: The node's output, for the log.
        lessons: Its lessons with their sources.
    """

    output: NodeOutput
    lessons: tuple[Lesson, ...]


@dataclass(frozen=True, slots=True)
class _Scan:
    plan: ScanPlan
    reflections: Sequence[Reflection]
    context: StrategyContext
    room: int
    most: int

    def sources(self, level: int, node: int) -> tuple[int, ...]:
        return tuple(sorted({self.reflections[position].index for position in self.plan.below(level, node)}))

    def note(self, level: int, node: int, notes: Iterable[str]) -> None:
        for text in notes:
            self.context.emit(
                ErrorRaised(
                    iteration=self.context.iteration,
                    where=f"scan of {self.context.component}, level {level}, node {node}",
                    error=f"AnswerCut: {text}",
                    fatal=False,
                )
            )


def run_scan(
    plan: ScanPlan, reflections: Sequence[Reflection], context: StrategyContext, *, room: int, most: int
) -> list[list[Held]]:
    """Carry out a plan.

    A level-1 call that fails loses its shard's lessons there and nowhere else.
    A merge that fails, returns nothing or would pass ``room`` is replaced by
    code: the node holds all its children's lessons, so nothing found is lost.

    Args:
        plan: A plan over these reflections, with at least one level.
        reflections: In the order of the plan's positions.
        context: The way to the LM.
        room: Estimated tokens that the lists of one merge may take together.
        most: The most lessons a level-1 call may return.

    Returns:
        What every node holds, by level; the last level holds the root alone.
    """
    scan = _Scan(plan, reflections, context, room, most)
    levels = [_read_level(scan)]
    for level, nodes in enumerate(plan.levels[1:], start=2):
        levels.append(_merge_level(scan, level, nodes, levels[-1]))
    return levels


def _read_level(scan: _Scan) -> list[Held]:
    inputs: list[dict[str, Any]] = [
        {
            "current_instruction": scan.context.text,
            "examples_with_feedback": render_records(scan.reflections[position] for position in node.sources),
            "most_lessons": scan.most,
        }
        for node in scan.plan.levels[0]
    ]
    answers = scan.context.predict(LearnFromExamples, inputs, role="proposer")
    held: list[Held] = []
    for node, answer in enumerate(answers):
        sources = scan.sources(1, node)
        texts, failed = _lessons_of(scan, 1, node, answer, scan.most)
        lessons = tuple(Lesson(text, sources) for text in texts)
        held.append(Held(NodeOutput(1, node, sources, tuple(texts), failed), lessons))
    return held


def _merge_level(scan: _Scan, level: int, nodes: Sequence[PlanNode], below: Sequence[Held]) -> list[Held]:
    children = [[below[position].lessons for position in node.sources] for node in nodes]
    called = [position for position, lists in enumerate(children) if _needs_call(scan, level, position, lists)]
    inputs: list[dict[str, Any]] = [
        {
            "current_instruction": scan.context.text,
            "lesson_lists": [[lesson.text for lesson in lessons] for lessons in children[position] if lessons],
        }
        for position in called
    ]
    answers = dict(
        zip(called, scan.context.predict(MergeLessons, inputs, role="proposer") if inputs else (), strict=True)
    )
    held: list[Held] = []
    for node, lists in enumerate(children):
        lessons, failed = _joined(lists), None
        if node in answers:
            texts, failed = _lessons_of(scan, level, node, answers[node], sum(len(found) for found in lists))
            if not texts:
                failed = failed or "EmptyAnswer: the merge returned no lessons"
            else:
                lessons = _traced(texts, lists, scan.sources(level, node))
        output = NodeOutput(level, node, scan.sources(level, node), tuple(lesson.text for lesson in lessons), failed)
        held.append(Held(output, lessons))
    return held


def _needs_call(scan: _Scan, level: int, node: int, lists: Sequence[Sequence[Lesson]]) -> bool:
    found = [[lesson.text for lesson in lessons] for lessons in lists if lessons]
    if len(found) < 2:
        return False
    tokens = estimate_record_tokens(found)
    if tokens > scan.room:
        scan.note(
            level, node, [f"lists of {tokens:,} tokens pass {scan.room:,}: joined by code, no merge was asked for"]
        )
        return False
    return True


def _lessons_of(scan: _Scan, level: int, node: int, answer: Any, most: int) -> tuple[list[str], str | None]:
    if isinstance(answer, FailedCall):
        return [], answer.error
    value = getattr(answer, "lessons", None)
    if value is None:
        return [], "EmptyAnswer: the answer has no lessons field"
    texts, notes = parse_lessons(value, most)
    scan.note(level, node, notes)
    return texts, None


def _joined(lists: Sequence[Sequence[Lesson]]) -> tuple[Lesson, ...]:
    """Return all lessons in order; one that several children found has the sources of all of them."""
    joined: dict[str, Lesson] = {}
    for lesson in (lesson for lessons in lists for lesson in lessons):
        key = normalised(lesson.text)
        known = joined.get(key)
        joined[key] = Lesson(known.text, _union(known.sources, lesson.sources)) if known else lesson
    return tuple(joined.values())


def _traced(texts: Sequence[str], lists: Sequence[Sequence[Lesson]], every: tuple[int, ...]) -> tuple[Lesson, ...]:
    """Give each merged lesson the sources of the lessons it equals, or all of them where it was reworded."""
    known = {normalised(lesson.text): lesson.sources for lesson in _joined(lists)}
    return tuple(Lesson(text, known.get(normalised(text), every)) for text in texts)


def _union(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted({*one, *other}))
