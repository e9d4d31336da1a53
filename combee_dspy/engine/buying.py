"""One rollout: started early, or asked for; bought once."""

from __future__ import annotations

import contextvars
import functools
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace

import dspy

from combee_dspy.engine.ahead import Ahead, AheadEntry
from combee_dspy.engine.announcing import Said
from combee_dspy.engine.attempts import Attempts
from combee_dspy.engine.candidates import Candidate
from combee_dspy.engine.tickets import Ticket
from combee_dspy.hashing import row_hash
from combee_dspy.records import Rollout
from combee_dspy.rollouts import (
    EvaluationCache,
    ExecutorSession,
    Fingerprints,
    Metric,
    Place,
    RolloutKey,
    draw_again,
    patient_program,
    placed,
)
from combee_dspy.rollouts.scheduling import SPECULATIVE

__all__ = ["Buyer", "Order"]

_PROGRAMS_KEPT = 8

_Ask = Callable[[], tuple[Future[Rollout], bool]]
"""Returns a rollout's future, and whether whoever asked buys it."""


@dataclass(frozen=True, slots=True)
class Order:
    """Which rollout, and where it waits.

    Attributes:
        candidate: The candidate.
        identity: Its content hash.
        example: The example.
        purpose: What it is for.
        place: Its place in the queue.
        replicate: Which draw.
    """

    candidate: Candidate
    identity: str
    example: dspy.Example
    purpose: str
    place: Place
    replicate: int = 0


