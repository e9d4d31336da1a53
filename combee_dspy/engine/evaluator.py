"""Buys rollouts: all of a call at once, none of them twice."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

import dspy
import tenacity

from combee_dspy.engine.candidates import Candidate, candidate_id
from combee_dspy.events import Event, RolloutFinished
from combee_dspy.exceptions import InfrastructureError
from combee_dspy.hashing import row_hash
from combee_dspy.records import Rollout
from combee_dspy.rollouts import ExecutorSession, InfrastructureFaultError, Metric, run_rollout

__all__ = ["Evaluated", "Evaluator"]

_PROGRAMS_KEPT = 8


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
        attempts: How often a rollout is tried when the service fails.
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
        attempts: int = 3,
    ) -> None:
        self._build = build
        self._metric = metric
        self._failure_score = failure_score
        self._session = session
        self._emit = emit
        self._memoize = memoize
        self._keep_traces = keep_traces
        self._attempts = attempts
        self._programs: OrderedDict[str, dspy.Module] = OrderedDict()
        self._memo: dict[tuple[str, str], Future[Rollout]] = {}
        self._lock = threading.Lock()
        self._row_hashes: dict[int, tuple[dspy.Example, str]] = {}
        self._serial = 0

    def program(self, candidate: Candidate) -> dspy.Module:
        """Return the candidate's program. To be run and read, not changed."""
        key = candidate_id(candidate)
        with self._lock:
            if key in self._programs:
                self._programs.move_to_end(key)
                return self._programs[key]
        program = self._build(candidate)
        with self._lock:
            self._programs[key] = program
            while len(self._programs) > _PROGRAMS_KEPT:
                self._programs.popitem(last=False)
        return program

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
        pending = [[self._submit(candidate, example) for example in batch] for candidate, batch in items]
        try:
            return [
                self._gather(candidate, futures, purpose, iteration)
                for (candidate, _), futures in zip(items, pending, strict=True)
            ]
        except InfrastructureFaultError as fault:
            raise self._give_up(pending, fault) from fault
        finally:
            # After an error or an interrupt nothing that has not started may be bought any more.
            for futures in pending:
                for future, _ in futures:
                    future.cancel()

    def _submit(self, candidate: Candidate, example: dspy.Example) -> tuple[Future[Rollout], bool]:
        key = (candidate_id(candidate), self._row_hash(example))
        if self._memoize and key in self._memo:
            known = self._memo[key]
            if not known.cancelled() and not (known.done() and known.exception()):
                return known, False
        future = self._session.submit(self._attempt, self.program(candidate), example, key[1])
        if self._memoize:
            self._memo[key] = future
        return future, True

    def _attempt(self, program: dspy.Module, example: dspy.Example, example_id: str) -> Rollout:
        """Run one rollout in a worker, again where the service failed in passing."""
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(self._attempts),
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=10),
            retry=tenacity.retry_if_exception(_may_pass),
            reraise=True,
        )
        rollout: Rollout = retrying(run_rollout, program, example, example_id, self._metric, self._failure_score)
        return rollout if example_id in self._keep_traces else replace(rollout, trace=())

    def _gather(
        self, candidate: Candidate, futures: Sequence[tuple[Future[Rollout], bool]], purpose: str, iteration: int
    ) -> Evaluated:
        identity = candidate_id(candidate)
        rollouts = []
        for future, bought in futures:
            rollout = future.result()
            self._serial += 1
            self._emit(
                RolloutFinished(
                    iteration=iteration,
                    rollout=rollout,
                    rollout_id=f"{self._serial:08d}",
                    candidate_id=identity,
                    split={"parent": "train", "child": "train"}.get(purpose, purpose),
                    purpose=purpose,
                    cached=not bought,
                )
            )
            rollouts.append(rollout)
        return Evaluated(tuple(rollouts), sum(bought for _, bought in futures))

    def _give_up(
        self, pending: Sequence[Sequence[tuple[Future[Rollout], bool]]], fault: InfrastructureFaultError
    ) -> InfrastructureError:
        futures = [future for batch in pending for future, _ in batch]
        for future in futures:
            future.cancel()
        failed = sum(1 for future in futures if not future.cancelled() and future.exception() is not None)
        return InfrastructureError(failed, self._attempts if fault.retryable else 1, str(fault))

    def _row_hash(self, example: dspy.Example) -> str:
        # Keyed by identity because hashing a row costs far more than a lookup; the example is kept
        # beside its hash so that its identity cannot be taken over by another object.
        known = self._row_hashes.get(id(example))
        if known is None:
            known = self._row_hashes[id(example)] = (example, row_hash(example))
        return known[1]


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, InfrastructureFaultError) and error.retryable
