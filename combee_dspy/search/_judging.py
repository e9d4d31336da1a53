"""Checks each update before it is committed: what failed, and can its metric be trusted?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import dspy

from combee_dspy.evaluation import (
    CalibrationResult,
    Calibrator,
    check_roles_heard,
    evaluator_lms,
    same_model,
)
from combee_dspy.rollouts import output_of
from combee_dspy.search._candidates import Compilation, EffectPlace
from combee_dspy.search._effects import Effects
from combee_dspy.search._failures import Failures
from combee_dspy.search._plans import Learned

__all__ = ["Judging"]


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
        self._proposer = settings.reflection_lm
        self._calibrator = None
        if calibration is not None:
            self._calibrator = Calibrator(
                calibration, seed=settings.seed, planned=self.task.limits.rollouts
            )
        reference = evaluator_lms(
            None if calibration is None else calibration.reference, dspy.settings.lm
        )
        proposer = settings.reflection_lm or dspy.settings.lm
        self._reference_proposes = any(same_model(lm, proposer) for lm in reference)
        self._judged: set[tuple[str, str]] = set()

    async def check(self, learned: Learned) -> None:
        """Check an update.

        Raises:
            TooManyFailuresError: Nearly everything of one kind fails.
            CalibrationFailedError: Metric and reference do not agree.
            RefusedError: The model that proposes judges, too.
        """
        await self.failures.check(learned.plan.step)
        # A judge held to the model that proposes must be another one.
        if self._calibrator is None or self._reference_proposes:
            usage = (row for rollout in learned.rollouts for row in rollout.usage)
            check_roles_heard(usage, self._proposer)
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
