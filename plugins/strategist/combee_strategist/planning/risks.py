"""What may go wrong with a plan, by its own inputs; the largest first."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from combee_dspy.evaluation import SizeComparison
from combee_strategist.planning.batching import BatchSimulation
from combee_strategist.planning.choices import Choices, Measured
from combee_strategist.planning.shapes import HALF
from combee_strategist.planning.spec import Spec

__all__ = ["list_risks"]

_FEW_ROWS, _SERIAL_SHARE, _DAYS = 100, 0.5, 7


def list_risks(
    spec: Spec,
    choices: Choices,
    measured: Measured,
    batches: BatchSimulation,
    judge: SizeComparison | None,
) -> list[str]:
    """Return sentences, the largest failure mode first."""
    return [
        *_of_evidence(spec, measured, judge),
        *_of_service(spec, choices, measured, batches),
        *_of_budget(spec, choices, measured),
    ]


def _of_evidence(spec: Spec, measured: Measured, judge: SizeComparison | None) -> Iterator[str]:
    rows = measured.diagnosis.gain.n
    if spec.evaluation.used_to_tune:
        yield "The held-out rows were used to tune, so they cannot prove the result."
    if judge is not None:
        yield (
            f"The judge {spec.models.evaluator} is learned instead of the task. Monitor: its rank"
            " correlation with the reference, calibration in combee show."
        )
        if judge.smaller is not True:
            yield f"The judge may be as large as the proposer: {judge.reason}."
    if rows < _FEW_ROWS:
        yield (
            f"{rows} validation rows choose a lucky candidate: one row is {100 / rows:.1f} points."
            " Monitor: score/candidate beside score/heldout."
        )
    yield (
        "Lessons fit the training rows and not what is served. Monitor: score/candidate beside"
        " score/train by update."
    )
    if spec.failure == "harms":
        yield "A failure cannot be undone. A shadow shows it to nobody; Serving(live=…) would."


def _of_service(
    spec: Spec, choices: Choices, measured: Measured, batches: BatchSimulation
) -> Iterator[str]:
    slots = spec.hardware.slots
    if choices.workers > slots:
        yield f"{choices.workers} workers share {slots} slots: {slots} workers would be as fast."
    if batches.utilisation < HALF and spec.task.count == 1:
        yield (
            f"{1 - batches.utilisation:.0%} of {slots} slots stay idle: a smaller service is as"
            " fast, and workers may grow from what a wide search shows (wide:)."
        )
    ceiling = measured.diagnosis.ceiling
    if ceiling is not None and ceiling.share > _SERIAL_SHARE:
        yield (
            f"{ceiling.share:.0%} of the serial search's time had no rollout in it, so a speedup"
            f" above {ceiling.unbounded:.1f} times needs more than workers."
        )
    if spec.hardware.models == "shared":
        yield "The proposer takes slots from the rollouts: the rate above has none of its calls."
    yield (
        f"The speedup does not hold where the service has fewer than {slots} slots free or other"
        " latencies than in the serial run, or on another split."
    )


def _of_budget(spec: Spec, choices: Choices, measured: Measured) -> Iterator[str]:
    budget, each = spec.budget, measured.spent
    if choices.rollouts > budget.rollouts:
        yield (
            f"The budget of {budget.rollouts:,} rollouts ends the search before the planned"
            f" {choices.rollouts:,}: the target must be reached before that."
        )
    tokens = each["tokens"] / each["rollouts"] * choices.rollouts if each["tokens"] else 0
    if tokens > budget.tokens:
        yield f"The plan needs {tokens:,.0f} tokens: the budget of {budget.tokens:,} ends it first."
    days = (budget.deadline - datetime.now(UTC).date()).days
    if days < _DAYS:
        hours = choices.canary_hours
        yield f"{days} days are left, of which the canary alone takes {hours:g} hours."
    yield "One serial search was measured: another seed may converge elsewhere."
