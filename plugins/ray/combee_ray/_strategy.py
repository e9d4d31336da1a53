"""Rollouts on the actors of a Ray cluster."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar

from combee_dspy.rollouts import Executor, ExecutorSession
from combee_dspy.strategies import parameters
from pydantic import Field

from combee_ray._carry import dump, load, packed, settings_here
from combee_ray._session import RaySession

__all__ = ["Ray"]

logger = logging.getLogger("combee_dspy")


@parameters
class Ray(Executor):
    """Carries out rollouts on Ray actors: on the cluster you are connected to, or can be.

    Choose it where a rollout computes more than it waits (an agent's own code,
    a heavy metric) or where one process cannot keep enough calls in flight.
    What is not a rollout, such as the calls of a scan, stays in threads of this
    process. So do retries, the journal, the books and everything that listens.

    A program travels to a worker once, pickled by value where its code lies in
    ``__main__``; other code must be importable there. DSPy settings travel with
    it. Callbacks do not: they are told of no rollout. Metrics must not keep state
    that the next rollout reads: each worker has a copy.

    The same seed and recorded decisions give the same candidates as threads.
    Tokens, calls and dollars are measured in the worker and arrive with the
    rollout; what an attempt had spent on a worker that was killed does not arrive. GPU-seconds
    cannot be shared out over several processes.

    Args:
        actors: Worker processes; ``None`` for as many as the cluster has room for, at most one a
            rollout in flight. A run's ``num_threads`` is how many rollouts are in flight over all
            of them.
        address: The cluster's address, as for ``ray.init``. ``None``: the cluster this process is
            connected to, else ``RAY_ADDRESS`` or one that runs on this machine, else a local one
            for the length of the run. ``"local"``: always that.
        cpus: CPUs that an actor reserves.
        attempts: How often a rollout is begun whose worker dies, at least 1.
        start_timeout: Seconds until the actors must have come up.
        init: Further arguments of ``ray.init``, where this executor connects. Not used when
            connected already.
        runtime_env: Ray's ``runtime_env`` of the actors, such as ``{"working_dir": "."}``.
    """

    name: ClassVar[str] = "ray"

    actors: Annotated[int, Field(ge=1, strict=True)] | None = None
    address: str | None = None
    cpus: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    attempts: Annotated[int, Field(ge=1, strict=True)] = 3
    start_timeout: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 120.0
    init: Mapping[str, Any] | None = None
    runtime_env: Mapping[str, Any] | None = None

    def check_program(self, program: Any, metric: Any) -> None:
        """Refuse a program, metric or setting that cannot be taken to a worker.

        Raises:
            CannotTravelError: One of them cannot be pickled; says which, and why.
        """
        settings, left = settings_here()
        for name, thing in (("student", program), ("metric", metric), *settings.items()):
            packed(name, thing, partial(_both_ways, thing))
        if left:
            logger.warning(
                "DSPy callbacks stay in this process and hear no rollout on Ray: %s",
                ", ".join(left),
            )

    def start(self, workers: int) -> ExecutorSession:
        """Connect to the cluster. Its actors start with the first rollout.

        Raises:
            RayClusterError: The cluster cannot be reached.
        """
        return RaySession(self, workers)


def _both_ways(thing: Any) -> bytes:
    data = dump(thing)
    load(data)
    return data
