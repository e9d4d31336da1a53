"""Rollouts that were asked for, and telling an outage from a wrong answer."""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass, field
from typing import Protocol

from combee_dspy.engine.announcing import Said
from combee_dspy.exceptions import InfrastructureError
from combee_dspy.records import Rollout
from combee_dspy.rollouts import InfrastructureFaultError

__all__ = [
    "ATTEMPTS",
    "Asked",
    "Pending",
    "Ticket",
    "check_service",
    "first_of",
    "give_up",
    "one_went_well",
    "result_of",
    "tell_ready",
]

ATTEMPTS = 3

_LOOKS = 1.0

# Fewer unexplained failures than this in one call may be a matter of the examples.
_WIDESPREAD = 3


class Asked(Protocol):
    """A rollout that is on its way.

    Attributes:
        future: The rollout.
        bought: Whether this run buys it, rather than another one with the same cache.
    """

    future: Future[Rollout]
    bought: bool


@dataclass(slots=True)
class Ticket:
    """A rollout that was asked for.

    Attributes:
        future: The rollout.
        bought: Whether this call buys it: it is this call's to cancel.
        new: Whether it is new to this run.
        again: Asks for it once more, for where whoever was buying it gave up.
        said: Whether it has been told of.
    """

    future: Future[Rollout]
    bought: bool
    new: bool
    again: Callable[[], tuple[Future[Rollout], bool]]
    said: Said = field(default_factory=Said)


Pending = Sequence[Ticket]


def first_of(futures: Collection[Future[Rollout]], look: Callable[[], None]) -> set[Future[Rollout]]:
    """Wait for any of some rollouts, and return those that are there.

    Args:
        futures: The rollouts, at least one.
        look: Called while nothing happens, every second or so; what it raises ends the wait. A rollout may take
            minutes, and whoever ends a run shall not wait for it.
    """
    while not (done := wait(futures, timeout=_LOOKS, return_when=FIRST_COMPLETED).done):
        look()
    return done


def result_of(ticket: Ticket, look: Callable[[], None]) -> Rollout:
    """Return the rollout, once it is there.

    Args:
        ticket: What was asked for.
        look: As for :func:`first_of`.

    Raises:
        InfrastructureFaultError: This call was buying it, and the service failed.
        CancelledError: This call was buying it, and it was cancelled.
    """
    while True:
        try:
            if not ticket.future.done():
                first_of([ticket.future], look)
            return ticket.future.result()
        except (CancelledError, InfrastructureFaultError):
            if ticket.bought:
                raise
            # Another run was buying it, and stopped or failed: that says nothing about this one.
            ticket.future, ticket.bought = ticket.again()


def one_went_well(asked: Iterable[Asked], look: Callable[[], None]) -> bool:
    """Wait for the first rollout that did not fail, whichever it is; return whether there is one.

    Args:
        asked: The rollouts.
        look: As for :func:`first_of`.

    Raises:
        InfrastructureFaultError: This run was buying one, and the service failed.
    """
    waiting: dict[Future[Rollout], bool] = {}
    for one in asked:
        waiting[one.future] = waiting.get(one.future, False) or one.bought
    while waiting:
        for future in first_of(waiting, look):
            ours = waiting.pop(future)
            if future.cancelled():
                # In a shared cache it may have been another run's.
                continue
            fault = future.exception()
            if isinstance(fault, InfrastructureFaultError):
                if ours:
                    raise fault
                continue
            if fault is not None:
                # Raised, with all that the evaluator knows, where it is asked for.
                return False
            if future.result().error is None:
                return True
    return False


def tell_ready(pending: Pending, ready: Callable[[int, Rollout], None]) -> None:
    """Call back with each rollout's position as soon as it is there, in the caller's own context."""
    context = contextvars.copy_context()
    # A future keeps its callbacks for as long as it lives, and a memo keeps futures: what a callback
    # holds is let go when it has been called.
    calls = dict.fromkeys(range(len(pending)), (context, ready))

    def done(position: int, future: Future[Rollout]) -> None:
        own, hears = calls.pop(position)
        if not future.cancelled() and future.exception() is None:
            # A context can be entered by one thread at a time, so each call has a copy.
            own.copy().run(hears, position, future.result())

    for position, ticket in enumerate(pending):
        ticket.future.add_done_callback(functools.partial(done, position))


def give_up(pending: Sequence[Sequence[Asked]], fault: InfrastructureFaultError) -> InfrastructureError:
    """Cancel what has not started, and return the error to raise."""
    futures = [ticket.future for batch in pending for ticket in batch if ticket.bought]
    for future in futures:
        future.cancel()
    # What is still running is not waited for: it would only be counted.
    ended = [future for future in futures if future.done() and not future.cancelled()]
    failed = sum(1 for future in ended if future.exception() is not None)
    return InfrastructureError(failed, ATTEMPTS if fault.retryable else 1, str(fault))


def check_service(done: Sequence[Sequence[Rollout]], pending: Sequence[Pending]) -> None:
    """Tell a service that is down from examples that it cannot answer.

    Raises:
        InfrastructureError: Half or more of the rollouts that were bought failed for no known reason.
    """
    bought = [
        rollout
        for one, tickets in zip(done, pending, strict=True)
        for rollout, ticket in zip(one, tickets, strict=True)
        if ticket.bought
    ]
    failed = [rollout for rollout in bought if rollout.failed_in == "service"]
    if len(failed) >= max(_WIDESPREAD, len(bought) / 2):
        raise InfrastructureError(len(failed), ATTEMPTS, failed[-1].error or "")
