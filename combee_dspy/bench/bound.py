"""What serving a method's calls takes at least, and what it takes in the method's own order. Pure.

Three lower bounds of the time that a list of calls took, each from the calls alone, and one plan:

*Capacity.* All service seconds over the slots: no order can beat it.

*Chain.* The longest chain of calls of which each needs the answer of the one
before, in service seconds: no number of slots can beat it.

*Stages.* A stage is what lies between two moments at which the method had no
call in flight: it waited for a decision, and everything after needs everything
before. The bound is the sum over stages of the greater of both figures above,
each within the stage. Of a method that asks one batch at a time it is the sum
over its barriers of the longest call of each.

*Schedule.* What the calls take when each is served as soon as what it needs has been answered, its
stage has begun and a slot is free, in the order in which they were asked for: a list schedule on the slots
(Graham 1969). A call that lasts long is known for it by nobody beforehand: where one starts among the last, the
stages' bound leaves out that everything waits for it, and this does not. It is no lower bound of every order,
but what this order costs on the service alone, without a moment of the client's own. Efficiency is measured by it.

The first two together (:attr:`Bound.free`) are what is left where no barrier is
needed; the third (:attr:`Bound.staged`) grants a method the barriers that it has.
``free`` may not exceed ``staged``, and neither exceeds the time measured.

What this assumes. Service seconds are what the service itself set, without
queueing; a call holds one slot. A call that needs another was sent after the
other had ended. A client that has as many threads as the service has slots,
and takes far less to send a call than the service to serve it, leaves nothing
in flight only where it waits for a decision: on a time scale so small that this
does not hold, stalls of the client count as barriers, and ``staged`` is too high.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter

from combee_dspy.exceptions import ArgumentValueError

__all__ = ["Bound", "Call", "bound_of", "in_stages"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call. Times are seconds of one clock.

    Attributes:
        start: When the service had it: a call that waits for a slot is in flight.
        end: When its answer was sent.
        seconds: What serving it takes, without waiting: at most ``end - start``.
        stage: Barriers before it (see :func:`in_stages`).
        needs: Positions of calls without whose answers it could not be sent.
    """

    start: float
    end: float
    seconds: float
    stage: int = 0
    needs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Bound:
    """Lower bounds, and what the method's own order takes, in seconds.

    Attributes:
        capacity: All service seconds over the slots.
        chain: The longest chain of calls that need each other.
        staged: The sum over stages of the greater of both, each within the stage.
        stages: Number of stages.
        schedule: The method's own schedule: the calls in their order on the service's slots.
    """

    capacity: float
    chain: float
    staged: float
    stages: int
    schedule: float

    @property
    def free(self) -> float:
        """What is left where no barrier is needed."""
        return max(self.capacity, self.chain)


def in_stages(calls: Sequence[Call]) -> list[Call]:
    """Return the calls, each with the number of barriers before it.

    A barrier is a moment at which no call is in flight, after the first and before the last.

    Args:
        calls: The calls, in any order, which is kept.
    """
    staged, stage, until = list(calls), -1, float("-inf")
    for position in sorted(range(len(calls)), key=lambda place: calls[place].start):
        if calls[position].start > until:
            stage += 1
        until = max(until, calls[position].end)
        staged[position] = replace(calls[position], stage=stage)
    return staged


def bound_of(calls: Sequence[Call], slots: int) -> Bound:
    """Return the lower bounds of the time in which these calls can be served, and what their own order takes.

    Args:
        calls: The calls, with their stages.
        slots: Calls that the service serves at once.

    Raises:
        ArgumentValueError: There is no slot, or a call needs one that had not ended when it was sent.
    """
    if slots < 1:
        raise ArgumentValueError("slots", slots, "is below 1", "Give the slots of the service.")
    stages: dict[int, list[int]] = {}
    for position, call in enumerate(calls):
        stages.setdefault(call.stage, []).append(position)
        for needed in call.needs:
            if not 0 <= needed < len(calls) or calls[needed].end > call.start:
                problem = f"does not end before call {position} starts, which needs it"
                raise ArgumentValueError("calls", needed, problem, "Name only what had been answered.")
    within = [_chain(calls, same) for same in stages.values()]
    busy = [sum(calls[position].seconds for position in same) / slots for same in stages.values()]
    return Bound(
        capacity=sum(busy),
        chain=_chain(calls, range(len(calls))),
        staged=sum(max(pair) for pair in zip(busy, within, strict=True)),
        stages=len(stages),
        schedule=sum(_scheduled(calls, same, slots) for same in stages.values()),
    )


def _scheduled(calls: Sequence[Call], among: Sequence[int], slots: int) -> float:
    """Return the seconds that some calls take, each served as soon as its order, its needs and a slot allow."""
    sorter = TopologicalSorter(_needs(calls, among))
    sorter.prepare()
    ready: list[tuple[float, int]] = []
    running: list[tuple[float, int]] = []
    now = 0.0
    while sorter.is_active():
        for position in sorter.get_ready():
            heapq.heappush(ready, (calls[position].start, position))
        while ready and len(running) < slots:
            _, position = heapq.heappop(ready)
            heapq.heappush(running, (now + calls[position].seconds, position))
        now, ended = heapq.heappop(running)
        sorter.done(ended)
    return now


def _chain(calls: Sequence[Call], among: Sequence[int]) -> float:
    """Return the seconds of the longest chain that stays among some calls."""
    needs = _needs(calls, among)
    longest: dict[int, float] = {}
    for position in TopologicalSorter(needs).static_order():
        before = max((longest[one] for one in needs[position]), default=0.0)
        longest[position] = before + calls[position].seconds
    return max(longest.values(), default=0.0)


def _needs(calls: Sequence[Call], among: Sequence[int]) -> dict[int, list[int]]:
    """Return what each of some calls needs among them."""
    known = set(among)
    return {position: [one for one in calls[position].needs if one in known] for position in among}
