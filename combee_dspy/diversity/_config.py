"""What a run does against collapse, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from combee_dspy import registry
from combee_dspy.diversity._base import Embedder
from combee_dspy.diversity._calibration import calibrate_threshold
from combee_dspy.diversity._guard import SimilarityGuard
from combee_dspy.diversity._restart import Restart
from combee_dspy.diversity._schedule import TemperatureSchedule
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError

__all__ = ["Diversity"]


@dataclass(frozen=True, slots=True)
class Diversity:
    """What a run does against collapse: a guard, and where asked for a temperature schedule and restarts.

    Attributes:
        embedder: A name, a spec, or an :class:`Embedder`; ``None`` switches the guard off.
        threshold: Similarity above which a candidate is refused, in (0, 1).
            ``None`` takes the embedder's calibrated one, or measures it before the run.
        top_k: How many of the best candidates on validation a new one is compared with, at least 1.
        max_draws: Draws for one child, the first included, at least 1. Each draw
            after a refusal takes another operator; after the last one no child is made.
        temperature: The proposer's temperature schedule; ``None`` leaves the LM's own.
        restart: When to start again from the seed's text; ``None`` never does.
    """

    embedder: str | Mapping[str, Any] | registry.Spec | Embedder | None = "char-ngrams"
    threshold: float | None = None
    top_k: int = 4
    max_draws: int = 3
    temperature: TemperatureSchedule | None = None
    restart: Restart | None = None

    @classmethod
    def off(cls) -> Diversity:
        """Return the config that does nothing: every draw is proposed."""
        return cls(embedder=None)

    @property
    def guards(self) -> bool:
        """Whether candidates are compared at all."""
        return self.embedder is not None

    def validate(self) -> None:
        """Check the fields, before anything is spent.

        Raises:
            ArgumentTypeError: A field has a type that cannot be used.
            ArgumentValueError: A field is out of its range, or the embedder is not installed.
            PluginError: The embedder is installed but cannot be loaded.
        """
        self._check_threshold()
        for name in ("top_k", "max_draws"):
            value = getattr(self, name)
            if type(value) is not int:
                raise ArgumentTypeError(f"diversity.{name}", value, "is no whole number", "Give 1 or more.")
            if value < 1:
                raise ArgumentValueError(f"diversity.{name}", value, "is below 1", "Diversity.off() compares nothing.")
        for name, kind in (("temperature", TemperatureSchedule), ("restart", Restart)):
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise ArgumentTypeError(f"diversity.{name}", value, f"is no {kind.__name__}", "Or leave it out.")
            if value is not None:
                value.validate()
        if self.guards:
            self.build_embedder().validate()

    def _check_threshold(self) -> None:
        if self.threshold is None:
            return
        remedy = "Leave it out for the embedder's calibrated one."
        if isinstance(self.threshold, bool) or not isinstance(self.threshold, (int, float)):
            raise ArgumentTypeError("diversity.threshold", self.threshold, "is no number", remedy)
        if not 0 < self.threshold < 1:
            raise ArgumentValueError("diversity.threshold", self.threshold, "is not in (0, 1)", remedy)

    def build_embedder(self) -> Embedder:
        """Return the embedder.

        Raises:
            ArgumentTypeError: It is no embedder, or there is none to build.
            UnknownStrategyError: Nothing is installed under its name.
            PluginError: It is installed but cannot be loaded.
        """
        return cast("Embedder", registry.resolve("embedder", self.embedder))

    def guard(self, *, seed: int = 0) -> SimilarityGuard | None:
        """Return the guard, or ``None`` where it is switched off.

        Where no threshold is given and the embedder knows none for its
        parameters, it is measured here: seconds for hashed n-grams, about 1,700
        short texts for a service.

        Args:
            seed: Seed of the calibration.

        Raises:
            ArgumentError: A field cannot be used.
            PluginError: The embedder cannot be loaded.
        """
        if not self.guards:
            return None
        self.validate()
        embedder = self.build_embedder()
        threshold = self.threshold if self.threshold is not None else embedder.threshold()
        if threshold is None:
            threshold = calibrate_threshold(embedder, seed=seed).threshold
        return SimilarityGuard(embedder, threshold)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data for the run's log. Raises what :meth:`build_embedder` raises."""
        embedder = registry.Spec.of(self.build_embedder()).to_dict() if self.guards else None
        schedule, restart = self.temperature, self.restart
        return {
            "embedder": embedder,
            "threshold": self.threshold,
            "top_k": self.top_k,
            "max_draws": self.max_draws,
            "temperature": None if schedule is None else {name: getattr(schedule, name) for name in _SCHEDULE},
            "restart": None if restart is None else {name: getattr(restart, name) for name in _RESTART},
        }


_SCHEDULE = ("start", "end", "iterations", "shape", "raise_by", "patience", "highest")
_RESTART = ("patience", "min_progress", "min_diversity")
