"""The metric of a run: the user's, calibrated and capped where that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import dspy

from combee_dspy.costs import PriceTable, Totals
from combee_dspy.engine.settings import Settings
from combee_dspy.evaluation import CalibratedMetric, CappedMetric, SteppedMetric, check_roles, check_roles_heard
from combee_dspy.events import Event, RolloutFinished
from combee_dspy.records import Rollout

__all__ = ["Judging"]


class Judging:
    """Who scores the rollouts of a run, and whether that may go on.

    A metric that is calibrated, or that may change to a cheaper proxy, decides
    between iterations only. Owned by the thread that runs gepa's loop.

    Args:
        settings: The run's settings.
        prices: What calls cost, for a ceiling in dollars.
        planned: Rollouts that the run may buy, where that is known.

    Attributes:
        metric: What scores rollouts.

    Raises:
        ArgumentValueError: The judge is the proposer, and nothing calibrates it.
    """

    def __init__(self, settings: Settings, prices: PriceTable, planned: int | None) -> None:
        metric: Any = settings.metric_fn
        if not settings.like_gepa:
            check_roles(metric, settings.reflection_lm, calibration=settings.calibration, default=dspy.settings.lm)
        if settings.calibration is not None:
            metric = CalibratedMetric(metric, settings.calibration, seed=settings.seed, planned=planned)
        if settings.ceiling is not None:
            metric = CappedMetric(metric, settings.ceiling, seed=settings.seed, prices=prices)
        self.metric: Callable[..., Any] = metric
        self._proposer = settings.reflection_lm
        self._listens = not settings.like_gepa and settings.calibration is None
        self._stepped = metric if isinstance(metric, SteppedMetric) else None

    @property
    def changes(self) -> bool:
        """Whether what scores may be another after a step."""
        return self._stepped is not None

    @property
    def final(self) -> Callable[..., Any]:
        """What scores the held-out set: never a proxy."""
        full: Callable[..., Any] = getattr(self.metric, "full", self.metric)
        return full

    def observe(self, rollout: Rollout) -> None:
        """Take what a scored rollout says about two judges of it."""
        if self._stepped is not None and rollout.metric_output is not None:
            self._stepped.observe(rollout.metric_output)

    def listening(self, emit: Callable[[Event], None], totals: Callable[[], Totals]) -> Callable[[Event], None]:
        """Return what emits, and refuses a metric as soon as a scored rollout shows that it calls the proposer.

        A function need not say which LM it calls. What is raised ends the evaluation that waits for the
        rollout, so what of it has not started is not bought.

        Args:
            emit: Where events go.
            totals: Returns what this process has spent.
        """
        if not self._listens:
            return emit

        def heard(event: Event) -> None:
            emit(event)
            if isinstance(event, RolloutFinished):
                check_roles_heard(totals(), self._proposer)

        return heard

    def dump(self) -> dict[str, Any]:
        """Return what judges have said and who scores now, as plain JSON data, for a checkpoint."""
        return {} if self._stepped is None else self._stepped.dump()

    def load(self, data: Mapping[str, Any]) -> None:
        """Go on from what :meth:`dump` returned; empty data changes nothing."""
        if self._stepped is not None and data:
            self._stepped.load(data)

    def step(self, iteration: int, totals: Totals, emit: Callable[[Event], None], *, final: bool = False) -> None:
        """Decide what is due between two iterations.

        Raises:
            CalibrationFailedError: The judge or the proxy does not agree with its reference.
            ArgumentValueError: The metric was heard calling the model that proposes.
        """
        if self._stepped is not None:
            self._stepped.step(iteration, emit, final=final)
        if self._listens:
            check_roles_heard(totals, self._proposer)
