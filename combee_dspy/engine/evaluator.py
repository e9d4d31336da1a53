"""Buys rollouts: all of a call at once, none of them twice."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

import dspy
import tenacity

from combee_dspy.engine.candidates import Candidate, candidate_id
from combee_dspy.events import ErrorRaised, Event, RolloutFinished
from combee_dspy.exceptions import InfrastructureError
from combee_dspy.hashing import row_hash
from combee_dspy.records import Rollout
from combee_dspy.rollouts import ExecutorSession, InfrastructureFaultError, Metric, run_rollout

__all__ = ["Evaluated", "Evaluator"]

_PROGRAMS_KEPT = 8

_ATTEMPTS = 3

# Fewer unexplained failures than this in one call may be a matter of the examples.
_WIDESPREAD = 3

_Pending = Sequence[tuple["Future[Rollout]", bool]]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The rollouts of one candidate on one batch.

    Attributes:
        rollouts: One per example, in the order of the examples.
        bought: How many were not in the memo.
    """

    rollouts: tuple[Rollout, ...]
    bought: int


class Evaluator:
    """Runs candidates on examples over one executor, with one memo for the run.

    Used from the thread that runs gepa's loop; the rollouts run in the
    executor's workers.

    Args:
        build: Makes a program from a candidate; called once per candidate kept.
        metric: GEPA's metric.
        failure_score: Score of a rollout that failed.
        session: Where rollouts run. Not owned.
        emit: Hears of each rollout, in the order of the batch.
        memoize: Whether a (candidate, example) pair is bought only once.
        keep_traces: Row hashes whose traces the memo keeps; others are scored
            and their traces dropped, so that memory does not grow with validation.

    Attributes:
        emit: As given.
    """

    def __init__(
        self,
        build: Callable[[Candidate], dspy.Module],
        metric: Metric,
        failure_score: float,
        session: ExecutorSession,
        emit: Callable[[Event], None],
        *,
        memoize: bool,
        keep_traces: frozenset[str],
    ) -> None:
        self._build = build
        self._metric = metric
        self._failure_score = failure_score
        self._session = session
        self.emit = emit
        self._memoize = memoize
        self._keep_traces = keep_traces
        self._programs: OrderedDict[str, dspy.Module] = OrderedDict()
        self._memo: dict[tuple[str, str], Future[Rollout]] = {}
        self._row_hashes: dict[int, tuple[dspy.Example, str]] = {}
        self._serial = 0

    def _program(self, candidate: Candidate, identity: str) -> dspy.Module:
        if identity not in self._programs:
            self._programs[identity] = self._build(candidate)
        self._programs.move_to_end(identity)
        while len(self._programs) > _PROGRAMS_KEPT:
            self._programs.popitem(last=False)
        return self._programs[identity]

    def evaluate(
        self, items: Sequence[tuple[Candidate, Sequence[dspy.Example]]], *, purpose: str, iteration: int
    ) -> list[Evaluated]:
        """Run every candidate on its batch, all rollouts in flight together.

        Args:
            items: Candidates, each with its batch.
            purpose: ``"parent"``, ``"child"``, ``"validation"`` or ``"heldout"``.
            iteration: The iteration, for the events.

        Returns:
            One record per item, in order.

        Raises:
            InfrastructureError: Rollouts kept failing for reasons outside the program.
        """
        identities = [candidate_id(candidate) for candidate, _ in items]
        pending = [
            [self._submit(candidate, identity, example) for example in batch]
            for (candidate, batch), identity in zip(items, identities, strict=True)
        ]
        try:
            done = [
                self._gather(identity, futures, purpose, iteration)
                for identity, futures in zip(identities, pending, strict=True)
            ]
        except InfrastructureFaultError as fault:
            raise _give_up(pending, fault) from fault
        finally:
            # After an error or an interrupt nothing that has not started may be bought any more.
            for futures in pending:
                for future, _ in futures:
                    future.cancel()
        _check_service(done, pending)
        return done

    def announce(self, rollout: Rollout, identity: str, *, purpose: str, iteration: int, cached: bool = False) -> None:
        """Tell of a rollout, under an id of its own.

        Args:
            rollout: The rollout.
            identity: The candidate's content hash.
            purpose: As for :meth:`evaluate`.
            iteration: The iteration.
            cached: Whether it cost nothing.
        """
        self._serial += 1
        self.emit(
            RolloutFinished(
                iteration=iteration,
                rollout=rollout,
                rollout_id=f"{self._serial:08d}",
                candidate_id=identity,
                split={"parent": "train", "child": "train"}.get(purpose, purpose),
                purpose=purpose,
                cached=cached,
            )
        )
        if rollout.failed_in == "service" and not cached:
            self.emit(ErrorRaised(iteration=iteration, where="rollout", error=rollout.error or "", fatal=False))

    def _submit(self, candidate: Candidate, identity: str, example: dspy.Example) -> tuple[Future[Rollout], bool]:
        key = (identity, self.row_hash(example))
        if self._memoize and key in self._memo:
            known = self._memo[key]
            if not known.cancelled() and not (known.done() and known.exception()):
                return known, False
        future = self._session.submit(self._attempt, self._program(candidate, identity), example, key[1])
        if self._memoize:
            self._memo[key] = future
        return future, True

    def _attempt(self, program: dspy.Module, example: dspy.Example, example_id: str) -> Rollout:
        """Run one rollout in a worker, again where the service failed in passing."""
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(_ATTEMPTS),
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=10),
            retry=tenacity.retry_if_exception(_may_pass),
            reraise=True,
        )
        rollout: Rollout
        try:
            rollout = retrying(run_rollout, program, example, example_id, self._metric, self._failure_score)
        except InfrastructureFaultError as fault:
            if fault.rollout is None:
                raise
            rollout = fault.rollout
        return rollout if example_id in self._keep_traces else replace(rollout, trace=(), callers=())

    def _gather(self, identity: str, futures: _Pending, purpose: str, iteration: int) -> Evaluated:
        rollouts = []
        for future, bought in futures:
            rollout = future.result()
            self.announce(rollout, identity, purpose=purpose, iteration=iteration, cached=not bought)
            rollouts.append(rollout)
        return Evaluated(tuple(rollouts), sum(bought for _, bought in futures))

    def row_hash(self, example: dspy.Example) -> str:
        """Return the example's row hash, computed once per example."""
        # Keyed by identity because hashing a row costs far more than a lookup; the example is kept
        # beside its hash so that its identity cannot be taken over by another object.
        known = self._row_hashes.get(id(example))
        if known is None:
            known = self._row_hashes[id(example)] = (example, row_hash(example))
        return known[1]


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, InfrastructureFaultError) and error.retryable


def _give_up(pending: Sequence[_Pending], fault: InfrastructureFaultError) -> InfrastructureError:
    futures = [future for batch in pending for future, _ in batch]
    for future in futures:
        future.cancel()
    # What is still running is not waited for: it would only be counted.
    ended = [future for future in futures if future.done() and not future.cancelled()]
    failed = sum(1 for future in ended if future.exception() is not None)
    return InfrastructureError(failed, _ATTEMPTS if fault.retryable else 1, str(fault))


def _check_service(done: Sequence[Evaluated], pending: Sequence[_Pending]) -> None:
    """Tell a service that is down from examples that it cannot answer.

    Raises:
        InfrastructureError: Half or more of the rollouts that were bought failed for no known reason.
    """
    bought = [
        rollout
        for one, futures in zip(done, pending, strict=True)
        for rollout, (_, fresh) in zip(one.rollouts, futures, strict=True)
        if fresh
    ]
    failed = [rollout for rollout in bought if rollout.failed_in == "service"]
    if len(failed) >= max(_WIDESPREAD, len(bought) / 2):
        raise InfrastructureError(len(failed), _ATTEMPTS, failed[-1].error or "")
