"""GPU-seconds: the time a role kept its GPUs busy, shared out over its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from numbers import Real

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.records import Role

__all__ = ["GpuMeter", "check_gpus", "share_gpu_seconds"]

_REMEDY = "Give the GPUs behind a role, such as gpus={'task': 8}; leave a role out where it has none of yours."


def check_gpus(gpus: object, roles: Sequence[str]) -> dict[Role, float]:
    """Return the GPUs by role, checked.

    Args:
        gpus: What the user declared; ``None`` is nothing.
        roles: The roles there are.

    Raises:
        ArgumentTypeError: It is no mapping of roles to numbers.
        ArgumentValueError: A role is unknown, or a number is not above 0.
    """
    if gpus is None:
        return {}
    if not isinstance(gpus, Mapping):
        raise ArgumentTypeError("gpus", gpus, "is no mapping", _REMEDY)
    found: dict[Role, float] = {}
    for role, number in gpus.items():
        if role not in roles:
            raise ArgumentValueError("gpus", role, "is no role", f"Roles: {', '.join(roles)}.")
        if isinstance(number, bool) or not isinstance(number, Real):
            raise ArgumentTypeError(f"gpus[{role!r}]", number, "is no number", _REMEDY)
        if not 0 < float(number) < float("inf"):
            raise ArgumentValueError(f"gpus[{role!r}]", number, "is not above 0 and finite", _REMEDY)
        found[role] = float(number)
    return found


def share_gpu_seconds(intervals: Sequence[tuple[float, float]], gpus: float) -> tuple[float, tuple[float, ...]]:
    """Return the GPU-seconds of a role and the share of each of its calls.

    The role is charged ``gpus`` for every second in which at least one call was
    in flight, never more however many were: a server's GPUs are busy once. At
    each moment the calls in flight share the charge equally.

    Args:
        intervals: Start and end of each call, in seconds of one clock.
        gpus: GPUs that serve the role.

    Returns:
        The union's seconds times ``gpus``, and one share per call; the shares add up to it.
    """
    moments = sorted({moment for interval in intervals for moment in interval})
    shares = [0.0] * len(intervals)
    total = 0.0
    for start, end in pairwise(moments):
        busy = [index for index, (first, last) in enumerate(intervals) if first <= start and end <= last]
        if busy:
            amount = gpus * (end - start)
            total += amount
            for index in busy:
                shares[index] += amount / len(busy)
    return total, tuple(shares)


class GpuMeter:
    """The same while calls come and go, with constant work per call.

    One number grows: what a call in flight since the beginning would have been
    charged. A call's share is by how much it grew while the call was in
    flight. Not thread-safe; its owner holds a lock and reads the clock inside it.

    Args:
        gpus: GPUs that serve the role, above 0.
    """

    __slots__ = ("_at", "_charged", "_in_flight", "gpus")

    def __init__(self, gpus: float) -> None:
        self.gpus = gpus
        self._in_flight = 0
        self._charged = 0.0
        self._at = 0.0

    def start(self, now: float) -> float:
        """Note that a call begins; return what :meth:`stop` needs.

        Args:
            now: Seconds, never less than at the call before.
        """
        self._advance(now)
        self._in_flight += 1
        return self._charged

    def stop(self, started: float, now: float) -> float:
        """Note that a call ends, and return its GPU-seconds.

        Args:
            started: What :meth:`start` returned.
            now: Seconds, never less than at the call before.
        """
        self._advance(now)
        self._in_flight -= 1
        return self._charged - started

    def _advance(self, now: float) -> None:
        if self._in_flight:
            self._charged += self.gpus * (now - self._at) / self._in_flight
        self._at = now
