"""Checks each update before it is committed: what failed, and can its metric be trusted?"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

import dspy

from combee_dspy.evaluation import (
    CalibrationResult,
    Calibrator,
    check_roles_heard,
    evaluator_lms,
    same_model,
)
from combee_dspy.exceptions import TooManyFailuresError
from combee_dspy.journal import Outcome, failure_counts
from combee_dspy.options import Validation
from combee_dspy.records import Cause, FailedCall, FailureCount, Role, Rollout
from combee_dspy.rollouts import output_of
from combee_dspy.search._candidates import Compilation, EffectPlace
from combee_dspy.search._effects import Effects
from combee_dspy.search._keeper import Learned


@dataclass(eq=False)
class Judging:
    """Holds a metric against its reference, or against the model that proposes.

    Lives on the search's loop; called in the order of updates.
    """

    task: Compilation
    effects: Effects
    failures: Failures

    def __post_init__(self) -> None:
        settings, calibration = self.task.settings, self.task.settings.validation.calibration
        self._calibrator: Calibrator | None = None
        self._must_differ = True  # judge and model that proposes
        if calibration is not None:
            self._calibrator = Calibrator(
                calibration, seed=settings.seed, planned=self.task.limits.rollouts
            )
            # A judge held to the model that proposes must be another one.
            reference = evaluator_lms(calibration.reference, dspy.settings.lm)
            proposer = settings.reflection_lm or dspy.settings.lm
            self._must_differ = any(same_model(lm, proposer) for lm in reference)
        self._judged: set[tuple[str, str]] = set()

    async def check(self, learned: Learned) -> None:
        """Check an update.

        Raises:
            TooManyFailuresError: Nearly everything of one kind fails.
            CalibrationFailedError: Metric and reference do not agree.
            RefusedError: The model that proposes judges, too.
        """
        await self.failures.check(learned.plan.step)
        if self._must_differ:
            usage = (row for rollout in learned.rollouts for row in rollout.usage)
            check_roles_heard(usage, self.task.settings.reflection_lm)
        if self._calibrator is not None:
            await self._calibrate(self._calibrator, learned)

    async def _calibrate(self, calibrator: Calibrator, learned: Learned) -> None:
        """Score a sample of the rollouts by the reference."""
        for row, rollout in zip(learned.plan.rows, learned.rollouts, strict=True):
            place = (learned.plan.parent.candidate.id, row.hash)
            if rollout.prediction is None or place in self._judged or not calibrator.chosen(*place):
                continue
            self._judged.add(place)
            score = await self.effects.work(
                f"calibration/{'/'.join(place)}",
                EffectPlace("calibration", learned.plan.step),
                "evaluator",
                "feedback",
                partial(calibrator.judge, row.example, output_of(rollout)),
            )
            calibrator.add(rollout.score, score)
        calibrator.decide()

    def result(self) -> CalibrationResult | None:
        """Return the result of the calibration; ``None`` without one."""
        return None if self._calibrator is None else self._calibrator.decide(final=True)


# Effects of a kind that end a run: fewer may all have failed by chance. Of fair coins 8 fall alike
# once in 256 times.
_ENOUGH = 8
_RAISED: dict[str | None, tuple[Role, Cause]] = {
    "program": ("task", "raised"),
    "metric": ("evaluator", "unscored"),
}
# Without feedback on a predictor the rollout's own is used. A comparison that cannot be read leaves
# the book as it is.
_HARMLESS = ("comparisons", "evaluator feedback")
_LOOK = {
    "unparsed": (
        "Ask the model by hand and look at its answer: one that is cut off, or empty for all its"
        " thinking, needs more max_tokens, a refusal another prompt, another form another adapter"
    ),
    "raised": "Run what raised by hand, on one row of that split",
    "unscored": "Call the metric by hand on one row of that split and the program's prediction",
    "refused": "Look at what the service says, and at the length of what it is asked",
    "timed out": "Give the service or the program more time",
}


@dataclass(eq=False)
class Failures:
    """Counts a run's failures in its journal, whenever an update is about to be committed."""

    effects: Effects
    options: Validation

    def __post_init__(self) -> None:
        self._warnings: dict[str, str] = {}  # by kind of effect

    async def check(self, step: int) -> None:
        """Warn of what fails often in updates up to ``step``.

        Raises:
            TooManyFailuresError: Of one kind of effect nearly all fail, for every candidate that
                there is.
        """
        outcomes, most = self.effects.log.outcomes(step), self.options.stop_failures
        counts = failure_counts(outcomes)
        for text in self.warnings([failure for failure in counts if failure.of >= _ENOUGH]):
            self.effects.warn(text, step=step)
        kind = await self.effects.decide(
            f"failures/{step}/{most:g}", lambda: _hopeless(outcomes, most), step=step
        )
        if kind:
            raise _error([failure for failure in counts if failure.kind == kind])

    def warnings(self, counts: Sequence[FailureCount]) -> list[str]:
        """Return what makes a run with these failures unfit for claims: a sentence for each kind of
        effect.
        """
        kinds: defaultdict[str, list[FailureCount]] = defaultdict(list)
        for failure in counts:
            if failure.kind != "comparisons":
                kinds[failure.kind].append(failure)
        least = self.options.warn_failures
        return [
            # What fails most may change, and whoever was warned is not warned again.
            self._warnings.setdefault(
                kind,
                f"{least:.0%} or more of the {kind} failed, so this run supports no claim. "
                f"For example {worst.cause}: {worst.error}. {_advice(worst)}.",
            )
            for kind, failures in kinds.items()
            if sum(failure.failed for failure in failures) >= least * failures[0].of
            and (worst := max(failures, key=attrgetter("failed")))
        ]

    async def check_first(self, split: str, rollouts: Sequence[Awaitable[Rollout]]) -> None:
        """End the run as soon as the first rollouts of a split are there, where program or metric
        raised on all.

        The first by their place, not by arrival. An answer that does not parse is something to
        learn from.

        Raises:
            TooManyFailuresError: They did.
        """
        if len(rollouts) < _ENOUGH or self.options.stop_failures > 1:
            return
        tried = await asyncio.gather(*(asyncio.shield(rollout) for rollout in rollouts[:_ENOUGH]))
        if all(rollout.failed_in in _RAISED for rollout in tried):
            causes = Counter(_RAISED[rollout.failed_in] for rollout in tried)
            error, kind = str(tried[0].error), f"{split} rollouts"
            raise _error(
                [
                    FailureCount(kind, *cause, count, _ENOUGH, error)
                    for cause, count in causes.items()
                ]
            )


