"""The books of one run: rollouts bought, candidates validated, the curve."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import dspy

from combee_dspy.baselines._records import CurvePoint
from combee_dspy.costs import Ledger
from combee_dspy.events import Event, IterationFinished, IterationStarted, RolloutFinished, ValidationFinished
from combee_dspy.records import Rollout

__all__ = ["Books", "BudgetSpentError"]


class BudgetSpentError(BaseException):
    """The budget is spent: the search ends here, with its best so far.

    No ``Exception``, because DSPy's optimizers go on after those.
    """


@dataclass(slots=True)
class _Candidate:
    texts: Mapping[str, str]
    scores: dict[str, float] = field(default_factory=dict)
    index: int | None = None
    program: dspy.Module | None = None
    validation: float | None = None


class Books:
    """Counts rollouts and turns them into events and a curve. Thread-safe.

    A candidate counts as validated once the method has bought a rollout of it
    on every row of the validation set, in whatever order and however many at a
    time. An iteration ends with each validation; what comes before the seed's
    belongs to iteration 0.

    Args:
        emit: Where events go.
        ledger: What has been spent; its clock times the run.
        train: Row hashes of the training set.
        validation: Row hashes of the validation set.
        limit: The budget in rollouts.
    """

    def __init__(
        self,
        emit: Callable[[Event], None],
        ledger: Ledger,
        train: frozenset[str],
        validation: frozenset[str],
        limit: int,
    ) -> None:
        self._emit = emit
        self._ledger = ledger
        self.train = train
        self._validation = validation
        self.limit = limit
        self._lock = threading.RLock()
        self._idle = threading.Condition(self._lock)
        self._candidates: dict[str, _Candidate] = {}
        self._curve: list[CurvePoint] = []
        self._began = ledger.clock()
        self._iteration_began = self._began
        self._iteration = 0
        self._open = False
        self._started = 0
        self._running = 0
        self._serial = 0
        self.rollouts = 0
        self.reused = 0
        self.spent = False

    @property
    def iteration(self) -> int:
        """The iteration that is open."""
        return self._iteration

    @property
    def left(self) -> int:
        """Rollouts that may still be begun."""
        with self._lock:
            return max(0, self.limit - self._started)

    def start(self) -> None:
        """Start the clock: the search begins."""
        self._began = self._iteration_began = self._ledger.clock()

    def require(self, rollouts: int) -> None:
        """Check that the budget pays for so many more.

        Raises:
            BudgetSpentError: It does not.
        """
        with self._lock:
            if self._started + rollouts > self.limit:
                self.spent = True
                raise BudgetSpentError(f"{self.limit - self._started} rollouts are left, {rollouts} were asked for")

    def begin(self) -> None:
        """Admit one rollout.

        Raises:
            BudgetSpentError: As many as the budget allows have begun.
        """
        with self._lock:
            if self._started >= self.limit:
                self.spent = True
                raise BudgetSpentError(f"{self.limit} rollouts have been bought")
            self._started += 1
            self._running += 1

    def drop(self) -> None:
        """Note that a rollout that had begun ended without a score."""
        with self._lock:
            self._running -= 1
            self._idle.notify_all()

    def finish(
        self,
        rollout: Rollout,
        texts: Mapping[str, str],
        identity: str,
        program: dspy.Module | None,
        *,
        cached: bool = False,
    ) -> None:
        """Enter a rollout that :meth:`begin` had admitted, bought now or ``cached``: paid for before."""
        with self._lock:
            self._running -= 1
            self.rollouts += 1
            self.reused += cached
            self._serial += 1
            known = self._candidates.setdefault(identity, _Candidate(texts))
            if known.program is None and program is not None:
                known.program = program
            split, purpose = "train", "child" if known.validation is None else "parent"
            if rollout.example_id in self._validation:
                split = purpose = "validation"
            self._open = True
            self._emit(
                RolloutFinished(
                    iteration=self._iteration,
                    rollout=rollout,
                    rollout_id=f"{self._serial:08d}",
                    candidate_id=identity,
                    split=split,
                    purpose=purpose,
                    cached=cached,
                )
            )
            if split == "validation":
                self._score(identity, known, rollout)
            self._idle.notify_all()

    def _score(self, identity: str, known: _Candidate, rollout: Rollout) -> None:
        known.scores.setdefault(rollout.example_id, rollout.score)
        if known.validation is not None or len(known.scores) < len(self._validation):
            return
        known.validation = sum(known.scores.values()) / len(known.scores)
        known.index = sum(one.index is not None for one in self._candidates.values())
        best = all(known.validation > point.validation for point in self._curve)
        point = self._point(identity, known.validation)
        self._curve.append(point)
        self._emit(
            ValidationFinished(
                iteration=self._iteration,
                index=known.index,
                candidate_id=identity,
                texts=dict(known.texts),
                score=known.validation,
                best=best,
                rollouts=self.rollouts,
            )
        )
        self.end_iteration(accepted=best and known.index > 0)

    def end_iteration(self, *, accepted: bool = False) -> None:
        """Close the open iteration, if anything happened in it, and open the next."""
        with self._lock:
            if not self._open:
                return
            now = self._ledger.clock()
            if self._iteration > 0:
                self._emit(
                    IterationFinished(
                        iteration=self._iteration,
                        accepted=accepted,
                        rollouts=self.rollouts,
                        best_score=max((point.validation for point in self._curve), default=0.0),
                        seconds=now - self._iteration_began,
                        costs=self._ledger.snapshot().to_dict(),
                    )
                )
            self._iteration += 1
            self._iteration_began = now
            self._open = False
            self._emit(IterationStarted(iteration=self._iteration))

    def hear(self, event: Event) -> None:
        """Take an event of a method that reports itself into the books."""
        with self._lock:
            self._iteration = max(self._iteration, event.iteration)
            if isinstance(event, RolloutFinished):
                self.rollouts += not event.cached
                self.reused += event.cached
            if isinstance(event, ValidationFinished):
                self._candidates[event.candidate_id] = _Candidate(event.texts, {}, event.index, None, event.score)
                point = self._point(event.candidate_id, event.score)
                self._curve.append(replace(point, rollouts=max(point.rollouts, event.rollouts)))

    def _point(self, identity: str, score: float) -> CurvePoint:
        total = self._ledger.snapshot().total
        best = max((point.best for point in self._curve), default=score)
        seconds = self._ledger.clock() - self._began
        return CurvePoint(self.rollouts, total.tokens, total.dollars, seconds, score, max(best, score), identity)

    def settle(self, timeout: float = 120.0) -> None:
        """Wait until no admitted rollout is in flight: an optimizer that was stopped leaves some behind."""
        with self._lock:
            self._idle.wait_for(lambda: self._running <= 0, timeout)

    def seconds(self) -> float:
        """Return the seconds since the search began."""
        return self._ledger.clock() - self._began

    @property
    def curve(self) -> tuple[CurvePoint, ...]:
        """One point per validated candidate, in order."""
        with self._lock:
            return tuple(self._curve)

    def validation_of(self, identity: str) -> tuple[int, float] | None:
        """Return a candidate's index and mean validation score; ``None`` where it was not validated."""
        with self._lock:
            known = self._candidates.get(identity)
            if known is None or known.validation is None:
                return None
            return known.index or 0, known.validation

    def wants_program(self, identity: str) -> bool:
        """Return whether no program has been kept yet for a candidate."""
        with self._lock:
            known = self._candidates.get(identity)
            return known is None or known.program is None

    def best(self) -> dspy.Module | None:
        """Return the program with the best validation, the first of equals; ``None`` where none was kept."""
        with self._lock:
            validated = [one for one in self._candidates.values() if one.validation is not None and one.program]
            return max(validated, key=lambda one: (one.validation, -(one.index or 0))).program if validated else None
