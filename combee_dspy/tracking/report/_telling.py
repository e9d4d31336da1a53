"""Which rollouts are worth reading: a few of each kind, chosen as they pass."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

from combee_dspy.events import RolloutFinished
from combee_dspy.tracking._redact import Redactor
from combee_dspy.tracking._text import show
from combee_dspy.tracking.report._data import Kind, TellingRollout

__all__ = ["SHOWN", "Seen", "Telling", "seen_in", "seen_of"]

SHOWN = 4
"""Rollouts kept of each kind."""

CELL = 1_500
"""Characters of a text that is kept."""


class Seen(NamedTuple):
    """What is needed of one rollout to judge whether it is telling. A tuple: one is made of every rollout of a run.

    Attributes:
        iteration: When.
        rollout_id: Its id.
        candidate_id: Which candidate ran.
        example_id: On which example.
        split: The example's split.
        purpose: What it was for.
        score: Its score.
        cached: Whether it was taken from the memo.
        error: Its error, empty without one.
        texts: Returns inputs, prediction and feedback; called only where the rollout is kept.
    """

    iteration: int
    rollout_id: str
    candidate_id: str
    example_id: str
    split: str
    purpose: str
    score: float
    cached: bool
    error: str
    texts: Callable[[], tuple[str, str, str]]


def seen_of(event: RolloutFinished, redactor: Redactor) -> Seen:
    """Return what an event says about its rollout, without keys: of one that is cut, the rest would not be found."""
    rollout = event.rollout

    def texts() -> tuple[str, str, str]:
        inputs, prediction, feedback = redactor.cells(
            (_inputs(rollout.example), rollout.prediction, rollout.feedback), CELL
        )
        return inputs, prediction, feedback

    return Seen(
        iteration=event.iteration,
        rollout_id=event.rollout_id,
        candidate_id=event.candidate_id,
        example_id=rollout.example_id,
        split=event.split,
        purpose=event.purpose,
        score=float(rollout.score),
        cached=event.cached,
        error=redactor.text(rollout.error or ""),
        texts=texts,
    )


def seen_in(line: Mapping[str, Any]) -> Seen:
    """Return what a rollout's line in a journal says, by the names of :class:`combee_dspy.tracking.Row`.

    What the line lacks is ``None``.
    """

    def texts() -> tuple[str, str, str]:
        return line.get("inputs") or "", line.get("prediction") or "", line.get("feedback") or ""

    try:
        values = _VALUES_OF(line)
    except KeyError:
        # Written before there was such a column.
        values = tuple(map(line.get, _NAMES))
    seen = Seen._make((*values, texts))
    # JSON has no number for a score that is none.
    return seen if seen.score is not None else seen._replace(score=math.nan)


_NAMES = tuple(name for name in Seen._fields if name != "texts")
_VALUES_OF = itemgetter(*_NAMES)


@dataclass
class Telling:
    """Keeps the most telling rollouts. Held-out rows are never shown: their text is nobody's business.

    Memory is bounded by ``SHOWN`` rollouts of each kind and the scores of the
    parents' rollouts of two iterations. Ties keep the rollout that came first.
    Not thread-safe.
    """

    _heaps: dict[Kind, list[tuple[float, int, TellingRollout]]] = field(default_factory=dict)
    _before: dict[tuple[int, str, str], float] = field(default_factory=dict)
    _parent_of: dict[tuple[int, str], str] = field(default_factory=dict)
    _iteration: int = 0
    _serial: int = 0
    _error_classes: dict[str, int] = field(default_factory=dict)

    def child(self, iteration: int, candidate_id: str, parent_id: str) -> None:
        """Note whose child a candidate is."""
        self._forget(iteration)
        self._parent_of[iteration, candidate_id] = parent_id

    def add(self, seen: Seen) -> None:
        """Take one rollout into account."""
        if seen.purpose == "heldout":
            return
        if seen.purpose == "parent":
            self._forget(seen.iteration)
            self._before[seen.iteration, seen.candidate_id, seen.example_id] = seen.score
        if seen.error:
            kind = seen.error.partition(":")[0]
            # One error class may flood a run: every class is shown before any is shown twice.
            self._error_classes[kind] = self._error_classes.get(kind, 0) + 1
            self._offer("error", 1 / self._error_classes[kind], seen, None)
        elif not seen.cached:
            self._offer("best", seen.score, seen, None)
            self._offer("worst", -seen.score, seen, None)
        if seen.purpose in ("child", "screen"):
            self._compare(seen)

    def _forget(self, iteration: int) -> None:
        # A child meets its parent's rollouts in their own iteration alone, and those of the next may be told before it.
        if iteration > self._iteration:
            self._iteration = iteration
            self._before = {place: score for place, score in self._before.items() if place[0] >= iteration - 1}
            self._parent_of = {place: parent for place, parent in self._parent_of.items() if place[0] >= iteration - 1}

    def _compare(self, seen: Seen) -> None:
        parent = self._parent_of.get((seen.iteration, seen.candidate_id), "")
        before = self._before.get((seen.iteration, parent, seen.example_id))
        if before is None or before == seen.score:
            return
        self._offer("improved" if seen.score > before else "fell", abs(seen.score - before), seen, before)

    def _offer(self, kind: Kind, weight: float, seen: Seen, before: float | None) -> None:
        heap = self._heaps.setdefault(kind, [])
        self._serial -= 1
        if weight != weight or (len(heap) >= SHOWN and (weight, self._serial) < heap[0][:2]):
            return
        inputs, prediction, feedback = seen.texts()
        row = TellingRollout(
            kind=kind,
            iteration=seen.iteration,
            rollout_id=seen.rollout_id,
            candidate_id=seen.candidate_id,
            split=seen.split,
            score=seen.score,
            before=before,
            inputs=inputs,
            prediction=prediction,
            feedback=feedback,
            error=show(seen.error, CELL),
        )
        push = heapq.heappush if len(heap) < SHOWN else heapq.heapreplace
        push(heap, (weight, self._serial, row))

    def rows(self) -> tuple[TellingRollout, ...]:
        """Return those kept, the most telling kinds first, no rollout twice."""
        found: dict[str, TellingRollout] = {}
        order: tuple[Kind, ...] = ("improved", "fell", "error", "worst", "best")
        for kind in order:
            for _, _, row in sorted(self._heaps.get(kind, ()), key=lambda item: item[:2], reverse=True):
                found.setdefault(row.rollout_id, row)
        return tuple(found.values())


def _inputs(example: Any) -> Any:
    inputs = getattr(example, "inputs", None)
    if isinstance(example, Mapping) or not callable(inputs):
        return example
    try:
        return inputs()
    except ValueError:
        # DSPy's word for an example whose inputs were never marked: show all of it.
        return example
