"""A running executor: rollouts on the cluster, all else in threads of this process."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any

import ray
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import Rollout
from combee_dspy.rollouts import InfrastructureFaultError, RolloutJob, ThreadSession
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError, RayError

from combee_ray._carry import CannotTravelError, dump, load, packed, settings_here
from combee_ray._cluster import Actors, connect, disconnect
from combee_ray._worker import Answer

if TYPE_CHECKING:
    from combee_ray._strategy import Ray

__all__ = ["RaySession"]

logger = logging.getLogger("combee_dspy")

_BOXES_KEPT = 16
_LOST = (ActorDiedError, ActorUnavailableError, RayActorError)


@dataclass(frozen=True, slots=True)
class _Box:
    """A program with all that goes with it, as it lies in the cluster.

    Attributes:
        digest: Its name: a hash of the bytes.
        reference: Ray's reference to the bytes.
        contents: What the box's key names by identity, held so that no other object takes its place.
    """

    digest: str
    reference: ray.ObjectRef[bytes]
    contents: tuple[object, ...]


class RaySession(ThreadSession):
    """Threads of this process, and actors for rollouts.

    Args:
        settings: The executor.
        workers: Rollouts in flight at once.

    Attributes:
        actors: The actors that carry them out.
        repeated: Rollouts that were begun again because their worker died.

    Raises:
        RayClusterError: The cluster cannot be reached.
    """

    def __init__(self, settings: Ray, workers: int) -> None:
        super().__init__(workers)
        self._attempts = settings.attempts
        connect(settings)
        self.actors = Actors(settings, workers)
        self.repeated = 0
        self._boxes: OrderedDict[tuple[Any, ...], _Box] = OrderedDict()
        self._open = True

    async def rollout(self, job: RolloutJob) -> Rollout:
        """Carry out one attempt at a rollout on a worker, or on another one where that dies.

        The worker itself holds it to ``job.seconds``. Cancelled, it is not waited for any more;
        what it is at ends with the actor, when the session is closed. What it has cost by then does
        not arrive.

        Raises:
            InfrastructureFaultError: It failed for a reason outside the program, or every worker
                that began it died.
            CannotTravelError: Something cannot be taken to a worker, or brought back.
            RayClusterError: The workers do not come up.
            ArgumentValueError: The run counts GPU-seconds.
        """
        if job.tariff.costs.gpus:
            remedy = "Leave gpus out, or use executor='threads'."
            problem = "cannot be shared out over other processes"
            raise ArgumentValueError("costs.gpus", dict(job.tariff.costs.gpus), problem, remedy)
        box = self._box(job)
        given = packed("trainset", job.example, partial(dump, (job.example, job.example_id)))
        answer: Answer = load(await self._asked(box, given, job.seconds))
        if answer.refused is not None:
            remedy = "Make its code importable on every node (runtime_env={'working_dir': '.'}), or use 'threads'."
            raise CannotTravelError("student", type(job.program).__name__, answer.refused, remedy)
        if answer.fault is not None:
            reason, arguments = answer.fault
            raise InfrastructureFaultError(reason, **arguments)
        rollout: Rollout = answer.rollout
        return rollout

    async def close(self) -> None:
        """Wait for what runs, and end the threads and the actors."""
        try:
            await super().close()
        finally:
            was_open, self._open = self._open, False
            self._boxes.clear()
            if was_open:
                self.actors.close()
                disconnect()

    async def _asked(self, box: _Box, given: bytes, seconds: float | None) -> bytes:
        attempt = 0
        while True:
            attempt += 1
            # Starting actors takes seconds, in which the loop must not stand still.
            actor = await self.run(self.actors.take)
            try:
                reply = actor.run.remote(box.digest, [box.reference], given, seconds)
                data: bytes = await asyncio.wrap_future(reply.future())
            except _LOST as error:
                first = self.actors.drop(actor)
                if attempt == self._attempts:
                    reason = f"{attempt} Ray workers died while they carried out a rollout: {error}"
                    raise InfrastructureFaultError(reason, retryable=False) from error
                self.repeated += 1
                if first:
                    logger.warning("a Ray worker died; its rollouts are begun again on another one")
            except RayError as error:
                raise InfrastructureFaultError(f"Ray failed: {error}", retryable=True) from error
            else:
                return data
            finally:
                self.actors.give(actor)

    def _box(self, job: RolloutJob) -> _Box:
        """Return the box of a program with all that goes with it, put there once."""
        settings, _ = settings_here()
        # An object's state may change between updates, and is compared. A function is put there once: workers see
        # what its closure and its module held then.
        plain = isinstance(job.metric, (FunctionType, BuiltinFunctionType))
        scored = id(job.metric) if plain else packed("metric", job.metric, partial(dump, job.metric))
        identity = tuple((name, _identity(settings[name])) for name in sorted(settings))
        key = (id(job.program), scored, job.failure_score, id(job.tariff), identity)
        box = self._boxes.get(key)
        if box is None:
            whole = (
                job.program,
                job.metric,
                job.failure_score,
                job.sees_trace,
                job.tariff.costs,
                settings,
            )
            data = packed("student", job.program, partial(dump, whole))
            box = self._boxes[key] = _Box(hashlib.sha256(data).hexdigest(), ray.put(data), (whole, job.tariff))
            while len(self._boxes) > _BOXES_KEPT:
                self._boxes.popitem(last=False)
        self._boxes.move_to_end(key)
        return box


def _identity(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool, type(None))) else id(value)
