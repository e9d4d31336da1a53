"""Which batch size the controller picks, by delays of stated laws or of recorded runs, and how much
hangs on τ.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table

from combee_bench.options import SizesOptions
from combee_bench.tables import by_rows
from combee_dspy.controllers import BatchView, PowerLaw
from combee_dspy.controllers._fits import DelayLaw
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.journal import Reader, journal_file
from combee_dspy.records import Measurement
from combee_dspy.streams import derive

__all__ = ["Pick", "SizesRow", "line", "run", "table"]

_PAPER = "84, 94, 80 and 64"
_LADDER = (10, 20, 40, 80, 160, 320)
_SECONDS = 100.0
"""Of one update of ten examples, without what a floor adds: sizes do not depend on it."""


@dataclass(frozen=True, slots=True)
class Pick:
    """What is picked at one τ: plateau in examples, what the bounds leave of it, and seconds of an
    epoch there.

    ``seconds`` are by the true law, or by the one fitted to what was recorded.
    """

    relative_tau: float
    plateau: float
    size: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SizesRow:
    """Delays of one origin.

    Attributes:
        origin: The law, or the folder of the run.
        exponent: α as it was fitted.
        floor: B as it was fitted, as a share of an epoch of ten examples a batch; 0 where no floor
            was found.
        picks: What is picked at each τ.
    """

    origin: str
    exponent: float
    floor: float
    picks: tuple[Pick, ...]


def run(options: SizesOptions) -> Iterator[SizesRow]:
    """Pick sizes by each law, then by what each run recorded.

    Raises:
        ArgumentValueError: A run has too few sizes to fit a law to.
    """
    for floor in options.floors:
        for exponent in options.alphas:
            ten = _SECONDS * options.examples / 10

            def delay(
                size: float, ten: float = ten, exponent: float = exponent, floor: float = floor
            ) -> float:
                return ten * ((1 - floor) * (size / 10) ** -exponent + floor)

            stream = derive(options.seed, "sizes", f"{exponent}/{floor}")
            measured = [
                Measurement(
                    size,
                    delay(size)
                    * size
                    / options.examples
                    * math.exp(stream.gauss(0, options.noise)),
                )
                for size in _LADDER * 2
            ]
            yield _row(f"α {exponent:g}, floor {floor:.0%}", measured, options, delay)
    for folder in options.log_dirs:
        yield _row(folder, _recorded(folder), options, None)


def _recorded(folder: str) -> list[Measurement]:
    with Reader(journal_file(folder)) as reader:
        found = [
            json.loads(row["data"])
            for row in reader.rows("SELECT data FROM event WHERE kind = 'update'", ())
        ]
    return [Measurement(one["rows"], one["seconds"]) for one in found if not one["skipped"]]


def _row(
    origin: str,
    measured: Sequence[Measurement],
    options: SizesOptions,
    delay: Callable[[float], float] | None,
) -> SizesRow:
    picks: list[Pick] = []
    for share in options.taus:
        # As after the first epoch, with nothing in the way but the updates that an epoch keeps.
        view = BatchView(
            len(measured),
            options.examples,
            options.examples,
            tuple(measured),
            workers=options.examples,
        )
        decision = PowerLaw(relative_tau=share, base=options.base).plan(view)
        if decision.fit is None:
            raise ArgumentValueError(
                "log_dirs", origin, decision.reason, "Name a run with sizes that differ."
            )
        law = DelayLaw(decision.fit.scale, decision.fit.exponent, decision.fit.floor)
        size = max(1.0, decision.fit.plateau)
        picks.append(
            Pick(share, size, decision.size, law.delay(size) if delay is None else delay(size))
        )
    return SizesRow(origin, law.exponent, law.floor / law.delay(10), tuple(picks))


def line(options: SizesOptions, row: SizesRow) -> str:
    """Return what is said of one row when it is there."""
    return (
        f"{row.origin}: α {row.exponent:.2f} fitted, sizes"
        f" {', '.join(f'{one.plateau:.0f}' for one in row.picks)}"
    )


def table(options: SizesOptions, rows: Sequence[SizesRow]) -> Table:
    """Return one line a law or run, one column a τ."""
    heads = ["<delays", "α fitted", "floor fitted", *(f"τ {share:.1%}" for share in options.taus)]
    shown = [
        (
            row.origin,
            f"{row.exponent:.2f}",
            f"{row.floor:.0%}",
            *(f"{one.plateau:,.0f} ({one.seconds:,.0f} s)" for one in row.picks),
        )
        for row in rows
    ]
    notes = [
        "examples a batch before the bounds, and seconds of an epoch at that size",
        (
            f"τ is a share of the slope at b₀ = {options.base}; the paper reports picks of {_PAPER}"
            " at 1.6 %"
        ),
        f"N / 4 would cut what is above {options.examples // 4} of {options.examples}",
        (
            "laws: T(bs) = T(10)·((1 − floor)·(bs/10)^(−α) + floor), each delay ×"
            f" lognormal({options.noise:g})"
        ),
    ]
    return by_rows(
        "The controller's sizes; laws are assumed, runs are recorded", heads, shown, notes
    )
