"""What a method gets besides its task: the counted metric, counted evaluation, and the books."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import dspy

from combee_dspy.baselines._books import Books
from combee_dspy.baselines._meter import Meter
from combee_dspy.baselines._records import BaselineTask
from combee_dspy.baselines._texts import texts_of
from combee_dspy.engine.candidates import candidate_id
from combee_dspy.engine.evaluator import Evaluator
from combee_dspy.events import CandidateProposed, ErrorRaised, Event, RolloutFinished, RunFinished, RunStarted
from combee_dspy.records import Rollout
from combee_dspy.rollouts import EvaluationCache, ExecutorSession
from combee_dspy.tracking import Hook

__all__ = ["Desk"]


class Desk:
    """What every method shares. Used by the thread that searches; its metric by any.

    Args:
        task: The task.
        books: The books.
        meter: Hears the rollouts of optimizers that run programs themselves.
        session: Where rollouts run that are asked for here.
        emit: Where events go.
        cache: Rollouts that have been paid for; ``None`` where none is to be reused.
        plain: Returns a program of the student's own class.

    Attributes:
        books: As given.
        cache: As given.
        notes: What the method did otherwise than a reader would expect: append to it.
        reason: Why the search ended, in one sentence: set it where the method says.
    """

    def __init__(
        self,
        task: BaselineTask,
        books: Books,
        meter: Meter,
        session: ExecutorSession,
        emit: Callable[[Event], None],
        cache: EvaluationCache | None = None,
        plain: Callable[[dspy.Module], dspy.Module] = lambda program: program,
    ) -> None:
        self._task = task
        self._plain = plain
        self.cache = cache
        self.books = books
        self._meter = meter
        self._session = session
        self._emit = emit
        self.notes: list[str] = []
        self.reason = "the method ended"
        self._serial = 0

    @property
    def metric(self) -> Callable[..., Any]:
        """The task's metric in GEPA's five-argument form, counting rollouts."""
        return self._meter.metric

    @property
    def number(self) -> Callable[..., float]:
        """The same, returning a plain number."""
        return self._meter.number

    @property
    def left(self) -> int:
        """Rollouts that the budget still allows."""
        return self.books.left

    def evaluate(self, program: dspy.Module, rows: Sequence[dspy.Example]) -> list[Rollout]:
        """Run a program on rows, all in flight together, and count each rollout.

        Args:
            program: The program; not changed while this runs.
            rows: Training or validation rows.

        Returns:
            One scored rollout per row, in order.

        Raises:
            BudgetSpentError: The budget does not pay for all of them; none is bought.
            InfrastructureError: The service kept failing.
        """
        self.books.require(len(rows))
        program = self._plain(program)
        texts = texts_of(program, self._task.program)
        identity = candidate_id(texts)
        kept = program.deepcopy() if self.books.wants_program(identity) else None

        def enter(event: Event) -> None:
            if isinstance(event, RolloutFinished):
                self.books.finish(event.rollout, texts, identity, kept, cached=event.cached)
            else:
                self._emit(event)

        for _ in rows:
            self.books.begin()
        rollouts = self._run(program, texts, rows, "train", enter)
        return list(rollouts)

    def heldout(self, programs: Sequence[dspy.Module], rows: Sequence[dspy.Example]) -> list[list[float]]:
        """Score programs on held-out rows, outside the budget. For the runner."""
        scores = []
        for program in programs:
            texts = texts_of(program, self._task.program)
            rollouts = self._run(program, texts, rows, "heldout", self._emit_heldout)
            scores.append([rollout.score for rollout in rollouts])
        return scores

    def proposed(self, parent: dspy.Module, child: dspy.Module, operator: str) -> None:
        """Tell of a candidate before it is run.

        Args:
            parent: What it was made from.
            child: The candidate.
            operator: What made it.
        """
        before, after = (texts_of(program, self._task.program) for program in (parent, child))
        changed = {name: text for name, text in after.items() if before.get(name) != text}
        self._emit(
            CandidateProposed(
                iteration=self.books.iteration,
                candidate_id=candidate_id(after),
                parent_id=candidate_id(before),
                operator=operator,
                texts=changed,
            )
        )

    def trouble(self, where: str, error: str) -> None:
        """Tell of something that failed and that the method goes on after.

        Args:
            where: Which part.
            error: ``"ClassName: message"``.
        """
        self._emit(ErrorRaised(iteration=self.books.iteration, where=where, error=error, fatal=False))

    def relay(self) -> Hook:
        """Return a hook that passes on the events of a method that reports itself.

        Beginning and end of the run are told by the runner, the same for every method.
        """
        return _Relay(self.books, self._emit)

    def _emit_heldout(self, event: Event) -> None:
        if isinstance(event, RolloutFinished):
            self._serial += 1
            event = replace(event, rollout_id=f"h{self._serial:07d}")
        self._emit(event)

    def _run(
        self,
        program: dspy.Module,
        texts: Mapping[str, str],
        rows: Sequence[dspy.Example],
        purpose: str,
        emit: Callable[[Event], None],
    ) -> tuple[Rollout, ...]:
        cache = self.cache
        if purpose == "heldout" and self._task.heldout_cache is not None:
            cache = self._task.heldout_cache
        evaluator = Evaluator(
            lambda _: program,
            self._task.metric,
            self._task.failure_score,
            self._session,
            emit,
            memoize=cache is not None,
            cache=cache,
            keep_traces=frozenset() if purpose == "heldout" else self.books.train,
        )
        done = evaluator.evaluate([(dict(texts), rows)], purpose=purpose, iteration=self.books.iteration)
        return done[0].rollouts


class _Relay(Hook):
    def __init__(self, books: Books, emit: Callable[[Event], None]) -> None:
        self._books = books
        self._emit = emit

    def handle(self, event: Event) -> None:
        """Enter an event and pass it on."""
        if isinstance(event, (RunStarted, RunFinished)):
            return
        self._books.hear(event)
        self._emit(event)
