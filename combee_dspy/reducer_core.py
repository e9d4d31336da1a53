"""The core that every host of the reducer shares: one scan, then every operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import NoneType

from combee_dspy.aggregators import Aggregator, Scan
from combee_dspy.exceptions import ArgumentTypeError
from combee_dspy.operators import Operator, OperatorInput
from combee_dspy.records import Demonstration, Edit, Lessons, Reflection, Refusal
from combee_dspy.strategies import StrategyContext

__all__ = ["apply_operator", "begin", "learn", "propose_component"]


def learn(aggregator: Aggregator, reflections: Sequence[Reflection], context: StrategyContext) -> Lessons:
    """Aggregate the reflections on one component, in a place of its own for chance.

    Raises:
        ArgumentTypeError: The aggregator returned something else than lessons.
    """
    lessons: object = aggregator.aggregate(reflections, _aggregating(context))
    if not isinstance(lessons, Lessons):
        problem = f"returned no Lessons for {context.component}"
        raise ArgumentTypeError(f"aggregator {aggregator.name!r}", lessons, problem, "aggregate() must return Lessons.")
    return lessons


def begin(aggregator: Aggregator, size: int, context: StrategyContext) -> Scan | None:
    """Begin what :func:`learn` does, before the reflections exist; ``None`` where the aggregator cannot.

    Args:
        aggregator: Turns reflections into lessons.
        size: Reflections to come, at most.
        context: As for :func:`learn`.
    """
    return aggregator.begin(size, _aggregating(context))


def _aggregating(context: StrategyContext) -> StrategyContext:
    return replace(context, place=f"{context.place}/aggregator")


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
    given = replace(given, lessons=lessons)
    return [apply_operator(operator, position, given, context) for position, operator in enumerate(operators)]


def apply_operator(operator: Operator, position: int, given: OperatorInput, context: StrategyContext) -> Edit | Refusal:
    """Let one operator edit a component, in a place of its own for chance.

    Args:
        operator: The operator.
        position: What tells it apart from other operators of its class.
        given: The parent's component, with what was learned.
        context: The way to the LM, for this component.

    Returns:
        The edit, or why there is none: nothing was learned, or the operator's own reason.

    Raises:
        ArgumentTypeError: The operator returned something of another type.
    """
    missing = _nothing_learned(given.lessons)
    if operator.needs_lessons and missing:
        return Refusal(missing)
    place = f"{context.place}/operator {position} {operator.name}"
    return _checked(operator.apply(given, replace(context, place=place)), operator, context.component)


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
