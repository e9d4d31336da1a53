"""The core that every host of the reducer shares: one scan, then every operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import NoneType

from combee_dspy.aggregators import Aggregator
from combee_dspy.exceptions import ArgumentTypeError
from combee_dspy.operators import Operator, OperatorInput
from combee_dspy.records import Demonstration, Edit, Lessons, Reflection, Refusal
from combee_dspy.strategies import StrategyContext

__all__ = ["learn", "propose_component"]


def learn(aggregator: Aggregator, reflections: Sequence[Reflection], context: StrategyContext) -> Lessons:
    """Aggregate the reflections on one component, in a place of its own for chance.

    Raises:
        ArgumentTypeError: The aggregator returned something else than lessons.
    """
    lessons: object = aggregator.aggregate(reflections, replace(context, place=f"{context.place}/aggregator"))
    if not isinstance(lessons, Lessons):
        problem = f"returned no Lessons for {context.component}"
        raise ArgumentTypeError(f"aggregator {aggregator.name!r}", lessons, problem, "aggregate() must return Lessons.")
    return lessons


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

    Raises:
        ArgumentTypeError: A strategy returned something of another type.
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
        result = operator.apply(replace(given, lessons=lessons), replace(context, place=place))
        results.append(_checked(result, operator, context.component))
    return results


def _checked(result: object, operator: Operator, component: str) -> Edit | Refusal:
    if isinstance(result, Refusal):
        return result
    if (
        isinstance(result, Edit)
        and isinstance(result.instruction, (str, NoneType))
        and isinstance(result.demonstrations, (tuple, NoneType))
        and all(isinstance(demonstration, Demonstration) for demonstration in result.demonstrations or ())
    ):
        return result
    remedy = "apply() must return an Edit (text, tuple of Demonstration) or a Refusal."
    problem = f"returned no Edit and no Refusal for {component}"
    raise ArgumentTypeError(f"operator {operator.name!r}", result, problem, remedy)


def _nothing_learned(lessons: Lessons) -> str:
    if lessons.lessons or lessons.rewrite is not None:
        return ""
    failed = [node.failed for node in lessons.nodes if node.failed]
    if failed:
        return f"nothing was learned: {len(failed)} of {len(lessons.nodes)} nodes failed, the first with {failed[0]}"
    return "the scan found no lesson"
