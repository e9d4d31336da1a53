"""A ceiling on what one evaluation may cost, and the cheaper proxy that takes over."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import dspy
from pydantic import Field

from combee_dspy.evaluation._calibration import LEAST_PAIRS, MetricFn, calibrate, score_of
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import CallUsage
from combee_dspy.strategies import parameters
from combee_dspy.streams import derive

__all__ = ["CostCeiling", "CostGate", "ProxyMetric"]


@parameters
class CostCeiling:
    """What one evaluation may cost on average, and what scores instead where it costs more.

    Attributes:
        proxy: A cheaper metric.
        dollars: Dollars per evaluation, by the run's prices. Give this or ``tokens``.
        tokens: Prompt and completion tokens per evaluation.
        sample: Rollouts that both must have scored before the proxy takes over.
        share: Share of rollouts that the proxy scores too, from the start.
        threshold: Spearman's correlation that the proxy must reach.
        confidence: Level of its interval.
    """

    proxy: MetricFn
    dollars: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    tokens: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    sample: Annotated[int, Field(ge=LEAST_PAIRS)] = 30
    share: Annotated[float, Field(gt=0, le=1)] = 0.2
    threshold: Annotated[float, Field(gt=-1, le=1)] = 0.7
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95

    def __post_init__(self) -> None:
        if (self.dollars is None) == (self.tokens is None):
            both = (self.dollars, self.tokens)
            problem = "are not one figure"
            raise ArgumentValueError("CostCeiling.dollars and tokens", both, problem, "Give one of them an evaluation.")


@dataclass(frozen=True, slots=True)
class ProxyMetric:
    """A proxy whose scores are put on the full metric's scale, so that means stay comparable.

    Attributes:
        proxy: The cheaper metric.
        slope: Of the least-squares line from its scores to the full metric's.
        intercept: Of the same.
        low: Lowest score of the full metric that was seen: no score is put below it.
        high: Highest.
    """

    proxy: Callable[..., Any]
    slope: float
    intercept: float
    low: float
    high: float

    @classmethod
    def fitted(cls, proxy: Callable[..., Any], pairs: Sequence[tuple[float, float]]) -> ProxyMetric:
        """Return the proxy on the line through ``(proxy, full)`` scores, or as it is where none would rise."""
        proxies, fulls = zip(*pairs, strict=True)
        x, y = math.fsum(proxies) / len(pairs), math.fsum(fulls) / len(pairs)
        scatter = math.fsum((one - x) ** 2 for one in proxies)
        slope = math.fsum((p - x) * (f - y) for p, f in pairs) / scatter if scatter > 0 else 0.0
        line = (slope, y - slope * x) if slope > 0 else (1.0, 0.0)
        return cls(proxy, *line, min(fulls), max(fulls))

    def __call__(
        self, gold: Any, pred: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None
    ) -> Any:
        """Return the proxy's output with its score on the full metric's scale."""
        output = self.proxy(gold, pred, trace, pred_name, pred_trace)
        score = self.intercept + self.slope * float(getattr(output, "score", output))
        score = min(self.high, max(self.low, score))
        return dspy.Prediction(**{**dict(output.items()), "score": score}) if hasattr(output, "items") else score


class CostGate:
    """Who scores a run's rollouts: the full metric, until it costs too much and its proxy has proved itself.

    Used on a run's event loop, in the order of its updates, so that a run that
    goes on decides alike. The held-out set is read with the full metric always.

    Args:
        ceiling: What is asked for.
        metric: The full metric.
        seed: The run's seed.

    Attributes:
        metric: The metric that scores now.
        scorer: ``"full"`` or ``"proxy"``: a part of a rollout's identity.
    """

    def __init__(self, ceiling: CostCeiling, metric: Callable[..., Any], *, seed: int = 0) -> None:
        self.ceiling = ceiling
        self.metric = metric
        self.scorer = "full"
        self.pairs: list[tuple[float, float]] = []
        self._seed = seed
        self._costs: list[float] = []
        self._every = False

    def spent(self, usage: Iterable[CallUsage]) -> None:
        """Take what a rollout by the full metric used. Calls that a cache answered say nothing about the price.

        Raises:
            ArgumentValueError: The ceiling is in dollars and a model's price is not known.
        """
        bought = [one for one in usage if one.role == "evaluator" and one.calls > one.cached]
        if self.ceiling.tokens is not None:
            self._costs += [sum(one.prompt_tokens + one.completion_tokens for one in bought)] if bought else []
            return
        if unpriced := [one.model for one in bought if one.dollars is None]:
            remedy = "Give its price, or set the ceiling in tokens."
            raise ArgumentValueError("CostCeiling.dollars", unpriced[0], "cannot be kept: it has no price", remedy)
        self._costs += [sum(one.dollars or 0.0 for one in bought)] if bought else []

    def chosen(self, *place: str | int) -> bool:
        """Return whether the proxy scores a rollout too: a matter of the seed and of its place, never of arrival."""
        return self.scorer == "full" and (
            self._every or derive(self._seed, "proxy", *place).random() < self.ceiling.share
        )

    def judge(self, example: Any, prediction: Any) -> float:
        """Return the proxy's own score of a rollout. May call an LM: run it in a worker, and journal the score.

        Raises:
            CalibrationFailedError: The proxy raised, or gave no score.
            LMError: The service failed: try again.
        """
        return score_of(self.ceiling.proxy, example, prediction, "proxy", "it")

    def add(self, proxy: float, full: float) -> None:
        """Take the scores that a rollout got from the proxy and from the full metric."""
        self.pairs.append((proxy, full))

    def decide(self) -> dict[str, Any] | None:
        """Compare the mean cost with the ceiling between updates, and hand over where it is above.

        Returns:
            What was decided, as JSON values for the journal; ``None`` where nothing was.

        Raises:
            CalibrationFailedError: The proxy does not agree with the full metric: the ceiling cannot be kept.
        """
        limit = self.ceiling.dollars if self.ceiling.tokens is None else self.ceiling.tokens
        mean = math.fsum(self._costs) / len(self._costs) if self._costs else 0.0
        if self.scorer == "proxy" or mean <= (limit or 0.0):
            return None
        figures = {"mean_cost": mean, "ceiling": limit, "pairs": len(self.pairs)}
        if len(self.pairs) < self.ceiling.sample:
            first, self._every = not self._every, True
            return {"scorer": "full", "proxy_beside": "every rollout", **figures} if first else None
        settings = self.ceiling
        calibrate(self.pairs, subject="proxy", threshold=settings.threshold, confidence=settings.confidence).require()
        self.metric = fitted = ProxyMetric.fitted(self.ceiling.proxy, self.pairs)
        self.scorer = "proxy"
        return {"scorer": "proxy", "slope": fitted.slope, "intercept": fitted.intercept, **figures}
