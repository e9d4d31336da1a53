"""What a run does against collapse: no near copies, a temperature schedule, restarts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

from pydantic import Field

from combee_dspy import registry
from combee_dspy.diversity._embedders import Embedder
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.strategies import parameters

Degrees = Annotated[float, Field(ge=0, le=2)]
Share = Annotated[float, Field(gt=0, le=1)]


@parameters
class Temperature:
    """The proposer's sampling temperature by update, raised while the search stands still.

    In ``updates`` updates it goes from ``start`` to ``end`` along half a cosine (Loshchilov and
    Hutter 2017, "SGDR", equation 5), and stays there. Each update without progress beyond
    ``patience`` adds ``raise_by``, up to ``highest``.

    Not used unless asked for: some models take no temperature, and a cached answer is asked for
    again only at another temperature.

    Example:
        >>> from combee_dspy.diversity import Temperature
        >>> Temperature(start=1.0, end=0.5, updates=3).at(1)
        0.75
    """

    start: Degrees = 1.0
    end: Degrees = 0.7
    updates: Annotated[int, Field(ge=1)] = 20
    raise_by: Degrees = 0.1
    patience: Annotated[int, Field(ge=0)] = 2
    highest: Degrees = 1.3

    def __post_init__(self) -> None:
        if self.highest < max(self.start, self.end):
            remedy = "Raise it, or lower start and end."
            raise ArgumentValueError(
                "Temperature.highest", self.highest, "is below start or end", remedy
            )

    def at(self, update: int, stale: int = 0) -> float:
        """Return the temperature of an update, from 0. Pure.

        ``stale``: updates since the best validation score last rose.
        """
        part = min(update / (self.updates - 1), 1.0) if self.updates > 1 else 1.0
        planned = self.start + (self.end - self.start) * (1 - math.cos(math.pi * part)) / 2
        return min(planned + self.raise_by * max(stale - self.patience, 0), self.highest)


@dataclass(frozen=True, slots=True)
class UpdateView:
    """What one finished update left behind.

    Attributes:
        best_score: Best mean validation score so far.
        restarted: Whether this update's children were made from the seed's text.
    """

    best_score: float
    restarted: bool = False


@parameters
class Restart:
    """Starts the next children from the seed's text when the search has run dry.

    It does when for ``patience`` updates in a row the best mean validation score has risen by less
    than ``min_progress`` in all. The best candidates stay in the pool, so nothing that was learned
    is lost. After a restart the count begins anew: never twice within ``patience`` updates.

    Example:
        >>> from combee_dspy.diversity import Restart, UpdateView
        >>> Restart(patience=1).due([UpdateView(0.5), UpdateView(0.5)])
        'the best validation score rose by 0.0000 in 1 updates, less than 0.005'
    """

    patience: Annotated[int, Field(ge=1)] = 5
    min_progress: Share = 0.005

    def due(self, history: Sequence[UpdateView]) -> str | None:
        """Return the reason to start again, or ``None``, from every finished update. Pure."""
        since = next((n for n in range(len(history) - 1, -1, -1) if history[n].restarted), 0)
        # The update that was restarted is the first one of a new search.
        if len(history) - since < self.patience:
            return None
        before = len(history) - self.patience - 1
        if before < 0:
            return None
        progress = history[-1].best_score - history[before].best_score
        if progress >= self.min_progress:
            return None
        return (
            f"the best validation score rose by {progress:.4f} in {self.patience} updates,"
            f" less than {self.min_progress:g}"
        )


@parameters
class Diversity:
    """What a run does against collapse, in one place.

    Example:
        >>> from combee_dspy.diversity import Diversity
        >>> embedder, threshold = Diversity(recent=16).build_embedder()
        >>> threshold
        0.728

    Attributes:
        embedder: A name, a mapping ``{"name": …, "params": {…}}``, or an :class:`Embedder`;
            ``None`` compares nothing.
        threshold: Similarity above which a candidate is refused. ``None`` takes the embedder's own.
        recent: How many of the latest candidates a new one is compared with, besides its parent. A
            repeated text is refused whatever its age.
        temperature: The proposer's temperature schedule; ``None`` leaves the LM's own.
        restart: When to start again from the seed's text; ``None`` never does.
    """

    embedder: str | Mapping[str, Any] | Embedder | None = "char-ngrams"
    threshold: Annotated[float, Field(gt=0, lt=1)] | None = None
    recent: Annotated[int, Field(ge=1)] = 32
    temperature: Temperature | None = None
    restart: Restart | None = None

    @classmethod
    def off(cls) -> Diversity:
        """Return the options that do nothing: every draw is proposed."""
        return cls(embedder=None)

    def build_embedder(self) -> tuple[Embedder, float] | None:
        """Return the embedder and its threshold; ``None`` where nothing is compared.

        Raises:
            ArgumentError: It is no embedder, not installed, or has no known threshold and none was
                given.
            PluginError: It is installed but cannot be loaded.
        """
        if self.embedder is None:
            return None
        embedder = cast("Embedder", registry.resolve("embedder", self.embedder))
        threshold = embedder.threshold() if self.threshold is None else self.threshold
        if threshold is None:
            remedy = (
                "Measure it once: calibrate_threshold(embedder, lessons), and give"
                " Diversity(threshold=…)."
            )
            raise ArgumentValueError(
                "Diversity.threshold", None, f"is not known for {embedder!r}", remedy
            )
        return embedder, threshold
