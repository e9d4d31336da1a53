"""A judge that is held against a reference while it judges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from combee_dspy.evaluation._calibration import LEAST_PAIRS, Calibration, CalibrationResult, calibrate
from combee_dspy.evaluation._pairs import Emit, PairStore, SteppedMetric, drawn, identity_of, place_of
from combee_dspy.exceptions import CalibrationFailedError

__all__ = ["CalibratedMetric"]

_FIELD = "calibration"


class CalibratedMetric:
    """A metric of GEPA's protocol: a judge, and for a share of the rollouts its reference too.

    The judge's score counts. Which rollouts both judge follows from the seed,
    the example and what the program returned, never from arrival. Such an
    output carries both scores in its field ``calibration``, so that a rollout
    from a cache, or from another process, still counts: see :meth:`observe`.

    :meth:`step` decides when the minimum of pairs is there, again each time
    their number has doubled, and at the end. While the reference gives all
    rollouts one score there is nothing to rank, and the decision waits for the
    end. Thread-safe; may be pickled, without its pairs.

    Args:
        judge: The metric that scores.
        calibration: What it is held against.
        seed: The run's seed.
        planned: Rollouts that the run may buy, where known: a short run judges a larger share by both.
    """

    def __init__(
        self, judge: Callable[..., Any], calibration: Calibration, *, seed: int = 0, planned: int | None = None
    ) -> None:
        self.judge: Any = judge
        self.calibration = calibration
        self.seed = seed
        self.share = calibration.share_for(planned)
        self._decided = 0
        self._begin()

    def __call__(
        self, gold: Any, pred: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None
    ) -> Any:
        """Return the judge's output; with both scores in ``calibration`` where the rollout is in the sample."""
        output = self.judge(gold, pred, trace, pred_name, pred_trace)
        if pred_name is not None:
            return output
        place = place_of(gold, pred)
        if not drawn(self.seed, "calibration", place, self.share):
            return output
        given = (gold, pred, trace)
        return self._store.judge_too(self.calibration.reference, given, output, place, second_is="reference")

    @property
    def cache_identity(self) -> str:
        """What a cache tells its scores by: judge and reference, not the sample that both score."""
        return identity_of("calibrated", self.judge, self.calibration.reference)

    def judges(self) -> tuple[Callable[..., Any], ...]:
        """Return the metrics whose scores count."""
        return (self.judge,)

    def observe(self, output: object) -> None:
        """Take the pair that the metric's output of a rollout carries, if it does. Hearing it twice is fine."""
        self._store.observe(output)
        if isinstance(self.judge, SteppedMetric):
            self.judge.observe(output)

    def dump(self) -> dict[str, Any]:
        """Return the pairs and how many had been there at the last decision, as plain data."""
        inner = self.judge.dump() if isinstance(self.judge, SteppedMetric) else {}
        return {"pairs": self._store.dump(), "decided": self._decided, "judge": inner}

    def load(self, data: Mapping[str, Any]) -> None:
        """Go on from what :meth:`dump` returned."""
        self._store.load(data["pairs"])
        self._decided = int(data["decided"])
        if isinstance(self.judge, SteppedMetric) and data.get("judge"):
            self.judge.load(data["judge"])

    def result(self) -> CalibrationResult | None:
        """Return what the pairs so far say; ``None`` below the minimum."""
        pairs = self._store.pairs()
        return self._calibrate(pairs) if len(pairs) >= self.calibration.minimum else None

    def step(self, iteration: int, emit: Emit, *, final: bool = False) -> None:
        """Decide where a decision is due, and say so.

        Args:
            iteration: The iteration that has ended.
            emit: Hears of each decision.
            final: Whether no more rollouts will come: then what there is must do.

        Raises:
            CalibrationFailedError: Judge and reference do not agree, the reference raised, or the
                run has ended with too few pairs.
        """
        if isinstance(self.judge, SteppedMetric):
            self.judge.step(iteration, emit, final=final)
        if (error := self._store.failure) is not None:
            raise CalibrationFailedError("judge", f"its reference raised {type(error).__name__}: {error}") from error
        pairs = self._store.pairs()
        if final and len(pairs) < LEAST_PAIRS:
            reason = f"the run has ended with {len(pairs)} rollouts judged by both, at least {LEAST_PAIRS} are needed"
            raise CalibrationFailedError("judge", reason)
        if len(pairs) == self._decided or not (final or len(pairs) >= max(self.calibration.minimum, 2 * self._decided)):
            return
        if not final and len({reference for _, reference in pairs}) == 1:
            return
        found = self._calibrate(pairs)
        self._decided = len(pairs)
        emit(found.event(iteration))
        found.require()

    def _calibrate(self, pairs: list[tuple[float, float]]) -> CalibrationResult:
        settings = self.calibration
        return calibrate(pairs, threshold=settings.threshold, confidence=settings.confidence)

    def _begin(self) -> None:
        self._store = PairStore(_FIELD)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_store", "_decided")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._decided = 0
        self._begin()
