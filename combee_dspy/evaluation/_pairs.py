"""Scores of one rollout by two judges, collected while a run goes on."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import dspy
from dspy.utils.exceptions import LMError

from combee_dspy.events import Event
from combee_dspy.hashing import canonical_json, row_hash
from combee_dspy.streams import derive

__all__ = ["Emit", "PairStore", "SteppedMetric", "carrying", "drawn", "identity_of", "place_of", "score_of"]

Emit = Callable[[Event], None]


@runtime_checkable
class SteppedMetric(Protocol):
    """A metric that decides something between iterations.

    A run calls :meth:`observe` with the metric's output of every rollout, those
    from a memo or a cache included, and :meth:`step` when no rollout is in
    flight. What scores therefore changes between iterations only, so which
    rollouts it concerns does not depend on the order in which they end.
    """

    def observe(self, output: object) -> None:
        """Take what the output says about both judges."""
        ...

    def dump(self) -> dict[str, Any]:
        """Return what it has heard and decided, as plain JSON data."""
        ...

    def load(self, data: Mapping[str, Any]) -> None:
        """Go on from what :meth:`dump` returned, before the first rollout."""
        ...

    def step(self, iteration: int, emit: Emit, *, final: bool = False) -> None:
        """Decide what is due.

        Raises:
            CalibrationFailedError: The run must not go on.
        """
        ...


class PairStore:
    """Pairs by place: a rollout that is heard of twice counts once. Thread-safe.

    Args:
        field: The field of a metric's output that carries a pair.
    """

    def __init__(self, field: str) -> None:
        self.field = field
        self._lock = threading.Lock()
        self._pairs: dict[str, tuple[float, float]] = {}
        self._failure: Exception | None = None

    def add(self, place: str, subject: float, reference: float) -> None:
        """Add one pair."""
        with self._lock:
            self._pairs[place] = (subject, reference)

    def observe(self, output: object) -> None:
        """Add the pair that an output carries, if it does."""
        found = output.get(self.field) if isinstance(output, dspy.Prediction) else None
        if isinstance(found, Mapping) and {"place", "subject", "reference"} <= set(found):
            self.add(str(found["place"]), float(found["subject"]), float(found["reference"]))

    def judge_too(
        self, second: Callable[..., Any], given: tuple[Any, Any, Any], output: Any, place: str, *, second_is: str
    ) -> Any:
        """Ask a second metric about a rollout, and return the output with both scores beside its own.

        The pair counts once the output is observed: a run may have rollouts in flight that it has not
        asked for yet, and what they say must not depend on when they end. What the second metric
        raises is kept for the next step: it must not become the score of a rollout.

        Args:
            second: The second metric.
            given: Example, prediction and trace.
            output: The first metric's output, whose score counts.
            place: What tells the rollout from others.
            second_is: ``"subject"`` or ``"reference"``.

        Raises:
            LMError: The service failed: the whole rollout is tried again.
        """
        try:
            other = score_of(second(*given, None, None))
        except LMError:
            raise
        except Exception as error:  # noqa: BLE001 - raised by the next step
            self.fail(error)
            return output
        own = score_of(output)
        subject, reference = (other, own) if second_is == "subject" else (own, other)
        return carrying(output, self.field, {"place": place, "subject": subject, "reference": reference})

    def dump(self) -> dict[str, list[float]]:
        """Return the pairs by place, as plain data."""
        with self._lock:
            return {place: list(pair) for place, pair in sorted(self._pairs.items())}

    def load(self, data: Mapping[str, Any]) -> None:
        """Add what :meth:`dump` returned."""
        for place, (subject, reference) in data.items():
            self.add(str(place), float(subject), float(reference))

    def pairs(self) -> list[tuple[float, float]]:
        """Return all pairs, in an order that does not depend on arrival."""
        with self._lock:
            return [self._pairs[place] for place in sorted(self._pairs)]

    def fail(self, error: Exception) -> None:
        """Keep the first error of the second judge."""
        with self._lock:
            self._failure = self._failure or error

    @property
    def failure(self) -> Exception | None:
        """The first error of the second judge, if any."""
        return self._failure


def place_of(gold: Any, pred: Any) -> str:
    """Return what tells a rollout from others: a hash of its example and of what the program returned."""
    return hashlib.sha256(f"{row_hash(gold)}\n{canonical_json(pred)}".encode()).hexdigest()


def drawn(seed: int, purpose: str, place: str, share: float) -> bool:
    """Return whether a rollout is in a sample, whenever and wherever it is run."""
    return derive(seed, purpose, place).random() < share


def carrying(output: Any, field: str, pair: Mapping[str, Any]) -> dspy.Prediction:
    """Return a metric's output with a pair beside its score."""
    if isinstance(output, dspy.Prediction):
        return dspy.Prediction(**{**dict(output.items()), field: dict(pair)})
    return dspy.Prediction(score=float(output), **{field: dict(pair)})


def score_of(output: object) -> float:
    """Return the score of a metric's output.

    Raises:
        TypeError: It is no score.
        ValueError: It is not finite.
    """
    # The rollout itself needs dspy's teleprompters: not before something is scored.
    from combee_dspy.rollouts import read_score

    return read_score(output)[0]


def identity_of(kind: str, *parts: object) -> str:
    """Return what tells a composed metric from others, whatever else it holds."""
    from combee_dspy.rollouts._fingerprint import scorer_fingerprint

    return f"{kind}:" + ":".join(scorer_fingerprint(part) for part in parts)
