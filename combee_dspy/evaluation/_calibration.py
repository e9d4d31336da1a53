"""Checks that a judge ranks rollouts as a trusted reference does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from dspy.utils.exceptions import LMError
from pydantic import Field, WithJsonSchema

from combee_dspy.exceptions import ArgumentValueError, CalibrationFailedError
from combee_dspy.strategies import parameters
from combee_dspy.streams import derive

LEAST_PAIRS = 4
"""Below four pairs the standard error of a rank correlation is not defined."""

_Metric = Annotated[
    Callable[..., Any],
    WithJsonSchema({"type": "string", "description": "A metric, as module:function."}),
]


@parameters
class Calibration:
    """How a judge is held against a reference while a run goes on.

    Attributes:
        reference: A metric that is trusted: code, or a judge with another LM.
        share: Share of training rollouts that both judge.
        minimum: Pairs needed before anything is decided.
        threshold: Spearman's correlation that the lower end of its interval must reach.
        confidence: Level of that interval. Where the true correlation is 0.9, it takes about 35
            pairs to show 0.7, and 75 where it is 0.85 (80 % power): raise ``minimum`` to have them.
    """

    reference: _Metric
    share: Annotated[float, Field(gt=0, le=1)] = 0.05
    minimum: Annotated[int, Field(ge=LEAST_PAIRS)] = 20
    threshold: Annotated[float, Field(gt=-1, le=1)] = 0.7
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95

    def share_of(self, planned: int | None) -> float:
        """Return the share that a run judges by both.

        Args:
            planned: Training rollouts that it may buy, where known: a short run judges a larger
                share, so that the minimum is there by half of it.
        """
        return min(1.0, max(self.share, 2 * self.minimum / planned)) if planned else self.share


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """How well a judge agrees with its reference.

    Attributes:
        correlation: Spearman's rank correlation; ``None`` where it is not defined.
        low: Lower end of its interval; -1 where it is not defined.
        high: Upper end; 1 where it is not defined.
        n: Rollouts that both judged.
        threshold: What the correlation must reach.
        passed: Whether the lower end of its interval does.
        reason: One sentence with the figures.
    """

    correlation: float | None
    low: float
    high: float
    n: int
    threshold: float
    passed: bool
    reason: str

    def require(self) -> CalibrationResult:
        """Return it where it passed.

        Raises:
            CalibrationFailedError: It did not.
        """
        if not self.passed:
            raise CalibrationFailedError(self.reason, self)
        return self


class Calibrator:
    """Collects pairs of scores, and decides whether the judge may go on.

    Lives on a run's event loop. Pairs come in the order of updates, so what it decides follows from
    the journal alone; a run that goes on adds its pairs again.

    Args:
        calibration: The reference, and what agreement is needed.
        seed: The run's seed.
        planned: See :meth:`Calibration.share_of`.
    """

    def __init__(
        self, calibration: Calibration, *, seed: int = 0, planned: int | None = None
    ) -> None:
        self.calibration = calibration
        self.share = calibration.share_of(planned)
        self.pairs: list[tuple[float, float]] = []
        self._seed = seed
        self._decided = 0

    def chosen(self, *place: str | int) -> bool:
        """Return whether a rollout is in the sample, by the seed and its place alone.

        ``place`` identifies the rollout, for example by candidate, example and replicate.
        """
        return derive(self._seed, "calibration", *place).random() < self.share

    def judge(self, example: object, prediction: object) -> float:
        """Return the reference's score of a rollout.

        It may call an LM: run it in a worker thread, and write the score to the journal.

        Raises:
            CalibrationFailedError: The reference raised, or gave no score.
            LMError: The service failed: try again.
        """
        try:
            output = self.calibration.reference(example, prediction, None, None, None)
            score = float(output.score if hasattr(output, "score") else output)
        except LMError:
            raise
        except Exception as error:
            reason = f"its reference raised {type(error).__name__}: {error}"
            raise CalibrationFailedError(reason) from error
        if not math.isfinite(score):
            raise CalibrationFailedError(f"its reference gave the score {score}")
        return score

    def add(self, judged: float, reference: float) -> None:
        """Add the scores of a rollout by the judge and by its reference."""
        self.pairs.append((judged, reference))

    def decide(self, *, final: bool = False) -> CalibrationResult | None:
        """Decide at the minimum of pairs, each time their number has doubled, and at the end.

        Only an interval that lies below the threshold as a whole ends a run: else more pairs may
        decide. While the reference gives all rollouts the same score there is nothing to rank, and
        the decision waits for the end.

        Args:
            final: Whether no more rollouts will come.

        Returns:
            The result; ``None`` where no decision was due. What has not passed at the end supports
            no claim.

        Raises:
            CalibrationFailedError: Judge and reference do not agree.
        """
        n, settings = len(self.pairs), self.calibration
        if final and n < LEAST_PAIRS:
            reason = (
                f"the run has ended with {n} rollouts judged by both, at least {LEAST_PAIRS} are"
                " needed"
            )
            return CalibrationResult(None, -1.0, 1.0, n, settings.threshold, False, reason)
        is_ranked = len({reference for _, reference in self.pairs}) != 1
        due = final or (is_ranked and n >= max(settings.minimum, 2 * self._decided))
        if not due or (n == self._decided and not final):
            return None
        self._decided = n
        result = calibrate(self.pairs, threshold=settings.threshold, confidence=settings.confidence)
        return result.require() if result.high < settings.threshold else result


def calibrate(
    pairs: Sequence[tuple[float, float]], *, threshold: float = 0.7, confidence: float = 0.95
) -> CalibrationResult:
    """Return Spearman's rank correlation of two ways of judging, with its interval.

    Ranks are what a search acts on, so scales may differ. The interval is Fisher's z with the
    variance (1 + r²/2)/(n − 3) (Bonett and Wright, Psychometrika 65, 2000). A perfect rank order
    has no finite z: the interval is then that of an order with one pair of neighbours exchanged.
    The interval's lower end is compared with the threshold: the correlation of a few pairs is often
    far above the true one. Where one of the two gives all rollouts one score nothing is ranked:
    that fails.

    Args:
        pairs: ``(judge's score, reference's score)``, at least four, in any order.
        threshold: What must be reached.
        confidence: Level of the interval.

    Raises:
        ArgumentValueError: There are fewer than four pairs, or a score is not finite.
    """
    n = len(pairs)
    if n < LEAST_PAIRS or not all(math.isfinite(score) for pair in pairs for score in pair):
        remedy = f"Judge at least {LEAST_PAIRS} rollouts by both, and leave out what is no number."
        raise ArgumentValueError(
            "pairs", n, "are too few, or hold a score that cannot be ranked", remedy
        )
    first, second = zip(*pairs, strict=True)
    constant = [
        name for name, of in (("the judge", first), ("the reference", second)) if len(set(of)) == 1
    ]
    if constant:
        reason = (
            f"{' and '.join(constant)} gave all {n} rollouts one score, so no rank correlation"
            " exists"
        )
        return CalibrationResult(None, -1.0, 1.0, n, threshold, False, reason)
    from scipy.stats import norm, spearmanr

    # Rounded where sums of ranks leave a perfect order a hair off 1.
    correlation = round(max(-1.0, min(1.0, float(spearmanr(first, second).statistic))), 12)
    bound = 1 - 12 / (n * (n**2 - 1))
    within = max(-bound, min(bound, correlation))
    half = float(norm.ppf(0.5 + confidence / 2)) * math.sqrt((1 + within**2 / 2) / (n - 3))
    low, high = (
        min(correlation, math.tanh(math.atanh(within) - half)),
        max(correlation, math.tanh(math.atanh(within) + half)),
    )
    reason = (
        f"Spearman's correlation with the reference is {correlation:.3f} ({confidence:.0%} interval"
        f" {low:.3f} to {high:.3f}) over {n} rollouts, whose lower end must be {threshold:g}"
    )
    return CalibrationResult(correlation, low, high, n, threshold, low >= threshold, reason)
