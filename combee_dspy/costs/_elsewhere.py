"""Books of LM calls that another process made for a rollout of this one.

An executor of other processes asks :func:`prices_here` where a rollout is
submitted, opens :class:`WorkerBooks` where it is carried out, and gives what
they hold to :func:`take_over` where the result arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from combee_dspy.costs._ledger import Ledger, LMCall
from combee_dspy.costs._prices import PriceTable
from combee_dspy.costs._recorder import LedgerRecorder, ledgers_here, lm_listeners_here
from combee_dspy.costs._rollout import RolloutMeter
from combee_dspy.exceptions import ArgumentValueError

__all__ = ["CallsElsewhere", "WorkerBooks", "prices_here", "take_over"]


@dataclass(frozen=True, slots=True)
class CallsElsewhere:
    """What a worker's books hold after one attempt at a rollout. Can be pickled if its LMs can.

    Attributes:
        calls: One sequence of finished calls per price table, in the order of :func:`prices_here`:
            the same calls, each priced by that table.
        prompts: Sum of the hashes of the prompts of task calls (see :class:`RolloutMeter`).
        lms: LMs that were called for the first time, for whoever keeps their keys out of files.
    """

    calls: tuple[tuple[LMCall, ...], ...] = ()
    prompts: int = 0
    lms: tuple[Any, ...] = ()


def prices_here() -> tuple[PriceTable, ...]:
    """Return the price tables of the ledgers that record here, the outermost first.

    Raises:
        ArgumentValueError: A ledger shares out GPU-seconds, for which calls must be
            heard while they are in flight.
    """
    ledgers = ledgers_here()
    for ledger in ledgers:
        if ledger.gpu_roles:
            remedy = "Leave gpus out, or use executor='threads'."
            problem = "cannot be shared out over calls that other processes make"
            raise ArgumentValueError("gpus", ", ".join(ledger.gpu_roles), problem, remedy)
    return tuple(ledger.prices for ledger in ledgers)


class WorkerBooks:
    """Ledgers of one attempt at a rollout, in the process that carries it out.

    Args:
        prices: What :func:`prices_here` returned.
        known: Whether an LM's key is known to the books' owner already.
    """

    def __init__(self, prices: Sequence[PriceTable], known: Callable[[Any], bool] = lambda lm: False) -> None:
        self._heard: list[Any] = []
        self._known = known
        self._calls: tuple[list[LMCall], ...] = tuple([] for _ in prices)
        self._ledgers = [
            Ledger(table, listeners=[calls.append]) for table, calls in zip(prices, self._calls, strict=True)
        ]
        self._meter = RolloutMeter()

    @contextmanager
    def open(self) -> Iterator[RolloutMeter]:
        """Record in this ``with`` block and in everything it calls.

        Yields:
            The meter to give to :func:`combee_dspy.rollouts.run_rollout`.
        """
        with ExitStack() as stack:
            for ledger in self._ledgers:
                stack.enter_context(LedgerRecorder(ledger, self._hear).installed())
            yield self._meter

    def _hear(self, lm: Any) -> None:
        if not self._known(lm) and not any(lm is other for other in self._heard):
            self._heard.append(lm)

    def closed(self) -> CallsElsewhere:
        """Return what was recorded."""
        return CallsElsewhere(tuple(tuple(calls) for calls in self._calls), self._meter.prompts, tuple(self._heard))


def take_over(books: CallsElsewhere, meter: RolloutMeter | None) -> None:
    """Put the calls of a worker into the ledgers that record here, and into the rollout's meter.

    Counts, tokens and dollars are those that the worker measured. A ledger's
    ``peak`` does not see these calls at once: they arrive when they are over.

    Args:
        books: What the worker recorded, under the prices that were asked for in this context.
        meter: Counts the rollout's calls.
    """
    for hear in lm_listeners_here():
        for lm in books.lms:
            hear(lm)
    for ledger, calls in zip(ledgers_here(), books.calls, strict=True):
        for call in calls:
            ledger.finish(call, ledger.begin(call.role, call.model))
    if meter is not None:
        meter.take(books.calls[-1] if books.calls else (), books.prompts)