class Buyer:
    """Buys rollouts through one memo, and keeps those that were started early until somebody asks.

    Owned by the thread that runs gepa's loop; the rollouts run in the executor's workers.

    Args:
        build: Makes a program from a candidate; called once per candidate kept.
        metric: GEPA's metric.
        failure_score: Score of a rollout that failed.
        session: Where rollouts run. Not owned.
        memoize: Whether a rollout is bought only once; without, ``cache`` is not used.
        keep_traces: Row hashes whose traces memory keeps.
        cache: Shared with other runs; by default one of this buyer's own, in memory. Not owned.

    Attributes:
        ahead: What was started before anybody asked for it.
    """

    def __init__(
        self,
        build: Callable[[Candidate], dspy.Module],
        metric: Metric,
        failure_score: float,
        session: ExecutorSession,
        *,
        memoize: bool,
        keep_traces: frozenset[str],
        cache: EvaluationCache | None,
    ) -> None:
        self._build = build
        self._session = session
        self._cache = (cache if cache is not None else EvaluationCache()) if memoize else None
        # A cache in memory that others share must hold every trace: they may reflect on other rows.
        self._keep_all = cache is not None and cache.path is None
        self._keep_traces = keep_traces
        self._attempts = Attempts(session, metric, failure_score, self._cache, self._keeps)
        self._programs: OrderedDict[tuple[str, int], dspy.Module] = OrderedDict()
        self._prints = Fingerprints(metric, failure_score)
        self._known: set[RolloutKey] = set()
        self._row_hashes: dict[int, tuple[dspy.Example, str]] = {}
        self._paid = self._found = False
        self.ahead = Ahead()

    @property
    def joins(self) -> bool:
        """Whether one who asks joins what was started before."""
        return self._cache is not None

    def read_settings(self) -> None:
        """Read DSPy's settings for what is ordered from now on: they are a part of what a rollout is known by."""
        if self._cache is not None:
            self._prints.read_settings()

    def rescore(self, metric: Metric | None) -> None:
        """Read the metric's identity again: it has changed, or is another from now on."""
        if metric is not None:
            self._attempts.metric = metric
        self._prints.rescore(self._attempts.metric)

    def row_hash(self, example: dspy.Example) -> str:
        """Return the example's row hash, computed once per example."""
        # Keyed by identity because hashing a row costs far more than a lookup; the example is kept
        # beside its hash so that its identity cannot be taken over by another object.
        known = self._row_hashes.get(id(example))
        if known is None:
            known = self._row_hashes[id(example)] = (example, row_hash(example))
        return known[1]

    def program(self, candidate: Candidate, identity: str, replicate: int = 0) -> dspy.Module:
        """Return a candidate's program for one of its draws; the last few are kept."""
        place = (identity, replicate)
        if place not in self._programs:
            built = self._build(candidate)
            if self._cache is not None:
                self._prints.of_program(identity, built)
            self._programs[place] = patient_program(draw_again(built, replicate))
        self._programs.move_to_end(place)
        while len(self._programs) > _PROGRAMS_KEPT:
            self._programs.popitem(last=False)
        return self._programs[place]

    def ask(self, order: Order) -> Ticket:
        """Return the ticket of a rollout that is needed, whether it was started early or not."""
        key, ask, again = self._way(order)
        if key is None:
            return Ticket(ask()[0], bought=True, new=True, again=again)
        entry = self.ahead.take(key)
        known = key in self._known
        self._known.add(key)
        if entry is None:
            future, bought = self._asked(ask)
            return Ticket(future, bought, bought or not known, again)
        # One that was given up may have been cancelled; one that has failed by now was tried as often as it would be.
        future, bought = self._asked(ask) if entry.held or entry.charged else (entry.future, False)
        self._move(future, order)
        # It was bought for this very call, early: the books do not tell the two apart.
        return Ticket(future, bought or entry.bought, not entry.charged, again, entry.said)

    def began(self, order: Order) -> bool:
        """Return whether a rollout was started early, and waits for somebody to ask for it. Needs a memo."""
        return self.ahead.get(self._key(order)) is not None

    def ask_early(self, order: Order, lane: str) -> Ticket:
        """Return the ticket of a rollout that nobody needs yet, and enter it in :attr:`ahead`. Needs a memo.

        In a run that has found all its rollouts so far, and so repeats another one, it is counted and not begun.

        Args:
            order: Which.
            lane: What it may be given up with.
        """
        key, ask, again = self._way(order)
        if key is None:
            raise RuntimeError("without a memo nobody could join what was started early")
        held = self._found and not self._paid
        entry = self.ahead.get(key)
        if entry is None:
            future, bought = (_cancelled(), False) if held else self._asked(ask)
            if key in self._known and not bought and not self.ahead.was_given_up(key):
                # It was told of by whoever asked for it.
                return Ticket(future, bought=False, new=False, again=again, said=Said(done=True))
            entry = AheadEntry(future, order.identity, key.row, order.purpose, lane, bought, held)
            self.ahead.add(key, entry)
            return Ticket(future, entry.bought, new=True, again=again, said=entry.said)
        if entry.held and not held:
            entry.future, entry.bought = self._asked(ask)
            entry.held = False
        if order.place.lane != SPECULATIVE:
            self._move(entry.future, order)
        return Ticket(entry.future, entry.bought, new=False, again=again, said=entry.said)

    def _way(self, order: Order) -> tuple[RolloutKey | None, _Ask, _Ask]:
        """Return what a rollout is known by, how to ask for it, and how to do so again from elsewhere.

        Asked for again, it is bought with the settings of this draw, not with those of whoever waits for it.
        """
        candidate, identity, example, replicate = order.candidate, order.identity, order.example, order.replicate
        row = self.row_hash(example)
        key: RolloutKey | None = None
        place = self._place(order)

        def buy() -> Future[Rollout]:
            program = self.program(candidate, identity, replicate)
            with placed(place):
                return self._attempts.start(program, example, row, key)

        settings = contextvars.copy_context()
        cache = self._cache
        if cache is None:
            return None, lambda: (buy(), True), lambda: (settings.run(buy), True)
        key = self._key(order)
        ask = functools.partial(
            cache.obtain, key, example, lambda: self.program(candidate, identity), buy, traced=self._keeps(row)
        )
        return key, ask, functools.partial(settings.run, self._asked, ask)

    def _key(self, order: Order) -> RolloutKey:
        """Return what a rollout is known by in the memo."""
        if not self._prints.knows(order.identity):
            self.program(order.candidate, order.identity)
        return self._prints.key(order.identity, self.row_hash(order.example), order.example, order.replicate)

    def _asked(self, ask: _Ask) -> tuple[Future[Rollout], bool]:
        future, bought = ask()
        self._paid, self._found = self._paid or bought, self._found or not bought
        return future, bought

    def _keeps(self, row: str) -> bool:
        return self._keep_all or row in self._keep_traces

    def _place(self, order: Order) -> Place:
        key = f"{order.purpose}/{order.identity}/{self.row_hash(order.example)}/{order.replicate}"
        return replace(order.place, key=key, prefix=order.identity)

    def _move(self, future: Future[Rollout], order: Order) -> None:
        """Give a rollout that waits the order's place in the queue, where the executor has one."""
        move = getattr(self._session, "move", None)
        if move is not None:
            move(future, self._place(order))


def _cancelled() -> Future[Rollout]:
    """Return the future of what is counted and not begun."""
    future: Future[Rollout] = Future()
    future.cancel()
    future.set_running_or_notify_cancel()
    return future
