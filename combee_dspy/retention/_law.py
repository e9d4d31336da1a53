"""How much one call keeps of what it is given: the law of one call, and what was measured of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Floats", "RetentionFit", "RetentionLaw", "RetentionLaws", "RetentionSample", "keep_probabilities"]

Floats = npt.NDArray[np.float64]

_EDGE = 1e-9


@dataclass(frozen=True, slots=True)
class RetentionSample:
    """One call, and what it kept.

    Attributes:
        items: m, the different things the call was given.
        kept: How many of those looked at its answer holds.
        total: How many were looked at; more than ``items`` where several reflections share one.
        copies: In how many places of the input each of those stands.
        lines: All entries of the input, copies included; 0 for ``items`` · ``copies``.
    """

    items: int
    kept: int
    total: int
    copies: int = 1
    lines: int = 0

    @property
    def entries(self) -> int:
        """All entries of the input."""
        return self.lines or self.items * self.copies


@dataclass(frozen=True, slots=True)
class RetentionLaw:
    """The probability that one call keeps one of the things it is given.

    The simplest law that bends where prompts get crowded. A call takes in
    ``reads`` of its M entries, whichever, and puts out ``writes`` of the D
    different things it took in, whichever; each of them goes through with
    probability ``rate``:

        q = rate · (1 − Π_{j<x} (M − reads − j) / (M − j)) · min(1, writes / D)

    for a thing with x entries, with each factor of the product kept within
    [0, 1]. For x = 1 that is rate · min(1, c / m) with c the lower of the two
    limits: what is kept grows with the input up to c, then stays. Copies raise
    the odds of being read, not of being written.

    The form is an assumption; :func:`combee_dspy.retention.fit_retention` says whether the calls
    that were measured contradict it.

    Attributes:
        rate: Probability below the limits, 0 to 1.
        reads: Entries taken in, above 0; infinite for no limit.
        writes: Different things put out, above 0; infinite for no limit.
    """

    rate: float = 1.0
    reads: float = math.inf
    writes: float = math.inf

    def q(self, items: float, copies: int = 1) -> float:
        """Return the probability of keeping one of ``items`` different things with ``copies`` entries each."""
        return float(
            keep_probabilities(np.array([[self.rate, self.reads, self.writes]]), *_columns(items, copies))[0, 0]
        )

    def read(self, entries: float, copies: int) -> float:
        """Return the probability that a thing with ``copies`` of all ``entries`` is taken in."""
        return float(_read(np.array([[self.reads]]), np.array([[entries]]), copies)[0, 0])


@dataclass(frozen=True, slots=True)
class RetentionFit:
    """A law fitted to calls, with what is known about it.

    Attributes:
        law: The likeliest law.
        replicates: Laws fitted to parametric bootstrap samples, for intervals.
        largest: Most entries of any call that was measured. What the law says beyond is a
            guess on the careful side: no limit is taken to lie higher.
        dispersion: Variance between calls over that of independent draws, at least 1.
        misfit: p-value of the deviance from the best law that has a q for each size of its
            own; below 0.01 the law's form is contradicted. ``None`` with too few sizes to tell.
        calls: Calls that were measured.
    """

    law: RetentionLaw
    replicates: tuple[RetentionLaw, ...]
    largest: int
    dispersion: float
    misfit: float | None
    calls: int

    def interval(self, items: int, copies: int = 1) -> tuple[float, float]:
        """Return the 95 % interval of q at a size."""
        values = [law.q(items, copies) for law in self.replicates]
        low, high = np.quantile(values, (0.025, 0.975))
        return float(low), float(high)


@dataclass(frozen=True, slots=True)
class RetentionLaws:
    """The two kinds of call in a scan.

    Attributes:
        reads: Calls over reflections.
        merges: Calls over lists of lessons.
    """

    reads: RetentionFit
    merges: RetentionFit


def _columns(items: float, copies: int) -> tuple[Floats, Floats, tuple[int, ...]]:
    return np.array([items], dtype=float), np.array([items * copies], dtype=float), (copies,)


def keep_probabilities(laws: Floats, items: Floats, entries: Floats, copies: Sequence[int]) -> Floats:
    """Return q of many sizes under many laws.

    Args:
        laws: One row a law: rate, reads, writes.
        items: m of each size.
        entries: All entries of each size.
        copies: Entries of each thing, of each size.

    Returns:
        One row a law, one column a size.
    """
    read = np.zeros((len(laws), len(items)))
    for count in sorted(set(copies)):
        chosen = np.array([one == count for one in copies])
        read[:, chosen] = _read(laws[:, 1:2], entries[None, chosen], count)
    taken = np.maximum(items[None, :] * read, _EDGE)
    result: Floats = laws[:, 0:1] * read * np.minimum(1.0, laws[:, 2:3] / taken)
    return result


def _read(reads: Floats, entries: Floats, copies: int) -> Floats:
    """Return the probability that at least one of so many entries is among those that a call takes in."""
    missed = np.ones(np.broadcast_shapes(reads.shape, entries.shape))
    for number in range(copies):
        left = np.maximum(entries - number, _EDGE)
        missed = missed * np.clip((entries - reads - number) / left, 0.0, 1.0)
    result: Floats = 1.0 - missed
    return result
