"""The cost of each held-out point above the result of serial optimization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from combee_dspy.evaluation._compare import PairedDifference
from combee_dspy.strategies import parameters

_FORMS = {
    "rollouts": "{:,.1f} rollouts",
    "tokens": "{:,.0f} tokens",
    "dollars": "${:,.4f}",
    "gpu_seconds": "{:,.1f} GPU-seconds",
    "seconds": "{:,.1f} s",
}
_Known = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@parameters
class SerialBaseline:
    """What serial optimization of the same program came to, such as ``dspy.GEPA`` until it got no
    better.

    Attributes:
        score: Held-out score of its result, on the rows of this study and by its metric.
        rollouts: Rollouts of its search; ``None`` where it is not known, as below.
        tokens: Tokens of its search.
        dollars: Dollars of its search.
        gpu_seconds: GPU-seconds of its search.
        seconds: Wall-clock seconds of its search.
    """

    score: Annotated[float, Field(allow_inf_nan=False)]
    rollouts: _Known | None = None
    tokens: _Known | None = None
    dollars: _Known | None = None
    gpu_seconds: _Known | None = None
    seconds: _Known | None = None


@dataclass(frozen=True, slots=True)
class CostPerPoint:
    """What a search has paid for a held-out point above a serial baseline: its whole cost by the
    points.

    The search need not run the baseline first, so the baseline's cost is no part of it; nor is the
    reading of the held-out set. A point is a hundredth of the perfect score.

    Attributes:
        baseline: What it is set against.
        points: How many points the result is above it; 0 or less where it is not.
        rollouts: Rollouts a point; ``None`` where the result is not above, or the cost is not
            known, as below.
        tokens: Tokens a point.
        dollars: Dollars a point.
        gpu_seconds: GPU-seconds a point.
        seconds: Wall-clock seconds a point.
        versus: The result minus the baseline's result on the same held-out rows; ``None`` where the
            baseline is figures that somebody gave, or was measured with other models.
        margin: How much worse than the baseline still counts as no worse, in score units.
        faster: How many times faster the search was, measured; stated only beside ``versus``: see
            :attr:`speedup`.
    """

    baseline: SerialBaseline
    points: float
    rollouts: float | None = None
    tokens: float | None = None
    dollars: float | None = None
    gpu_seconds: float | None = None
    seconds: float | None = None
    versus: PairedDifference | None = None
    margin: float = 0.02
    faster: float | None = None

    @classmethod
    def of(
        cls,
        baseline: SerialBaseline,
        score: float,
        spent: SerialBaseline,
        *,
        point: float,
        versus: PairedDifference | None = None,
        margin: float = 0.02,
    ) -> CostPerPoint:
        """Return the cost per point of a search.

        Args:
            baseline: What it is set against.
            score: Held-out score of its result.
            spent: What the search cost.
            point: How much of a score one point is.
            versus: The two results on the same held-out rows, where both were measured.
            margin: Of non-inferiority, in score units.
        """
        points = (score - baseline.score) / point
        faster = baseline.seconds / spent.seconds if baseline.seconds and spent.seconds else None
        costs = {name: getattr(spent, name) for name in _FORMS} if points > 0 else {}
        return cls(
            baseline,
            points,
            **{name: None if cost is None else cost / points for name, cost in costs.items()},
            versus=versus,
            margin=margin,
            faster=faster,
        )

    @property
    def speedup(self) -> float | None:
        """How many times faster, where the result is shown to be no more than the margin worse;
        else ``None``.
        """
        return self.faster if self.versus is not None and self.versus.low > -self.margin else None

    def __str__(self) -> str:
        """Return it as one sentence, the baseline's own cost and what guards its speed with it."""
        own = _write_costs(self.baseline)
        above = f"the serial baseline's {self.baseline.score:.3f}{f' ({own})' if own else ''}"
        if self.points <= 0:
            text = f"{self.points:+.1f} points against {above}: it bought none above it"
        else:
            dollars = "" if self.dollars is not None else ", dollars unknown"
            text = (
                f"{self.points:+.1f} points over {above}, at {_write_costs(self)}{dollars} a point"
            )
        return f"{text}; {self.guarded}"

    @property
    def guarded(self) -> str:
        """The speed beside the guarantee that it needs, or why none is stated."""
        if self.versus is None:
            return (
                "the baseline was given and not measured here on the same rows, so no speed is"
                " stated"
            )
        interval = (
            f"paired {self.versus.low:+.3f} to {self.versus.high:+.3f},"
            f" {self.versus.confidence:.0%} interval"
        )
        if self.versus.low <= -self.margin:
            return (
                f"no speed is stated: held-out may be more than {self.margin:g} worse ({interval})"
            )
        speed = "" if self.faster is None else f"{self.faster:.3g} times as fast, "
        return f"{speed}held-out no more than {self.margin:g} worse ({interval})"


def _write_costs(costs: SerialBaseline | CostPerPoint) -> str:
    costs_by_name = {name: getattr(costs, name) for name in _FORMS}
    return ", ".join(
        _FORMS[name].format(cost) for name, cost in costs_by_name.items() if cost is not None
    )
