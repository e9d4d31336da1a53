"""Connecting to a cluster, and the actors on it."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from combee_ray._errors import RayClusterError
from combee_ray._worker import RolloutWorker, versions

if TYPE_CHECKING:
    from combee_ray._strategy import Ray

__all__ = ["Actors", "connect", "disconnect"]

logger = logging.getLogger("combee_dspy")

# Sessions of one process share its one connection: the last one out closes it.
_lock = threading.Lock()
_users = 0
_ours = False


def connect(settings: Ray) -> None:
    """Make sure that this process is connected.

    Raises:
        RayClusterError: The cluster cannot be reached.
    """
    global _users, _ours
    with _lock:
        if not ray.is_initialized():
            # Ray reports to its makers unless told not to, and a local cluster needs no dashboard.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            defaults = {
                "include_dashboard": False,
                "log_to_driver": False,
                "logging_level": "WARNING",
            }
            if settings.address is not None and settings.address != "local":
                del defaults["include_dashboard"]
            try:
                ray.init(**{**defaults, "address": settings.address, **(settings.init or {})})
            except (
                RayError,
                ConnectionError,
                OSError,
                RuntimeError,
                ValueError,
                TypeError,
            ) as error:
                remedy = "Start one with `ray start --head`, name its address, or give address='local'."
                raise RayClusterError(f"no Ray cluster: {type(error).__name__}: {error}", remedy) from error
            _ours = True
        _users += 1


def disconnect() -> None:
    """Undo :func:`connect`."""
    global _users, _ours
    with _lock:
        _users -= 1
        if _users == 0 and _ours:
            _ours = False
            ray.shutdown()


class Actors:
    """The actors of one session. Thread-safe.

    Args:
        settings: The executor.
        workers: Rollouts in flight at once.
    """

    def __init__(self, settings: Ray, workers: int) -> None:
        self._settings = settings
        self._workers = workers
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._actors: list[Any] = []
        self._busy: dict[Any, int] = {}
        self._closed = False
        self._lost = 0

    def _count(self) -> int:
        """Return how many actors there should be: as many as the cluster can hold now."""
        if self._settings.actors is not None:
            return min(self._settings.actors, self._workers)
        cpus = float(ray.cluster_resources().get("CPU", 1.0))
        room = int(cpus // self._settings.cpus) if self._settings.cpus else int(cpus)
        return max(1, min(room, self._workers))

    def _new(self) -> Any:
        options: dict[str, Any] = {
            "num_cpus": self._settings.cpus,
            "max_concurrency": self._workers + 1,
        }
        if self._settings.runtime_env is not None:
            options["runtime_env"] = dict(self._settings.runtime_env)
        return ray.remote(RolloutWorker).options(**options).remote()

    def _check(self, actors: list[Any]) -> None:
        """Wait until actors are up, and see that they are our like.

        Raises:
            RayClusterError: They do not come up, or have other versions.
        """
        timeout = float(self._settings.start_timeout)
        try:
            found = ray.get([actor.versions.remote() for actor in actors], timeout=timeout)
        except GetTimeoutError as error:
            room = ray.available_resources().get("CPU", 0)
            remedy = "Give fewer actors, fewer cpus, or a longer start_timeout."
            problem = f"{len(actors)} Ray actors did not come up in {timeout:g} s; {room:g} CPUs are free"
            raise RayClusterError(problem, remedy) from error
        except RayError as error:
            remedy = "Install combee-dspy-ray on every node, or name it in runtime_env={'pip': [...]}."
            raise RayClusterError(f"Ray actors do not start: {error}", remedy) from error
        here = versions()
        for there in found:
            if there != here:
                unlike = ", ".join(
                    f"{name} {there.get(name)} there, {own} here"
                    for name, own in here.items()
                    if there.get(name) != own
                )
                raise RayClusterError(f"a worker has other versions: {unlike}", "Install the same on every node.")

    def take(self) -> Any:
        """Return the actor with the fewest rollouts, starting the actors where there are none.

        Raises:
            RayClusterError: None comes up.
        """
        # Only who has no actor at all waits for others to start some.
        missing, alive = self._missing()
        if missing and self._starting.acquire(blocking=not alive):
            try:
                self._start(*self._missing())
            finally:
                self._starting.release()
        with self._lock:
            if not self._actors:
                raise RayClusterError("all Ray actors have died", "See the cluster's logs.")
            chosen = min(self._actors, key=lambda actor: self._busy[actor])
            self._busy[chosen] += 1
            return chosen

    def _start(self, missing: int, alive: int) -> None:
        made = [self._new() for _ in range(missing)]
        try:
            self._check(made)
        except RayClusterError as error:
            for actor in made:
                ray.kill(actor)
            if not alive:
                raise
            self._lost += missing
            logger.warning("going on with %d Ray actors: %s", alive, error)
            return
        with self._lock:
            closed = self._closed
            if not closed:
                self._actors += made
                self._busy.update(dict.fromkeys(made, 0))
        for actor in made if closed else ():
            ray.kill(actor)

    def _missing(self) -> tuple[int, int]:
        """Return how many actors there should be besides those that there are."""
        count = self._count()
        with self._lock:
            if self._closed:
                raise RayClusterError("the session is closed", "Start another one.")
            alive = len(self._actors)
            # Those that did not come up again are not asked for anew, unless no other is left.
            wanted = count - self._lost if alive else count
            return max(0, wanted - alive), alive

    def give(self, actor: Any) -> None:
        """Take back an actor whose rollout has ended."""
        with self._lock:
            if actor in self._busy:
                self._busy[actor] -= 1

    def drop(self, actor: Any) -> bool:
        """Forget an actor that has died; another one takes its place.

        Returns:
            Whether this call was the first to say so.
        """
        with self._lock:
            if actor not in self._busy:
                return False
            del self._busy[actor]
            self._actors.remove(actor)
        # It may only be out of reach, and would go on buying.
        ray.kill(actor)
        return True

    def pids(self) -> list[int]:
        """Return the process ids of the actors that are up, in order of their start."""
        with self._lock:
            actors = list(self._actors)
        return [ray.get(actor.pid.remote()) for actor in actors]

    def close(self) -> None:
        """End all actors."""
        with self._lock:
            self._closed = True
            actors, self._actors = self._actors, []
            self._busy = {}
        for actor in actors:
            ray.kill(actor)
