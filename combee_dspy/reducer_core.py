"""The core that every host of the reducer shares: one scan, then every operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from combee_dspy.aggregators import Aggregator
from combee_dspy.operators import Operator, OperatorInput
from combee_dspy.records import Edit, Lessons, Reflection, Refusal
from combee_dspy.strategies import StrategyContext

__all__ = ["learn", "propose_component"]


def learn(aggregator: Aggregator, reflections: Sequence[Reflection], context: StrategyContext) -> Lessons:
    """Aggregate the reflections on one component, in a place of its own for chance."""
    return aggregator.aggregate(reflections, replace(context, place=f"{context.place}/aggregator"))


def propose_component(
    aggregator: Aggregator,
    operators: Sequence[Operator],
    reflections: Sequence[Reflection],
    given: OperatorInput,
    context: StrategyContext,
) -> list[Edit | Refusal]:
    """Reduce one component's reflections and let every operator edit it.

    The scan runs at most once and feeds all operators; it does not run where
    none of them needs lessons. Operators of one class draw from different
    streams, so two of them make two different edits.

    Args:
        aggregator: Turns reflections into lessons.
        operators: Each makes one edit.
        reflections: On this component.
        given: The parent's component; its ``lessons`` are replaced by the scan's.
        context: The way to the LM, for this component.

    Returns:
        One edit or refusal per operator, in their order.
    """
    lessons = Lessons(context.component)
    if any(operator.needs_lessons for operator in operators):
        lessons = learn(aggregator, reflections, context)
    missing = _nothing_learned(lessons)
    results: list[Edit | Refusal] = []
    for position, operator in enumerate(operators):
        if operator.needs_lessons and missing:
            results.append(Refusal(missing))
            continue
        place = f"{context.place}/operator {position} {operator.name}"
        results.append(operator.apply(replace(given, lessons=lessons), replace(context, place=place)))
    return results


def _nothing_learned(lessons: Lessons) -> str:
    if lessons.lessons or lessons.rewrite is not None:
        return ""
    failed = [node.failed for node in lessons.nodes if node.failed]
    if failed:
        return f"nothing was learned: {len(failed)} of {len(lessons.nodes)} nodes failed, the first with {failed[0]}"
    return "the scan found no lesson"
