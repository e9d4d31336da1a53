"""Rollouts on the actors of a Ray cluster."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from numbers import Real
from typing import Any, ClassVar

from combee_dspy.costs import prices_here
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.rollouts import Executor, ExecutorSession

from combee_ray._carry import dump, load, packed, settings_here
from combee_ray._session import RaySession

__all__ = ["Ray"]

logger = logging.getLogger("combee_dspy")


class Ray(Executor):
    """Carries out rollouts on Ray actors: on the cluster you are connected to, or can be.

    Choose it where a rollout computes more than it waits (an agent's own code,
    a heavy metric) or where one process cannot keep enough calls in flight.
    What is not a rollout, such as the calls of a scan, stays in threads of this
    process. So do retries, the cache, the books and everything that listens.

    A program travels to a worker once, pickled by value where its code lies in
    ``__main__``; other code must be importable there. DSPy settings travel with
    it. Callbacks do not: they are told of no rollout. Metrics must not keep state
    that the next rollout reads: each worker has a copy.

    The same seed and recorded decisions give the same candidates as threads.
    Tokens, calls and dollars are measured in the worker and arrive with the
    rollout; what an attempt had spent on a worker that was killed does not arrive.

    Args:
        actors: Worker processes; ``None`` for as many as the cluster has room for, at most one a
            rollout in flight. A run's ``num_threads`` is how many rollouts are in flight over all of them.
        address: The cluster's address, as for ``ray.init``. ``None``: the cluster this process is connected to,
            else ``RAY_ADDRESS`` or one that runs on this machine, else a local one for the length of the run.
            ``"local"``: always that.
        cpus: CPUs that an actor reserves.
        attempts: How often a rollout is begun whose worker dies, at least 1.
        start_timeout: Seconds until the actors must have come up.
        init: Further arguments of ``ray.init``, where this executor connects. Not used when connected already.
        runtime_env: Ray's ``runtime_env`` of the actors, such as ``{"working_dir": "."}``.
    """

    name: ClassVar[str] = "ray"

    def __init__(  # noqa: PLR0913
        self,
        actors: int | None = None,
        address: str | None = None,
        cpus: float = 1.0,
        attempts: int = 3,
        start_timeout: float = 120.0,
        init: Mapping[str, Any] | None = None,
        runtime_env: Mapping[str, Any] | None = None,
    ) -> None:
        self.actors = actors
        self.address = address
        self.cpus = cpus
        self.attempts = attempts
        self.start_timeout = start_timeout
        self.init = init
        self.runtime_env = runtime_env

    def validate(self) -> None:
        """Check the parameters, without a cluster.

        Raises:
            ArgumentTypeError: A parameter has another type.
            ArgumentValueError: A parameter is out of its range.
        """
        for name, value in (("actors", self.actors), ("attempts", self.attempts)):
            if value is None and name == "actors":
                continue
            if type(value) is not int:
                raise ArgumentTypeError(name, value, "is no whole number", "Give 2.")
            if value < 1:
                raise ArgumentValueError(name, value, "is below 1", "Give at least 1.")
        for name, value, least in (("cpus", self.cpus, 0.0), ("start_timeout", self.start_timeout, 1.0)):
            if isinstance(value, bool) or not isinstance(value, Real):
                raise ArgumentTypeError(name, value, "is no number", f"Give a number from {least:g}.")
            if not least <= float(value) < float("inf"):
                raise ArgumentValueError(name, value, "is out of range", f"Give a number from {least:g}.")
        if self.address is not None and not isinstance(self.address, str):
            raise ArgumentTypeError("address", self.address, "is no address", 'Give "auto", or leave it out.')
        for name, given in (("init", self.init), ("runtime_env", self.runtime_env)):
            if given is not None and not isinstance(given, Mapping):
                raise ArgumentTypeError(name, given, "is no mapping", "Leave it out.")

    def check_program(self, program: Any, metric: Any) -> None:
        """Refuse a program, metric or setting that cannot be taken to a worker.

        Raises:
            CannotTravelError: One of them cannot be pickled; says which, and why.
            ArgumentValueError: The run shares out GPU-seconds.
        """
        prices_here()
        settings, left = settings_here()
        for name, thing in (("student", program), ("metric", metric), *settings.items()):
            packed(name, thing, lambda thing=thing: _both_ways(thing))
        if left:
            logger.warning("DSPy callbacks stay in this process and hear no rollout on Ray: %s", ", ".join(left))

    def start(self, workers: int) -> ExecutorSession:
        """Connect to the cluster. Its actors start with the first rollout.

        Raises:
            ArgumentValueError: ``workers`` is below 1, or a parameter is out of its range.
            RayClusterError: The cluster cannot be reached.
        """
        if workers < 1:
            raise ArgumentValueError("num_threads", workers, "is below 1", "Give at least one worker.")
        self.validate()
        return RaySession(self, workers)


def _both_ways(thing: Any) -> bytes:
    data = dump(thing)
    load(data)
    return data
