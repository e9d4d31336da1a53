"""A ceiling on what one evaluation may cost, and the cheaper proxy that takes over."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import dspy

from combee_dspy.costs import Counts, Ledger, LedgerRecorder, PriceTable
from combee_dspy.evaluation._calibration import LEAST_PAIRS, calibrate
from combee_dspy.evaluation._pairs import (
    Emit,
    PairStore,
    SteppedMetric,
    drawn,
    identity_of,
    place_of,
    score_of,
)
from combee_dspy.events import ScheduleDecided
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError, CalibrationFailedError

__all__ = ["CappedMetric", "CostCeiling", "ProxyLine", "fit_line"]

_FIELD = "proxy_calibration"
_PICO = 10**12


@dataclass(frozen=True, slots=True)
class CostCeiling:
    """What one evaluation may cost on average, and what scores instead where it costs more.

    Attributes:
        proxy: A cheaper metric of GEPA's protocol.
        dollars: Dollars per evaluation, by the run's prices. Give this or ``tokens``.
        tokens: Prompt and completion tokens per evaluation.
        sample: Rollouts that both must have scored before the proxy takes over.
        share: Share of rollouts that the proxy scores too, from the start.
        threshold: Spearman's correlation that the proxy must reach.
        confidence: Level of its interval.

    Raises:
        ArgumentTypeError: ``proxy`` is not callable.
        ArgumentValueError: Neither or both of ``dollars`` and ``tokens`` are given, or a figure is out of its range.
    """

    proxy: Callable[..., Any]
    dollars: float | None = None
    tokens: float | None = None
    sample: int = 30
    share: float = 0.2
    threshold: float = 0.7
    confidence: float = 0.95

    def __post_init__(self) -> None:
        if not callable(self.proxy):
            raise ArgumentTypeError("proxy", self.proxy, "is not callable", "Give a metric that costs less.")
        if (self.dollars is None) == (self.tokens is None):
            both = (self.dollars, self.tokens)
            raise ArgumentValueError("ceiling", both, "is not one figure", "Give dollars or tokens per evaluation.")
        limit = self.dollars if self.dollars is not None else self.tokens
        if limit is None or not (math.isfinite(limit) and limit >= 0):
            raise ArgumentValueError("ceiling", limit, "is no cost", "Give a finite number of at least 0.")
        if self.sample < LEAST_PAIRS:
            raise ArgumentValueError("sample", self.sample, "is too few", f"Give at least {LEAST_PAIRS}.")
        if not 0 < self.share <= 1:
            raise ArgumentValueError("share", self.share, "is no share", "Give a number above 0, at most 1.")

    @property
    def unit(self) -> str:
        """``"dollars"`` or ``"tokens"``."""
        return "dollars" if self.dollars is not None else "tokens"

    @property
    def limit(self) -> float:
        """The ceiling, in its unit."""
        return float(self.dollars if self.dollars is not None else self.tokens or 0.0)


@dataclass(frozen=True, slots=True)
class ProxyLine:
    """The full evaluator's expected score, given the proxy's.

    Attributes:
        slope: Of the least-squares line.
        intercept: Of the same.
        low: Lowest score of the full evaluator in the sample: no score is put below it.
        high: Highest.
    """

    slope: float
    intercept: float
    low: float
    high: float

    def __call__(self, score: float) -> float:
        """Return a proxy's score on the full evaluator's scale."""
        return min(self.high, max(self.low, self.intercept + self.slope * score))


def fit_line(pairs: Sequence[tuple[float, float]]) -> ProxyLine:
    """Return the least-squares line through ``(proxy, full)`` scores.

    Candidates that the full evaluator scored stay in the pool beside those that
    the proxy scores: on its expected scale a mean stays comparable. Where the
    line would not rise, or the proxy is constant, scores are taken as they are.
    """
    proxies, fulls = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    x, y = math.fsum(proxies) / len(pairs), math.fsum(fulls) / len(pairs)
    scatter = math.fsum((one - x) ** 2 for one in proxies)
    slope = math.fsum((p - x) * (f - y) for p, f in pairs) / scatter if scatter > 0 else 0.0
    if slope <= 0:
        return ProxyLine(1.0, 0.0, min(fulls), max(fulls))
    return ProxyLine(slope, y - slope * x, min(fulls), max(fulls))


class CappedMetric:
    """A metric of GEPA's protocol that hands over to a proxy when it costs too much.

    At first the full metric scores, and a derived share of rollouts is scored
    by the proxy too. :meth:`step`, between iterations, compares the mean cost of
    an evaluation with the ceiling. Where it is above, and enough rollouts have
    both scores, the proxy is calibrated: it takes over where it agrees, and the
    run aborts where it does not, since the ceiling cannot be kept. From then on
    the proxy's scores are put on the full metric's scale (:func:`fit_line`).
    Evaluations that DSPy's cache answered say nothing about the price and are
    left out of the mean. The held-out set is to be read with ``full``.

    Thread-safe. Costs are heard in this process only: with an executor of other
    processes the ceiling never acts.

    Args:
        full: The full metric.
        ceiling: What it may cost, and the proxy.
        seed: The run's seed.
        prices: The run's prices.
    """

    def __init__(
        self, full: Callable[..., Any], ceiling: CostCeiling, *, seed: int = 0, prices: PriceTable | None = None
    ) -> None:
        self.full: Any = full
        self.ceiling = ceiling
        self.seed = seed
        self.prices = prices
        self.line: ProxyLine | None = None
        self._begin()

    def __call__(
        self, gold: Any, pred: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None
    ) -> Any:
        """Return the score of whoever scores now."""
        line = self.line
        if line is not None:
            return _moved(self.ceiling.proxy(gold, pred, trace, pred_name, pred_trace), line)
        if pred_name is not None:
            return self.full(gold, pred, trace, pred_name, pred_trace)
        ledger = Ledger(self.prices)
        with LedgerRecorder(ledger).installed():
            output = self.full(gold, pred, trace, pred_name, pred_trace)
        self._count(ledger.snapshot().total)
        place = place_of(gold, pred)
        if not (self.sample_all or drawn(self.seed, "proxy", place, self.ceiling.share)):
            return output
        return self._store.judge_too(self.ceiling.proxy, (gold, pred, trace), output, place, second_is="subject")

    @property
    def cache_identity(self) -> str:
        """What a cache tells its scores by: another one once the proxy has taken over."""
        if self.line is None:
            return identity_of("capped", self.full, self.ceiling.proxy)
        return identity_of("proxy", self.ceiling.proxy, self.line)

    def judges(self) -> tuple[Callable[..., Any], ...]:
        """Return the metrics whose scores count."""
        return (self.full, self.ceiling.proxy)

    def observe(self, output: object) -> None:
        """Take the pair that the metric's output of a rollout carries, if it does. Hearing it twice is fine."""
        self._store.observe(output)
        if isinstance(self.full, SteppedMetric):
            self.full.observe(output)

    def dump(self) -> dict[str, Any]:
        """Return the pairs, what evaluations have cost, and the proxy's line once it scores, as plain data."""
        inner = self.full.dump() if isinstance(self.full, SteppedMetric) else {}
        with self._lock:
            cost = [self._evaluations, self._spent, self._unpriced]
        line = None if self.line is None else asdict(self.line)
        return {"pairs": self._store.dump(), "cost": cost, "line": line, "sample_all": self.sample_all, "full": inner}

    def load(self, data: Mapping[str, Any]) -> None:
        """Go on from what :meth:`dump` returned: a proxy that had taken over still scores."""
        self._store.load(data["pairs"])
        with self._lock:
            self._evaluations, self._spent, self._unpriced = (int(value) for value in data["cost"])
        self.line = None if data["line"] is None else ProxyLine(**{k: float(v) for k, v in data["line"].items()})
        self.sample_all = bool(data["sample_all"])
        if isinstance(self.full, SteppedMetric) and data.get("full"):
            self.full.load(data["full"])

    @property
    def mean_cost(self) -> float | None:
        """Mean cost of one evaluation by the full metric, in the ceiling's unit; ``None`` before the first."""
        with self._lock:
            return self._spent / self._evaluations / self._scale if self._evaluations else None

    def step(self, iteration: int, emit: Emit, *, final: bool = False) -> None:
        """Compare the mean cost with the ceiling, and hand over where it is above.

        Args:
            iteration: The iteration that has ended.
            emit: Hears of the calibration and of each decision.
            final: Whether no more rollouts will come: then nothing is decided any more.

        Raises:
            ArgumentValueError: The ceiling is in dollars and a model's price is not known.
            CalibrationFailedError: The proxy does not agree with the full metric, or raised.
        """
        if isinstance(self.full, SteppedMetric):
            self.full.step(iteration, emit, final=final)
        if self.line is not None or final:
            return
        self._raise_failure()
        mean, limit = self.mean_cost, self.ceiling.limit
        if mean is None or mean <= limit:
            self.sample_all = False
            return
        pairs = self._store.pairs()
        figures = {"mean_cost": mean, "ceiling": limit, "unit": self.ceiling.unit, "pairs": len(pairs)}
        if len(pairs) < self.ceiling.sample:
            if not self.sample_all:
                self.sample_all = True
                emit(_decision(iteration, {"score_by": "full", "proxy_beside": "every rollout", **figures}))
            return
        found = calibrate(pairs, subject="proxy", threshold=self.ceiling.threshold, confidence=self.ceiling.confidence)
        emit(found.event(iteration))
        found.require()
        self.line = fit_line(pairs)
        line = {"slope": self.line.slope, "intercept": self.line.intercept}
        emit(_decision(iteration, {"score_by": "proxy", **line, **figures}))

    def _count(self, counts: Counts) -> None:
        if counts.calls and counts.cached == counts.calls:
            return
        with self._lock:
            self._evaluations += 1
            self._unpriced += counts.unpriced
            # Whole picodollars: a sum that does not depend on the order of arrival.
            self._spent += round(counts.known_dollars * _PICO) if self.ceiling.unit == "dollars" else counts.tokens

    def _raise_failure(self) -> None:
        if (error := self._store.failure) is not None:
            raise CalibrationFailedError("proxy", f"it raised {type(error).__name__}: {error}") from error
        if self.ceiling.unit == "dollars" and self._unpriced:
            remedy = "Give its price with prices={…}, or set the ceiling in tokens."
            raise ArgumentValueError("ceiling.dollars", self._unpriced, "cannot be kept: calls have no price", remedy)

    @property
    def _scale(self) -> int:
        return _PICO if self.ceiling.unit == "dollars" else 1

    def _begin(self) -> None:
        self.sample_all = False
        self._store: PairStore = PairStore(_FIELD)
        self._lock: threading.Lock = threading.Lock()
        self._evaluations = 0
        self._spent = 0
        self._unpriced = 0

    def __getstate__(self) -> dict[str, Any]:
        # What scores now stays: a copy scores alike, and a cache can tell its scores from those before.
        return {name: getattr(self, name) for name in ("full", "ceiling", "seed", "prices", "line")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()


def _decision(iteration: int, values: dict[str, Any]) -> ScheduleDecided:
    return ScheduleDecided(
        iteration=iteration, schedule_id=f"evaluator-{iteration}", decision="evaluator", values=values
    )


def _moved(output: Any, line: ProxyLine) -> Any:
    score = line(score_of(output))
    if isinstance(output, dspy.Prediction):
        return dspy.Prediction(**{**dict(output.items()), "score": score})
    return score
