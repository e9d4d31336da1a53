"""Looks at each update before it counts: what failed, and whether the metric can be trusted."""

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

    async def look(self, learned: Learned) -> None:
        """Look at what an update learned.

        Raises:
            TooManyFailuresError: Nearly everything of one kind fails.
            CalibrationFailedError: Metric and reference do not agree.
            RefusedError: The metric is judged by the model that proposes.
        """
        await self.failures.check(learned.plan.step)
        # A judge held to the model that proposes must be another one.
        if self._calibrator is None or self._reference_proposes:
            usage = (row for rollout in learned.rollouts for row in rollout.usage)
            check_roles_heard(usage, self._proposer)
        if self._calibrator is None:
            return
        for row, rollout in zip(learned.plan.rows, learned.rollouts, strict=True):
            place = (learned.plan.parent.candidate.id, row.hash)
            chosen = place not in self._judged and self._calibrator.chosen(*place)
            if rollout.prediction is None or not chosen:
                continue
            self._judged.add(place)
            judge = partial(self._calibrator.judge, row.example, output_of(rollout))
            where = EffectPlace("calibration", learned.plan.step)
            score = await self.effects.work(
                f"calibration/{'/'.join(place)}", where, "evaluator", "feedback", judge
            )
            self._calibrator.add(rollout.score, score)
        self._calibrator.decide()

    def result(self) -> CalibrationResult | None:
        """Return what calibration came to in the end; ``None`` where there was none."""
        return None if self._calibrator is None else self._calibrator.decide(final=True)
