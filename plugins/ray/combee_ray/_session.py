"""A running executor: threads here that wait for rollouts there."""

from __future__ import annotations

import contextvars
import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

import dspy
import ray
from combee_dspy.costs import RolloutMeter, prices_here, take_over
from combee_dspy.records import Rollout
from combee_dspy.rollouts import CURRENT_SESSION, InfrastructureFaultError, run_rollout
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError, RayError

from combee_ray._carry import CannotTravelError, dump, load, names_of, packed, settings_here
from combee_ray._cluster import Actors, connect, disconnect
from combee_ray._worker import Answer

if TYPE_CHECKING:
    from combee_ray._strategy import Ray

__all__ = ["RaySession"]

T = TypeVar("T")

logger = logging.getLogger("combee_dspy")

_BOXES_KEPT = 16
_LOST = (ActorDiedError, ActorUnavailableError, RayActorError)


class RaySession:
    """One pool for a whole run. Thread-safe.

    Args:
        settings: The executor.
        workers: Rollouts in flight at once.

    Attributes:
        actors: The actors that carry them out.

    Raises:
        RayClusterError: The cluster cannot be reached.
    """

    def __init__(self, settings: Ray, workers: int) -> None:
        self._settings = settings
        self._workers = workers
        connect(settings)
        self.actors = Actors(settings, workers)
        self._pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="combee-ray")
        self._lock = threading.Lock()
        self._boxes: OrderedDict[tuple[Any, ...], tuple[Any, str, Any]] = OrderedDict()
        self._again = 0
        self._open = True

    @property
    def workers(self) -> int:
        """How many tasks run at once."""
        return self._workers

    @property
    def repeated(self) -> int:
        """Rollouts that were begun again because their worker died."""
        return self._again

    def submit(self, task: Callable[..., T], /, *args: Any) -> Future[T]:
        """Queue a task in a thread of this process; a rollout waits there for its worker."""
        work: Callable[..., Any] = self.run_rollout if task is run_rollout else task
        return self._pool.submit(contextvars.copy_context().run, self._work, work, args)

    def _work(self, task: Callable[..., T], args: tuple[Any, ...]) -> T:
        CURRENT_SESSION.set(self)
        return task(*args)

    def close(self) -> None:
        """Cancel what has not started, wait for what has, and end the actors. May be called twice."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            was_open, self._open = self._open, False
            self._boxes.clear()
        if was_open:
            self.actors.close()
            disconnect()

    def run_rollout(  # noqa: PLR0913
        self,
        program: dspy.Module,
        example: dspy.Example,
        example_id: str,
        metric: Callable[..., Any],
        failure_score: float,
        meter: RolloutMeter | None = None,
    ) -> Rollout:
        """Carry out a rollout on a worker (see :func:`combee_dspy.rollouts.run_rollout`).

        Raises:
            InfrastructureFaultError: An LM call failed for a reason outside the program, or every
                worker that began the rollout died.
            CannotTravelError: Something cannot be taken to a worker, or brought back.
            RayClusterError: The workers do not come up.
        """
        prices = prices_here()
        digest, box = self._box(program, metric, failure_score)
        job = packed("trainset", example, lambda: dump((example, example_id, prices)))
        data = self._ask(digest, box, job)
        answer: Answer = load(data, names_of(program, example))
        if answer.books is not None:
            take_over(answer.books, meter)
        if answer.refused is not None:
            remedy = "Make its code importable on every node (runtime_env={'working_dir': '.'}), or use 'threads'."
            raise CannotTravelError("student", type(program).__name__, answer.refused, remedy)
        if answer.fault is not None:
            raise InfrastructureFaultError(answer.fault, retryable=answer.retryable, rollout=answer.rollout)
        rollout: Rollout = answer.rollout
        return rollout

    def _ask(self, digest: str, box: Any, job: bytes) -> bytes:
        """Return a worker's answer, from another worker where one dies."""
        for attempt in range(1, self._settings.attempts + 1):
            actor = self.actors.take()
            try:
                data: bytes = ray.get(actor.run.remote(digest, [box], job))
            except _LOST as error:
                first = self.actors.drop(actor)
                if attempt == self._settings.attempts:
                    reason = f"{attempt} Ray workers died while they carried out a rollout: {error}"
                    raise InfrastructureFaultError(reason, retryable=False) from error
                with self._lock:
                    self._again += 1
                if first:
                    logger.warning("a Ray worker died; its rollouts are begun again on another one")
            except RayError as error:
                raise InfrastructureFaultError(f"Ray failed: {error}", retryable=True) from error
            else:
                return data
            finally:
                self.actors.give(actor)
        raise AssertionError("a loop over at least one attempt ends in it")

    def _box(self, program: dspy.Module, metric: Callable[..., Any], failure_score: float) -> tuple[str, Any]:
        """Return the name of, and a reference to, a program with all that goes with it, put there once."""
        settings, _ = settings_here()
        # An object's state may change between iterations; a function's is in its code.
        plain = isinstance(metric, (FunctionType, BuiltinFunctionType))
        scored = metric if plain else packed("metric", metric, lambda: dump(metric))
        identity = tuple((name, _identity(settings[name])) for name in sorted(settings))
        key = (id(program), id(metric) if plain else scored, failure_score, identity)
        with self._lock:
            found = self._boxes.get(key)
            if found is None:
                data = packed("student", program, lambda: dump((program, metric, failure_score, settings)))
                digest = hashlib.sha256(data).hexdigest()
                # What the key names by identity is kept alive, so that no other object takes its place.
                found = self._boxes[key] = ((program, metric, settings), digest, ray.put(data))
                while len(self._boxes) > _BOXES_KEPT:
                    self._boxes.popitem(last=False)
            self._boxes.move_to_end(key)
            return found[1], found[2]


def _identity(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool, type(None))) else id(value)