def _advice(worst: FailureCount) -> str:
    if not FailedCall(worst.error).too_long:
        return _LOOK[worst.cause]
    if worst.role == "proposer":
        return (
            "Its context is smaller than what it is asked: lower the aggregator's max_call_tokens,"
            " for example aggregator={'name': 'reference-scan', 'params': {'max_call_tokens':"
            " 6000}}, or give a reflection_lm with a larger context"
        )
    return (
        "Its context is smaller than what it is asked: shorten the inputs, lower the max_tokens of"
        " what is learned (operators, playbook), or give a model with a larger context"
    )


def _error(counts: Sequence[FailureCount]) -> TooManyFailuresError:
    worst = max(counts, key=attrgetter("failed"))
    return TooManyFailuresError("; ".join(map(str, counts)), worst.error, _advice(worst))


def _hopeless(outcomes: Sequence[Outcome], most: float) -> str:
    """Return a kind of effect of which so large a share fails for every candidate; empty for none.

    A candidate that has learned to do without must not go by the failures of the others, such as to
    write a format.
    """
    total: Counter[tuple[str, str]] = Counter()
    failed: Counter[tuple[str, str]] = Counter()
    for outcome in outcomes:
        if outcome.kind not in _HARMLESS:
            place = (outcome.kind, outcome.candidate)
            total[place] += outcome.number
            failed[place] += 0 if outcome.error is None else outcome.number
    shares: defaultdict[str, dict[str, float]] = defaultdict(dict)
    effects: Counter[str] = Counter()
    for (kind, candidate), count in total.items():
        shares[kind][candidate] = failed[kind, candidate] / count
        effects[kind] += count
    validated = shares.get("validation rollouts", {})
    for kind, by_candidate in shares.items():
        fails = effects[kind] >= _ENOUGH and min(by_candidate.values()) >= most
        if fails and not _is_outgrown(by_candidate, validated, most):
            return kind
    return ""


def _is_outgrown(shares: Mapping[str, float], validated: Mapping[str, float], most: float) -> bool:
    """Return whether all that fail fail in validation too, and another text does not.

    Where one text grows, updates that overlap run the student after its first child was validated.
    """
    failing = {candidate for candidate, share in validated.items() if share >= most}
    return shares.keys() <= failing and len(failing) < len(validated)
