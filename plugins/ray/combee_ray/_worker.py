"""The other side: an actor that carries out rollouts."""

from __future__ import annotations

import asyncio
import os
import platform
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

import dspy
from combee_dspy.costs import Tariff
from combee_dspy.records import Rollout
from combee_dspy.rollouts import (
    DaemonPool,
    InfrastructureFaultError,
    RolloutJob,
    run_in_time,
    run_rollout,
)

from combee_ray._carry import dump, load

__all__ = ["Answer", "RolloutWorker", "versions"]

_KEPT = 16


@dataclass(frozen=True, slots=True)
class Answer:
    """How an attempt at a rollout ended: one of the three.

    Attributes:
        rollout: The rollout, scored.
        fault: Reason and arguments of an ``InfrastructureFaultError``.
        refused: Why the worker could not even try, or not bring back what it had.
    """

    rollout: Any = None
    fault: tuple[str, dict[str, Any]] | None = None
    refused: str | None = None


def versions() -> dict[str, str]:
    """Return what must be the same on both sides: another DSPy would write other prompts."""
    found = {name: metadata.version(name) for name in ("combee-dspy", "combee-dspy-ray", "dspy")}
    return {"Python": ".".join(platform.python_version_tuple()[:2]), **found}


class RolloutWorker:
    """Runs in a Ray actor. Several threads of the actor may be in :meth:`run` at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unpacked: OrderedDict[str, tuple[RolloutJob, dict[str, Any]]] = OrderedDict()

    def versions(self) -> dict[str, str]:
        """Return the versions that are installed here."""
        return versions()

    def pid(self) -> int:
        """Return this process's id."""
        return os.getpid()

    def run(self, digest: str, box: list[Any], given: bytes, seconds: float | None = None) -> bytes:
        """Carry out one attempt at a rollout.

        Args:
            digest: Names the program with its metric, prices and settings.
            box: A reference to them, fetched where they are not here yet.
            given: Example and its row hash.
            seconds: How long the attempt may take. One that takes longer keeps a thread of this
                process, in which its later LM calls are refused.

        Returns:
            An :class:`Answer`, as bytes. Programs and metrics that fail are scored, as anywhere.
        """
        try:
            job, settings = self._unpack(digest, box)
            example, example_id = load(given)
        except Exception as error:  # what another process cannot import is told to who asked
            return dump(Answer(refused=f"{type(error).__name__}: {error}"))
        answer = _attempt(replace(job, example=example, example_id=example_id, seconds=seconds), settings)
        try:
            return dump(answer)
        except Exception as error:  # as above
            return dump(Answer(refused=f"its result cannot be brought back: {type(error).__name__}: {error}"))

    def _unpack(self, digest: str, box: list[Any]) -> tuple[RolloutJob, dict[str, Any]]:
        with self._lock:
            found = self._unpacked.get(digest)
            if found is None:
                import ray

                program, metric, score, sees_trace, costs, settings = load(ray.get(box[0]))
                job = RolloutJob(program, dspy.Example(), "", metric, score, Tariff(costs), sees_trace)
                found = self._unpacked[digest] = (job, settings)
                while len(self._unpacked) > _KEPT:
                    self._unpacked.popitem(last=False)
            self._unpacked.move_to_end(digest)
            return found


async def _in_thread(job: RolloutJob) -> Rollout:
    asyncio.get_running_loop().set_default_executor(DaemonPool())
    return await asyncio.to_thread(run_rollout, job)


def _attempt(job: RolloutJob, settings: dict[str, Any]) -> Answer:
    with dspy.context(**settings):
        try:
            return Answer(asyncio.run(run_in_time(job, lambda: _in_thread(job))))
        except InfrastructureFaultError as fault:
            names = ("retryable", "rejected", "outage", "retry_after", "usage", "rollout")
            return Answer(fault=(str(fault), {name: getattr(fault, name) for name in names}))
