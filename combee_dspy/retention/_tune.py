"""Which copies and fan-in keep most of what n reflections teach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from combee_dspy.aggregators import ScanPlan, plan_scan
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.retention._law import RetentionLaws
from combee_dspy.retention._predict import PredictedSurvival, predicted_survival
from combee_dspy.streams import derive

__all__ = ["ScanChoice", "TunedScan", "tune_scan"]

# The prompts of both kinds of call with their schemas, and one lesson: what parallel-scan itself reckons with.
_PROMPT_TOKENS = 1_000
_LESSON_TOKENS = 40

TOLERANCE = 0.01
"""Survival that is not worth paying for."""


@dataclass(frozen=True, slots=True)
class ScanChoice:
    """One setting of a scan and what is expected of it.

    Attributes:
        copies: p as asked for.
        fan_in: The most reflections one call may take.
        shards: Calls that read.
        levels: LM calls per level.
        calls: LM calls.
        tokens: Estimated tokens of all calls, prompts and answers.
        predicted: Expected survival.
        affordable: Whether it respects the budget of calls.
    """

    copies: int
    fan_in: int
    shards: int
    levels: tuple[int, ...]
    calls: int
    tokens: int
    predicted: PredictedSurvival
    affordable: bool = True


@dataclass(frozen=True, slots=True)
class TunedScan:
    """The settings that were compared.

    Attributes:
        n: Reflections.
        choices: All of them; the smaller p first, then the smaller fan-in.
        best: The one to take; ``None`` where none is affordable.
    """

    n: int
    choices: tuple[ScanChoice, ...]
    best: ScanChoice | None


def tune_scan(  # noqa: PLR0913 - one keyword a dimension of the question
    laws: RetentionLaws,
    n: int,
    *,
    copies: Sequence[int] = (1, 2, 3),
    fan_ins: Sequence[int] = (8, 12, 16, 24, 32),
    max_calls: int | None = None,
    merge_fan_in: int = 32,
    reflection_tokens: int = 300,
    max_lessons: int = 16,
    seed: int = 0,
) -> TunedScan:
    """Compare settings of ``parallel-scan`` by the survival that they lead one to expect.

    The best is the cheapest (fewest calls, then tokens) of those within
    :data:`TOLERANCE` of the highest survival that the budget allows. Different
    fan-ins can give the same plan; then the smaller one is named.

    Args:
        laws: What one call keeps, measured on the endpoint that will scan.
        n: Reflections, at least 1.
        copies: Values of p to compare, each at least 1.
        fan_ins: Values of the fan-in to compare, each at least 2.
        max_calls: The most LM calls that one scan may make; ``None`` for no limit.
        merge_fan_in: The most lists one call may merge; by default as by that of ``parallel-scan``.
        reflection_tokens: Mean tokens of one reflection, for the estimate of cost.
        max_lessons: The most lessons that a level-1 call may return; by default as by that of ``parallel-scan``.
        seed: Where the placement of copies comes from.

    Raises:
        ArgumentValueError: A number is out of range, or there is nothing to compare.
    """
    if n < 1:
        raise ArgumentValueError("n", n, "is below 1", "Give the number of reflections of a scan.")
    for name, values in (("copies", copies), ("fan_ins", fan_ins)):
        if not values:
            raise ArgumentValueError(name, values, "is empty", "Give at least one value.")
    choices: list[ScanChoice] = []
    for p in sorted(set(copies)):
        for fan_in in sorted(set(fan_ins)):
            plan = plan_scan(n, p, fan_in, derive(seed, "tune-scan", n, p), merge_fan_in=merge_fan_in)
            predicted = predicted_survival(laws, plan, max_lessons=max_lessons)
            calls = sum(plan.calls_per_level)
            choices.append(
                ScanChoice(
                    copies=p,
                    fan_in=fan_in,
                    shards=len(plan.levels[0]),
                    levels=plan.calls_per_level,
                    calls=calls,
                    tokens=_tokens(plan, predicted, reflection_tokens),
                    predicted=predicted,
                    affordable=max_calls is None or calls <= max_calls,
                )
            )
    return TunedScan(n, tuple(choices), _best(choices))


def _best(choices: Sequence[ScanChoice]) -> ScanChoice | None:
    affordable = [choice for choice in choices if choice.affordable]
    if not affordable:
        return None
    highest = max(choice.predicted.survival for choice in affordable)
    good = [choice for choice in affordable if choice.predicted.survival >= highest - TOLERANCE]
    return min(good, key=lambda one: (one.calls, one.tokens, one.copies, one.fan_in))


def _tokens(plan: ScanPlan, predicted: PredictedSurvival, reflection_tokens: int) -> int:
    entries = sum(len(node.sources) for node in plan.levels[0])
    written = sum(predicted.lines)
    # Every line of a level but the root's is read once by the level above.
    read = written - predicted.lines[-1]
    calls = sum(plan.calls_per_level)
    return round(calls * _PROMPT_TOKENS + entries * reflection_tokens + (written + read) * _LESSON_TOKENS)
