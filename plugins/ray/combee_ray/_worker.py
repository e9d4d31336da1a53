"""The other side: an actor that carries out rollouts."""

from __future__ import annotations

import os
import platform
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import dspy
from combee_dspy.costs import WorkerBooks
from combee_dspy.rollouts import InfrastructureFaultError, run_rollout

from combee_ray._carry import dump, load, names_of

__all__ = ["Answer", "RolloutWorker", "versions"]

_KEPT = 16


@dataclass(slots=True)
class _Unpacked:
    program: dspy.Module
    metric: Any
    failure_score: float
    settings: dict[str, Any]
    known: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Answer:
    """How an attempt at a rollout ended.

    Attributes:
        rollout: The rollout, scored; where the service failed, what to take if trying again does not help.
        books: What its LM calls cost, as :func:`combee_dspy.costs.take_over` takes it.
        fault: The reason, where an LM call or an environment failed for reasons outside the program.
        retryable: Whether trying again may help.
        refused: Why the worker could not even try; nothing was spent.
    """

    rollout: Any = None
    books: Any = None
    fault: str | None = None
    retryable: bool = False
    refused: str | None = None


def versions() -> dict[str, str]:
    """Return what must be the same on both sides: another DSPy would write other prompts."""
    found = {name: metadata.version(name) for name in ("combee-dspy", "combee-dspy-ray", "dspy")}
    return {"Python": ".".join(platform.python_version_tuple()[:2]), **found}


class RolloutWorker:
    """Runs in a Ray actor. Several threads of the actor may be in :meth:`run` at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unpacked: OrderedDict[str, _Unpacked] = OrderedDict()

    def versions(self) -> dict[str, str]:
        """Return the versions that are installed here."""
        return versions()

    def pid(self) -> int:
        """Return this process's id."""
        return os.getpid()

    def run(self, digest: str, box: list[Any], job: bytes) -> bytes:
        """Carry out one attempt at a rollout.

        Args:
            digest: Names the program with its metric and settings.
            box: A reference to them, fetched where they are not here yet.
            job: Example, its row hash, and the price tables.

        Returns:
            An :class:`Answer`, as bytes. Programs and metrics that fail are scored, as anywhere.
        """
        try:
            unpacked = self._unpack(digest, box)
            example, example_id, prices = load(job)
        except Exception as error:  # what another process cannot import is told to who asked
            return dump(Answer(refused=f"{type(error).__name__}: {error}"))
        things = names_of(unpacked.program, example)
        books = WorkerBooks(prices, lambda lm: id(lm) in unpacked.known)
        answer = _attempt(unpacked, example, example_id, books)
        try:
            data = dump(answer, things)
        except Exception as error:  # as above
            reason = f"its result cannot be brought back: {type(error).__name__}: {error}"
            return dump(Answer(books=answer.books, refused=reason))
        unpacked.known |= {id(lm) for lm in answer.books.lms}
        return data

    def _unpack(self, digest: str, box: list[Any]) -> _Unpacked:
        with self._lock:
            found = self._unpacked.get(digest)
            if found is None:
                import ray

                found = self._unpacked[digest] = _Unpacked(*load(ray.get(box[0])))
                while len(self._unpacked) > _KEPT:
                    self._unpacked.popitem(last=False)
            self._unpacked.move_to_end(digest)
            return found


def _attempt(unpacked: _Unpacked, example: dspy.Example, example_id: str, books: WorkerBooks) -> Answer:
    with dspy.context(**unpacked.settings), books.open() as meter:
        try:
            rollout = run_rollout(unpacked.program, example, example_id, unpacked.metric, unpacked.failure_score, meter)
        except InfrastructureFaultError as fault:
            return Answer(fault.rollout, books.closed(), fault=str(fault), retryable=fault.retryable)
    return Answer(rollout, books.closed())
