"""Buys rollouts: all of a call at once, none of them twice."""

from __future__ import annotations

import contextlib
import functools
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

import dspy
import tenacity

from combee_dspy.costs import RolloutMeter
from combee_dspy.engine.ahead import Ahead, AheadEntry
from combee_dspy.engine.candidates import Candidate, candidate_id
from combee_dspy.engine.tickets import ATTEMPTS, Pending, Ticket, check_service, give_up, result_of, tell_ready
from combee_dspy.events import ErrorRaised, Event, RolloutFinished
from combee_dspy.hashing import row_hash
from combee_dspy.records import Rollout
from combee_dspy.rollouts import (
    EvaluationCache,
    ExecutorSession,
    Fingerprints,
    InfrastructureFaultError,
    Metric,
    RolloutKey,
    another_draw,
    draw_again,
    run_rollout,
)

__all__ = ["Begun", "Evaluated", "Evaluator"]

_PROGRAMS_KEPT = 8


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The rollouts of one candidate on one batch.

    Attributes:
        rollouts: One per example, in the order of the examples.
        bought: How many are new to this run: what budgets in rollouts count. One that an earlier
            run had paid for is among them, so that a run's course does not depend on what the
            cache held when it began.
        reused: How many of these cost nothing.
    """

    rollouts: tuple[Rollout, ...]
    bought: int
    reused: int = 0


@dataclass(frozen=True, slots=True)
class Begun:
    """Rollouts that are on their way.

    Attributes:
        identities: Each candidate's content hash.
        pending: Their rollouts.
        purpose: What they are for.
        iteration: The iteration.
        replicate: Which draw.
    """

    identities: tuple[str, ...]
    pending: tuple[Pending, ...]
    purpose: str
    iteration: int
    replicate: int = 0

    def cancel(self) -> None:
        """Cancel what this call buys and has not started."""
        for ticket in (ticket for tickets in self.pending for ticket in tickets if ticket.bought):
            ticket.future.cancel()


class Evaluator:
    """Runs candidates on examples over one executor, and buys no rollout twice.

    Used from the thread that runs gepa's loop; the rollouts run in the
    executor's workers.

    Args:
        build: Makes a program from a candidate; called once per candidate kept.
        metric: GEPA's metric.
        failure_score: Score of a rollout that failed.
        session: Where rollouts run. Not owned.
        emit: Hears of each rollout, in the order of the batch.
        memoize: Whether a rollout is bought only once; without, ``cache`` is not used.
        keep_traces: Row hashes whose traces memory keeps; others are scored
            and their traces dropped, so that memory does not grow with validation.
        cache: Shared with other runs; by default one of this evaluator's own, in memory. Not owned.

    Attributes:
        emit: As given.
        ahead: What was started before anybody asked for it.
        asked: Rollouts asked for so far, those at hand included.
        bought: How many of them were new to this run.
    """

    def __init__(  # noqa: PLR0913 - one wiring point, called once per run
        self,
        build: Callable[[Candidate], dspy.Module],
        metric: Metric,
        failure_score: float,
        session: ExecutorSession,
        emit: Callable[[Event], None],
        *,
        memoize: bool,
        keep_traces: frozenset[str],
        cache: EvaluationCache | None = None,
    ) -> None:
        self._build = build
        self._metric = metric
        self._failure_score = failure_score
        self._session = session
        self.emit = emit
        self._cache = (cache if cache is not None else EvaluationCache()) if memoize else None
        # A cache in memory that others share must hold every trace: they may reflect on other rows.
        self._keep_all = cache is not None and cache.path is None
        self._keep_traces = keep_traces
        self._programs: OrderedDict[tuple[str, int], dspy.Module] = OrderedDict()
        self._prints = Fingerprints(metric, failure_score)
        self._known: set[RolloutKey] = set()
        self._row_hashes: dict[int, tuple[dspy.Example, str]] = {}
        self._serial = 0
        self.ahead = Ahead()
        self.asked = 0
        self.bought = 0

    def _program(self, candidate: Candidate, identity: str, replicate: int = 0) -> dspy.Module:
        place = (identity, replicate)
        if place not in self._programs:
            built = self._build(candidate)
            if self._cache is not None:
                self._prints.of_program(identity, built)
            self._programs[place] = draw_again(built, replicate)
        self._programs.move_to_end(place)
        while len(self._programs) > _PROGRAMS_KEPT:
            self._programs.popitem(last=False)
        return self._programs[place]

    def evaluate(
        self,
        items: Sequence[tuple[Candidate, Sequence[dspy.Example]]],
        *,
        purpose: str,
        iteration: int,
        replicate: int = 0,
        ready: Callable[[int, Rollout], None] | None = None,
    ) -> list[Evaluated]:
        """Run every candidate on its batch, all rollouts in flight together.

        Args:
            items: Candidates, each with its batch.
            purpose: ``"parent"``, ``"child"``, ``"validation"`` or ``"heldout"``.
            iteration: The iteration, for the events.
            replicate: Which draw: 0, or a further one, for which the program's LMs and DSPy's are
                asked with a ``rollout_id`` of their own, past DSPy's cache. An LM at temperature 0
                answers as before (see :func:`combee_dspy.rollouts.repeats_itself`).
            ready: Called with a rollout's position in its batch as soon as it is there, in any order and
                from any thread; not for one whose buyer gave up. It must return at once and not raise.

        Returns:
            One record per item, in order.

        Raises:
            InfrastructureError: Rollouts kept failing for reasons outside the program.
        """
        return self.finish(
            self.begin(
                items,
                purpose=purpose,
                iteration=iteration,
                replicate=replicate,
                ready=[ready] * len(items) if ready is not None else (),
            )
        )

    def begin(
        self,
        items: Sequence[tuple[Candidate, Sequence[dspy.Example]]],
        *,
        purpose: str,
        iteration: int,
        replicate: int = 0,
        ready: Sequence[Callable[[int, Rollout], None] | None] = (),
    ) -> Begun:
        """Start what :meth:`evaluate` does, and return at once. :meth:`finish` must follow.

        Args:
            items: As for :meth:`evaluate`.
            purpose: As for :meth:`evaluate`.
            iteration: As for :meth:`evaluate`.
            replicate: As for :meth:`evaluate`.
            ready: As for :meth:`evaluate`, one per item; empty for none.
        """
        identities = tuple(candidate_id(candidate) for candidate, _ in items)
        pending: list[list[Ticket]] = []
        if self._cache is not None:
            self._prints.read_settings()
        lm = dspy.settings.lm
        with dspy.context(lm=another_draw(lm, replicate)) if replicate else contextlib.nullcontext():
            try:
                for number, ((candidate, batch), identity) in enumerate(zip(items, identities, strict=True)):
                    tickets: list[Ticket] = []
                    pending.append(tickets)
                    for example in batch:
                        tickets.append(self._submit(candidate, identity, example, replicate, purpose))
                    hears = ready[number] if ready else None
                    if hears is not None:
                        tell_ready(tickets, hears)
            except BaseException:
                Begun(identities, tuple(pending), purpose, iteration, replicate).cancel()
                raise
        self.asked += sum(map(len, pending))
        self.bought += sum(ticket.new for tickets in pending for ticket in tickets)
        return Begun(identities, tuple(pending), purpose, iteration, replicate)

    def finish(self, begun: Begun) -> list[Evaluated]:
        """Wait for what was begun.

        Returns:
            One record per item, in order.

        Raises:
            InfrastructureError: Rollouts kept failing for reasons outside the program.
        """
        try:
            done = [
                self._gather(identity, tickets, begun.purpose, begun.iteration, begun.replicate)
                for identity, tickets in zip(begun.identities, begun.pending, strict=True)
            ]
        except InfrastructureFaultError as fault:
            raise give_up(begun.pending, fault) from fault
        finally:
            # After an error or an interrupt nothing that has not started may be bought any more.
            begun.cancel()
        check_service([one.rollouts for one in done], begun.pending)
        return done

    def start_ahead(
        self,
        items: Sequence[tuple[Candidate, Sequence[dspy.Example]]],
        *,
        purpose: str,
        lane: str,
        most: int | None = None,
        ready: Sequence[Callable[[int, Rollout], None] | None] = (),
    ) -> int:
        """Start rollouts that are likely to be asked for, and return how many are new to this run.

        Whoever evaluates one later joins it. Without a memo there is nothing to join, so nothing is bought.

        Args:
            items: Candidates, each with its batch; what comes first is bought first.
            purpose: What they are likely to be for: decides their place in the queue.
            lane: Names what may be given up together (see :attr:`ahead`).
            most: The most that may be started.
            ready: As for :meth:`begin`.
        """
        if self._cache is None:
            return 0
        self._prints.read_settings()
        started = 0
        for number, (candidate, batch) in enumerate(items):
            identity = candidate_id(candidate)
            tickets: list[Ticket] = []
            for example in batch:
                if most is not None and started >= most:
                    break
                tickets.append(self._submit(candidate, identity, example, 0, purpose, lane=lane))
                started += tickets[-1].new
            hears = ready[number] if ready else None
            if hears is not None:
                tell_ready(tickets, hears)
        return started

    def settle_ahead(self) -> int:
        """Announce what was started ahead, given up and has ended since; return how many that were."""
        ended = self.ahead.ended()
        for entry in ended:
            self.announce(
                entry.future.result(),
                entry.candidate_id,
                purpose="speculative",
                iteration=entry.iteration,
                split=_split_of(entry.purpose),
            )
        return len(ended)

    def rescore(self, metric: Metric | None = None) -> None:
        """Read the metric's identity again, between iterations: it has changed, or is another from now on."""
        self._metric = metric if metric is not None else self._metric
        self._prints.rescore(self._metric)

    def announce(
        self,
        rollout: Rollout,
        identity: str,
        *,
        purpose: str,
        iteration: int,
        cached: bool = False,
        replicate: int = 0,
        split: str | None = None,
    ) -> None:
        """Tell of a rollout, under an id of its own.

        Args:
            rollout: The rollout.
            identity: The candidate's content hash.
            purpose: As for :meth:`evaluate`; ``"speculative"`` for one that nobody asked for in the end.
            iteration: The iteration.
            cached: Whether it cost nothing.
            replicate: Which draw it is.
            split: Where the example stands; by default as the purpose says.
        """
        self._serial += 1
        self.emit(
            RolloutFinished(
                iteration=iteration,
                rollout=rollout,
                rollout_id=f"{self._serial:08d}",
                candidate_id=identity,
                split=split or _split_of(purpose),
                purpose=purpose,
                cached=cached,
                replicate=replicate,
            )
        )
        if rollout.failed_in == "service" and not cached:
            self.emit(ErrorRaised(iteration=iteration, where="rollout", error=rollout.error or "", fatal=False))

    def _submit(
        self,
        candidate: Candidate,
        identity: str,
        example: dspy.Example,
        replicate: int,
        purpose: str,
        lane: str | None = None,
    ) -> Ticket:
        row = self.row_hash(example)
        key: RolloutKey | None = None

        def buy() -> Future[Rollout]:
            program = self._program(candidate, identity, replicate)
            return self._session.submit(self._attempt, program, example, row, key, time.monotonic())

        cache = self._cache
        if cache is None:
            return Ticket(buy(), bought=True, new=True, again=lambda: (buy(), True))
        if not self._prints.knows(identity):
            self._program(candidate, identity)
        key = self._prints.key(identity, row, example, replicate)
        ask = functools.partial(
            cache.obtain,
            key,
            example,
            lambda: self._program(candidate, identity),
            buy,
            traced=self._keep_all or row in self._keep_traces,
        )
        future, bought = ask()
        if lane is not None:
            early = key not in self._known and key not in self.ahead
            if early:
                self.ahead.add(key, AheadEntry(future, identity, purpose, lane, bought))
            return Ticket(future, bought, early, ask)
        joined = self.ahead.take(key)
        if joined is not None:
            # It was bought for this very call, early: the books do not tell the two apart.
            self._known.add(key)
            return Ticket(future, bought=bought or joined.bought, new=not joined.charged, again=ask)
        new = bought or key not in self._known
        self._known.add(key)
        return Ticket(future, bought, new, ask)

    def _attempt(
        self, program: dspy.Module, example: dspy.Example, example_id: str, key: RolloutKey | None, submitted: float
    ) -> Rollout:
        """Run one rollout in a worker, again where the service failed in passing."""
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(ATTEMPTS),
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=10),
            retry=tenacity.retry_if_exception(_may_pass),
            reraise=True,
        )
        meter = RolloutMeter(submitted, time.monotonic())
        rollout: Rollout
        try:
            # A session of other processes carries the rollout itself there.
            run = getattr(self._session, "run_rollout", run_rollout)
            rollout = retrying(run, program, example, example_id, self._metric, self._failure_score, meter)
        except InfrastructureFaultError as fault:
            if fault.rollout is None:
                raise
            rollout = fault.rollout
        rollout = meter.stamp(rollout)
        if self._cache is not None and key is not None:
            self._cache.keep(key, rollout, program)
        if self._keep_all or example_id in self._keep_traces:
            return rollout
        return replace(rollout, trace=(), callers=())

    def _gather(self, identity: str, tickets: Pending, purpose: str, iteration: int, replicate: int) -> Evaluated:
        rollouts = []
        for ticket in tickets:
            rollout = result_of(ticket)
            self.announce(
                rollout, identity, purpose=purpose, iteration=iteration, cached=not ticket.bought, replicate=replicate
            )
            rollouts.append(rollout)
        new = [ticket for ticket in tickets if ticket.new]
        return Evaluated(tuple(rollouts), len(new), sum(not ticket.bought for ticket in new))

    def row_hash(self, example: dspy.Example) -> str:
        """Return the example's row hash, computed once per example."""
        # Keyed by identity because hashing a row costs far more than a lookup; the example is kept
        # beside its hash so that its identity cannot be taken over by another object.
        known = self._row_hashes.get(id(example))
        if known is None:
            known = self._row_hashes[id(example)] = (example, row_hash(example))
        return known[1]


def _split_of(purpose: str) -> str:
    return {"parent": "train", "child": "train", "screen": "train"}.get(purpose, purpose)


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, InfrastructureFaultError) and error.retryable
