"""Which rows an update runs: epochs in a shuffled order, cut into the sizes that a controller plans."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from statistics import pvariance
from typing import Any

from gepa.core.data_loader import ensure_loader

from combee_dspy.controllers import BatchController, BatchView
from combee_dspy.records import BatchDecision, Clamp, Measurement, PowerLawFit
from combee_dspy.search._candidates import Row
from combee_dspy.streams import derive

__all__ = ["Batches", "decision_from", "decision_to"]


class Batches:
    """Draws minibatches. Called in the order of updates.

    Rows are drawn without replacement, epoch by epoch, each epoch in an order of
    its own; no minibatch crosses the end of an epoch. Anchors are in every one.

    Args:
        train: All train rows.
        anchors: Rows that are in every minibatch.
        controller: Plans sizes.
        seed: The run's seed.
        sampler: The user's own sampler of gepa's kind, or ``None``.
        epochs: Epochs after which there is no minibatch any more; ``None`` for no such limit.
    """

    def __init__(
        self,
        train: Sequence[Row],
        anchors: Sequence[Row],
        controller: BatchController,
        *,
        seed: int,
        sampler: Any | None,
        epochs: float | None,
    ) -> None:
        self._train = tuple(train)
        self._anchors = tuple(anchors)
        self._controller = controller
        self._seed = seed
        self._sampler = sampler
        self._loader = ensure_loader([row.example for row in train])
        self._last = None if epochs is None else max(1, round(epochs * len(self._train)))
        self.seen = 0
        self._planned: list[int] = []
        self._measured: list[Measurement] = []
        self._scores: list[float] = []

    @property
    def epochs(self) -> float:
        """Rows drawn over the size of the train set."""
        return self.seen / len(self._train)

    @property
    def left(self) -> int:
        """Rows that the epoch, or the limit in epochs, leaves for the next minibatch."""
        left = len(self._train) - self.seen % len(self._train)
        return left if self._last is None else max(0, min(left, self._last - self.seen))

    @property
    def always(self) -> int:
        """Rows that are in a minibatch beside those that are drawn, at most."""
        return len(self._anchors)

    def decide(self, view: BatchView) -> BatchDecision:
        """Return the controller's decision, completed by what is known here."""
        return self._controller.plan(
            dataclasses.replace(
                view,
                trainset_size=len(self._train),
                seen=self.seen,
                measurements=tuple(self._measured),
                planned=tuple(self._planned),
                score_variance=pvariance(self._scores) if self._scores else None,
            )
        )

    def draw(self, size: int, state: Callable[[], Any]) -> tuple[Row, ...]:
        """Return the rows of the next minibatch.

        Args:
            size: How many, anchors left out; at most :attr:`left`. A sampler of the user's decides itself.
            state: Returns gepa's state, for a sampler of the user's.
        """
        if self._sampler is not None:
            ids = self._sampler.next_minibatch_ids(self._loader, state())
            rows = tuple(self._train[index] for index in ids)
            size = len(rows)
        else:
            order = list(range(len(self._train)))
            epoch, start = divmod(self.seen, len(self._train))
            derive(self._seed, "epoch", epoch).shuffle(order)
            rows = tuple(self._train[index] for index in order[start : start + size])
        self.seen += size
        self._planned.append(size)
        hashes = {row.hash for row in rows}
        return rows + tuple(row for row in self._anchors if row.hash not in hashes)

    def measured(self, size: int, seconds: float, scores: Sequence[float]) -> None:
        """Note how long an update took, and how its parent scored."""
        self._measured.append(Measurement(size, seconds))
        self._scores.extend(scores)

    @property
    def samples_itself(self) -> bool:
        """Whether the user's own sampler sets sizes."""
        return self._sampler is not None


def decision_to(decision: BatchDecision) -> dict[str, Any]:
    """Return a decision as JSON values."""
    return dataclasses.asdict(decision)


def decision_from(data: Any) -> BatchDecision:
    """Return what :func:`decision_to` was given."""
    fit = data["fit"]
    clamps = tuple(Clamp(**one) for one in data["clamps"])
    return BatchDecision(data["size"], data["reason"], None if fit is None else PowerLawFit(**fit), clamps)
