"""How often a diagnosis of serial search is wrong: of searches whose truth is known, by the
function of real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from combee_bench.options import DiagnoseOptions
from combee_bench.tables import by_rows
from combee_dspy.streams import derive_seed
from combee_strategist.planning import Curve, diagnose

__all__ = ["DiagnosisRates", "curve", "line", "run", "table"]

_VERDICTS = ("converged", "rising", "flat", "undecided")
_KINDS: Mapping[str, tuple[str, Callable[[float], float]]] = {
    "converged": ("converged", lambda x: 0.4 + 0.25 * (1 - float(np.exp(-10 * x)))),
    "rising": ("rising", lambda x: 0.4 + 0.25 * x),
    "flat": ("flat", lambda x: 0.4),
    "noisy": ("undecided", lambda x: 0.4 + 0.25 * (1 - float(np.exp(-10 * x)))),
}
_NOISY_ROWS, _NOISY_LUCK = 20, 0.4
_VALIDATED, _ROLLOUTS = 31, 1_200


@dataclass(frozen=True, slots=True)
class DiagnosisRates:
    """What was said of searches of one kind.

    Attributes:
        kind: What they are.
        right: What should be said.
        said: How often each verdict was given.
    """

    kind: str
    right: str
    said: Mapping[str, int]

    @property
    def wrong(self) -> float:
        """Share of the searches of which something else was said."""
        return 1 - self.said[self.right] / sum(self.said.values())


def curve(kind: str, options: DiagnoseOptions, seed: int) -> Curve:
    """Return one simulated search."""
    generator = np.random.default_rng(derive_seed(seed, "diagnose", kind))
    rows, luck = (_NOISY_ROWS, _NOISY_LUCK) if kind == "noisy" else (options.rows, options.luck)
    # An example is answered by texts above its difficulty, but for what a coin decides, with the
    # same mean.
    difficulty = generator.random(rows)
    scores = []
    for place in np.linspace(0, 1, _VALIDATED):
        level = _KINDS[kind][1](float(place))
        coin = generator.random(rows) < luck
        scores.append(
            tuple(map(float, np.where(coin, generator.random(rows) < level, difficulty < level)))
        )
    step = _ROLLOUTS // _VALIDATED
    return Curve(
        tuple(step * (one + 1) for one in range(_VALIDATED)),
        tuple(scores),
        _ROLLOUTS,
        (),
        f"{kind} {seed}",
    )


def run(options: DiagnoseOptions) -> Iterator[DiagnosisRates]:
    """Diagnose every kind in turn."""
    for kind, (right, _) in _KINDS.items():
        said: list[str] = [
            diagnose(curve(kind, options, seed), seed=seed).verdict for seed in options.seeds
        ]
        yield DiagnosisRates(kind, right, {one: said.count(one) for one in _VERDICTS})


def line(options: DiagnoseOptions, row: DiagnosisRates) -> str:
    """Return what is said of one kind when it is counted."""
    return f"{row.kind}: {row.wrong:.0%} wrong"


def table(options: DiagnoseOptions, rows: Sequence[DiagnosisRates]) -> Table:
    """Return one line a kind."""
    cells = [
        (one.kind, one.right, *(str(one.said[name]) for name in _VERDICTS), f"{one.wrong:.0%}")
        for one in rows
    ]
    title = f"What combee diagnose says of {len(options.seeds)} simulated searches of each kind"
    return by_rows(title, ("<search", "<right is", *_VERDICTS, "wrong"), cells)
