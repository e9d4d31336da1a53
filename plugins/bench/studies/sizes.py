"""Which batch size the controller picks, by laws or recorded runs, and what hangs on τ."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from combee_bench.options import AboveZero, Count, Rate, Scale
from combee_dspy.controllers import BatchView, PowerLaw
from combee_dspy.controllers._fits import DelayLaw
from combee_dspy.events import UpdateEnded
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.journal import Reader, RunHistory, journal_file
from combee_dspy.records import Measurement
from combee_dspy.strategies import parameters
from combee_dspy.streams import derive

_PAPER = "84, 94, 80 and 64"
_LADDER = (10, 20, 40, 80, 160, 320)
_SECONDS = 100.0
"""Of one update of ten examples, without what a floor adds: sizes do not depend on it."""


@parameters
class SizesOptions:
    """Which batch size the controller picks, by laws or recorded runs, and what hangs on τ.

    Args:
        taus: τ, by comma, each a share of the law's slope at the base.
        alphas: Exponents of the laws, by comma.
        floors: Floors of the laws, by comma: shares of an epoch at ten examples a batch that no
            size saves.
        base: The size whose slope is the reference.
        examples: Training examples: N.
        noise: Standard deviation of the log of a delay.
        log_dirs: Folders of recorded runs, by comma, whose delays are taken as well.
        seed: Seed of the noise.
    """

    taus: tuple[AboveZero, ...] = (
        0.004,
        0.008,
        0.016,
        0.032,
        0.064,
    )
    alphas: tuple[AboveZero, ...] = (0.3, 0.5, 0.7, 0.84, 1.0)
    floors: tuple[Rate, ...] = (0.0, 0.1)
    base: Count = 10
    examples: Count = 1000
    noise: Scale = 0.05
    log_dirs: tuple[str, ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Pick:
    """What one τ picks: plateau in examples, what the bounds leave of it, seconds of an epoch.

    ``seconds`` are by the true law, or by the one fitted to what was recorded.
    """

    relative_tau: float
    plateau: float
    size: int
    seconds: float

    def __str__(self) -> str:
        return f"τ {self.relative_tau:.1%}: {self.plateau:,.0f} ({self.seconds:,.0f} s)"


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
        updates = [entry.event for entry in RunHistory(reader).entries(UpdateEnded)]
    return [Measurement(update.rows, update.seconds) for update in updates if not update.skipped]


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
