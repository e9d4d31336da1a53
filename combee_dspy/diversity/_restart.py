"""When to start again from the seed's text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError

__all__ = ["IterationView", "Restart"]


@dataclass(frozen=True, slots=True)
class IterationView:
    """What one finished iteration left behind.

    Attributes:
        iteration: Its number, from 1.
        best_score: Best mean validation score so far.
        front_similarity: Mean pairwise similarity of the best candidates, 0 to 1; ``None`` where it was not measured.
        restarted: Whether this iteration's children were made from the seed's text.
    """

    iteration: int
    best_score: float
    front_similarity: float | None = None
    restarted: bool = False


@dataclass(frozen=True, slots=True)
class Restart:
    """Starts the next children from the seed's text when the search has run dry.

    It does when for ``patience`` iterations in a row the best validation score
    has risen by less than ``min_progress`` in all, or the front's diversity
    (1 − mean pairwise similarity) has been below ``min_diversity`` in each. The
    best candidates stay in the pool, so nothing that was learned is lost. After
    a restart the count begins anew: never twice within ``patience`` iterations.

    Attributes:
        patience: Iterations, at least 1.
        min_progress: Rise of the best mean validation score over ``patience``
            iterations, above 0; ``None`` to look at diversity alone.
        min_diversity: 0 to 1, above 0; ``None`` to look at progress alone.
    """

    patience: int = 5
    min_progress: float | None = 0.005
    min_diversity: float | None = 0.1

    def validate(self) -> None:
        """Check the fields.

        Raises:
            ArgumentTypeError: A field has another type.
            ArgumentValueError: A field is out of its range, or no bound is given.
        """
        if type(self.patience) is not int:
            raise ArgumentTypeError("restart.patience", self.patience, "is no whole number", "Count iterations.")
        if self.patience < 1:
            raise ArgumentValueError("restart.patience", self.patience, "is below 1", "Give at least one iteration.")
        if self.min_progress is None and self.min_diversity is None:
            remedy = "Give min_progress or min_diversity, or leave restart out."
            raise ArgumentValueError("restart", self, "has no bound", remedy)
        for name in ("min_progress", "min_diversity"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ArgumentTypeError(f"restart.{name}", value, "is no number", "Give a number, or None.")
            if not 0 < value <= 1:
                raise ArgumentValueError(f"restart.{name}", value, "is not in (0, 1]", "Give None to switch it off.")

    def decide(self, history: Sequence[IterationView]) -> str | None:
        """Return the reason to start again, or ``None``.

        Args:
            history: Every finished iteration of the run, in order. The last one has just ended.
        """
        since = next((n for n in range(len(history) - 1, -1, -1) if history[n].restarted), None)
        # The iteration that was restarted is the first one of a new search.
        own = history if since is None else history[since:]
        if len(own) < self.patience:
            return None
        window = own[-self.patience :]
        position = len(history) - self.patience
        if self.min_progress is not None and position > 0:
            progress = window[-1].best_score - history[position - 1].best_score
            if progress < self.min_progress:
                return (
                    f"the best validation score rose by {progress:.4f} in {self.patience} iterations, "
                    f"less than {self.min_progress:g}"
                )
        if self.min_diversity is not None:
            found = [1 - view.front_similarity for view in window if view.front_similarity is not None]
            if len(found) == len(window) and max(found) < self.min_diversity:
                return (
                    f"the front's diversity was {max(found):.3f} at most in {self.patience} iterations, "
                    f"below {self.min_diversity:g}"
                )
        return None
