"""What a run does against collapse, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, cast

from pydantic import Field

from combee_dspy import registry
from combee_dspy.diversity._base import Embedder
from combee_dspy.diversity._restart import Restart
from combee_dspy.diversity._temperature import Temperature
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.strategies import parameters

__all__ = ["Diversity"]


@parameters
class Diversity:
    """What a run does against collapse: no near copies, and where asked for a temperature schedule and restarts.

    Attributes:
        embedder: A name, a mapping ``{"name": …, "params": {…}}``, or an :class:`Embedder`;
            ``None`` compares nothing.
        threshold: Similarity above which a candidate is refused. ``None`` takes the embedder's own.
        recent: How many of the latest candidates a new one is compared with, besides its parent. A
            repeated text is refused whatever its age.
        max_draws: Draws for one child, the first included. Each draw after a
            refusal takes another operator; after the last one no child is made.
        temperature: The proposer's temperature schedule; ``None`` leaves the LM's own.
        restart: When to start again from the seed's text; ``None`` never does.
    """

    embedder: str | Mapping[str, Any] | Embedder | None = "char-ngrams"
    threshold: Annotated[float, Field(gt=0, lt=1)] | None = None
    recent: Annotated[int, Field(ge=1)] = 32
    max_draws: Annotated[int, Field(ge=1)] = 3
    temperature: Temperature | None = None
    restart: Restart | None = None

    @classmethod
    def off(cls) -> Diversity:
        """Return the options that do nothing: every draw is proposed."""
        return cls(embedder=None, max_draws=1)

    def build_embedder(self) -> tuple[Embedder, float] | None:
        """Return the embedder and the threshold that belongs to it; ``None`` where nothing is compared.

        Raises:
            ArgumentError: It is no embedder, not installed, or has no known threshold and none was given.
            PluginError: It is installed but cannot be loaded.
        """
        if self.embedder is None:
            return None
        embedder = cast("Embedder", registry.resolve("embedder", self.embedder))
        threshold = embedder.threshold() if self.threshold is None else self.threshold
        if threshold is None:
            remedy = "Measure it once: calibrate_threshold(embedder, lessons), and give Diversity(threshold=…)."
            raise ArgumentValueError("Diversity.threshold", None, f"is not known for {embedder!r}", remedy)
        return embedder, threshold
