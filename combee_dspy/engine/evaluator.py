"""Buys rollouts: all of a call at once, none of them twice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import dspy

from combee_dspy.engine.announcing import About, Announcer
from combee_dspy.engine.buying import Buyer, Order
from combee_dspy.engine.candidates import Candidate, candidate_id
from combee_dspy.engine.tickets import Pending, Ticket, check_service, give_up, one_went_well, result_of, tell_ready
from combee_dspy.events import Event
from combee_dspy.records import Rollout
from combee_dspy.rollouts import (
    EvaluationCache,
    ExecutorSession,
    InfrastructureFaultError,
    Metric,
    Place,
    another_draw,
)
from combee_dspy.rollouts.scheduling import SPECULATIVE

__all__ = ["Begun", "Evaluated", "Evaluator", "Standing"]

Standing = Literal["guess", "likely", "certain"]
"""How sure it is that somebody will ask for a rollout that is started early."""

# A child's validation is read at the end of an iteration; its screen decides whether there is one.
_LANES = {"child": "screening", "screen": "screening", "validation": "validation", "heldout": "validation"}


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

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Cancel it where a ``with`` block raises, after which nobody would finish it."""
        try:
            yield
        except BaseException:
            self.cancel()
            raise

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
        look: Raises what is to end the run; called now and then by whoever waits for rollouts.

    Attributes:
        emit: As given.
        ahead: What was started before anybody asked for it.
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
        look: Callable[[], None] = lambda: None,
    ) -> None:
        self._session = session
        self.emit = emit
        self._look = look
        self._announcer = Announcer(emit)
        self._buyer = Buyer(
            build, metric, failure_score, session, memoize=memoize, keep_traces=keep_traces, cache=cache
        )
        self.ahead = self._buyer.ahead

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
        self._buyer.read_settings()
        place = Place(_LANES.get(purpose, "rollout"), iteration=iteration)
        lm = dspy.settings.lm
        with dspy.context(lm=another_draw(lm, replicate)) if replicate else contextlib.nullcontext():
            try:
                for number, ((candidate, batch), identity) in enumerate(zip(items, identities, strict=True)):
                    tickets: list[Ticket] = []
                    pending.append(tickets)
                    tickets.extend(
                        # One by one: an interrupt finds those that have been bought.
                        self._buyer.ask(Order(candidate, identity, example, purpose, place, replicate))
                        for example in batch
                    )
                    hears = ready[number] if ready else None
                    if hears is not None:
                        self._let_hear(tickets, hears, About(identity, purpose, iteration, replicate=replicate))
            except BaseException:
                Begun(identities, tuple(pending), purpose, iteration, replicate).cancel()
                raise
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
            self._announcer.raise_ending()
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
        iteration: int = 0,
        standing: Standing = "guess",
        most: int | None = None,
        ready: Sequence[Callable[[int, Rollout], None] | None] = (),
    ) -> int:
        """Start rollouts that are likely to be asked for, and return how many are new to this run.

        Whoever evaluates one later joins it. Without a memo there is nothing to join, so nothing is bought. A run that
        has found all its rollouts in the cache so far repeats another one, which may have given up what it did not need
        before that began: here it is counted and not begun, so that a repeated run buys nothing.

        Args:
            items: Candidates, each with its batch; what comes first is bought first.
            purpose: What they are likely to be for: decides their place in the queue.
            lane: Names what may be given up together (see :attr:`ahead`).
            iteration: The iteration that is likely to ask.
            standing: ``"certain"`` is asked for unless the run ends, and waits for its turn like any other.
                ``"likely"`` waits for its turn too; a ``"guess"`` takes the slots that nobody else wants.
                What was started before on a guess moves to its new place.
            most: The most that may be started: the first beyond it that has not begun early ends the batch.
            ready: As for :meth:`begin`.
        """
        if not self._buyer.joins:
            return 0
        self._buyer.read_settings()
        place = Place(SPECULATIVE if standing == "guess" else _LANES.get(purpose, "rollout"), iteration=iteration)
        started = 0
        for number, (candidate, batch) in enumerate(items):
            identity = candidate_id(candidate)
            tickets: list[Ticket] = []
            for example in batch:
                order = Order(candidate, identity, example, purpose, place)
                if most is not None and started >= most and not self._buyer.began(order):
                    break
                tickets.append(self._buyer.ask_early(order, lane))
                started += tickets[-1].new
            hears = ready[number] if ready else None
            if hears is not None:
                # A guess is told of when it is known what it was for.
                about = About(identity, purpose, iteration) if standing == "certain" else None
                self._let_hear(tickets, hears, about)
        return started

    def one_goes_well(self, begun: Begun, lane: str) -> bool:
        """Wait until a rollout of some that are on their way has not failed; return whether one has not.

        Args:
            begun: Some.
            lane: Others: what was started early in this lane.

        Raises:
            InfrastructureError: One that this run buys failed for reasons outside the program.
        """
        early = self.ahead.waiting_in(lane)
        try:
            return one_went_well([*early, *(ticket for tickets in begun.pending for ticket in tickets)], self.look)
        except InfrastructureFaultError as fault:
            raise give_up([early, *begun.pending], fault) from fault

    def settle_ahead(self) -> None:
        """Announce what was started ahead, given up and has ended since."""
        for entry in self.ahead.ended():
            split = "train" if entry.purpose == "parent" else entry.purpose
            about = About(entry.candidate_id, "speculative", entry.iteration, split=split)
            self._announcer.once(entry.said, entry.future.result(), about)

    def rescore(self, metric: Metric | None = None) -> None:
        """Read the metric's identity again, between iterations: it has changed, or is another from now on."""
        self._buyer.rescore(metric)

    def announce(self, rollout: Rollout, identity: str, *, purpose: str, iteration: int) -> None:
        """Tell of a rollout that somebody else bought, under an id of its own.

        Args:
            rollout: The rollout.
            identity: The candidate's content hash.
            purpose: As for :meth:`evaluate`.
            iteration: The iteration.
        """
        self._announcer.tell(rollout, About(identity, purpose, iteration))

    def _let_hear(self, tickets: Pending, hears: Callable[[int, Rollout], None], about: About | None) -> None:
        """Call back with each rollout as soon as it is there, and has been told of where it is known what it is."""

        def heard(position: int, rollout: Rollout) -> None:
            ticket = tickets[position]
            if about is not None:
                self._announcer.once_early(ticket.said, rollout, replace(about, cached=not ticket.bought))
            hears(position, rollout)

        tell_ready(tickets, heard)

    def look(self) -> None:
        """Raise what a listener raised to end the run, in a worker or elsewhere.

        Raises:
            BaseException: That.
        """
        self._announcer.raise_ending()
        # An executor of somebody else's may tell nothing, and then nobody has ended a run there.
        scheduler = getattr(self._session, "raise_ending", None)
        if scheduler is not None:
            scheduler()
        self._look()

    def _gather(self, identity: str, tickets: Pending, purpose: str, iteration: int, replicate: int) -> Evaluated:
        rollouts = []
        for ticket in tickets:
            rollout = result_of(ticket, self.look)
            about = About(identity, purpose, iteration, not ticket.bought, replicate)
            self._announcer.once(ticket.said, rollout, about)
            self._announcer.raise_ending()
            rollouts.append(rollout)
        new = [ticket for ticket in tickets if ticket.new]
        return Evaluated(tuple(rollouts), len(new), sum(not ticket.bought for ticket in new))

    def row_hash(self, example: dspy.Example) -> str:
        """Return the example's row hash, computed once per example."""
        return self._buyer.row_hash(example)
