"""When to start again from the seed's text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.strategies import parameters

__all__ = ["Restart", "UpdateView"]

Share = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True, slots=True)
class UpdateView:
    """What one finished update left behind.

    Attributes:
        best_score: Best mean validation score so far.
        similarity: Mean pairwise similarity of the best candidates, 0 to 1 (see
            :meth:`~combee_dspy.diversity.Archive.similarity`); ``None`` where it was not measured.
        restarted: Whether this update's children were made from the seed's text.
    """

    best_score: float
    similarity: float | None = None
    restarted: bool = False


@parameters
class Restart:
    """Starts the next children from the seed's text when the search has run dry.

    It does when for ``patience`` updates in a row the best validation score
    has risen by less than ``min_progress`` in all, or the front's diversity
    (1 − mean pairwise similarity) has been below ``min_diversity`` in each. The
    best candidates stay in the pool, so nothing that was learned is lost. After
    a restart the count begins anew: never twice within ``patience`` updates.

    Attributes:
        patience: Updates.
        min_progress: Rise of the best mean validation score over ``patience``
            updates; ``None`` to look at diversity alone.
        min_diversity: Least diversity; ``None`` to look at progress alone.
    """

    patience: Annotated[int, Field(ge=1)] = 5
    min_progress: Share | None = 0.005
    min_diversity: Share | None = 0.1

    def __post_init__(self) -> None:
        if self.min_progress is None and self.min_diversity is None:
            remedy = "Give min_progress or min_diversity, or leave restart out."
            raise ArgumentValueError("Restart.min_progress", None, "leaves no bound", remedy)

    def due(self, history: Sequence[UpdateView]) -> str | None:
        """Return the reason to start again, or ``None``. Pure.

        Args:
            history: Every finished update of the run, in order.
        """
        since = next((n for n in range(len(history) - 1, -1, -1) if history[n].restarted), 0)
        # The update that was restarted is the first one of a new search.
        if len(history) - since < self.patience:
            return None
        window = history[-self.patience :]
        before = len(history) - self.patience - 1
        if self.min_progress is not None and before >= 0:
            progress = window[-1].best_score - history[before].best_score
            if progress < self.min_progress:
                rose = f"the best validation score rose by {progress:.4f} in {self.patience} updates"
                return f"{rose}, less than {self.min_progress:g}"
        if self.min_diversity is not None:
            found = [1 - view.similarity for view in window if view.similarity is not None]
            if len(found) == len(window) and max(found) < self.min_diversity:
                was = f"the front's diversity was {max(found):.3f} at most in {self.patience} updates"
                return f"{was}, below {self.min_diversity:g}"
        return None
