"""When gepa's loop ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from combee_dspy.engine.reflection import ScanReflection
from combee_dspy.engine.replaying import Decisions
from combee_dspy.engine.state import RunState
from combee_dspy.events import Event, RunStopping
from combee_dspy.stopping import RunView, StoppingRule, ask

__all__ = ["Stopper"]


class Stopper:
    """gepa's stop callback: budgets, and errors that must not be swallowed.

    gepa asks between iterations, so every limit is soft: an iteration that was
    begun is finished. The first reason is kept. A run whose memo answers
    everything would spend no budget and never end, so one whole epoch without a
    rollout bought ends it too.

    Args:
        rule: The user's rule, if any.
        limit: The budget in rollouts, if any.
        reflection: Where a strategy's error is kept.
        run: Knows what the run has spent, and how many examples were drawn.
        epoch: Training examples.
        least: Rollouts of the smallest iteration that ends with a validation. A
            run with less left than that stops, once it has had one iteration:
            all it could buy is comparisons of single examples. 0 for never.
        between: Called with the number of iterations finished before the rules are asked, while
            nothing is in flight. What it raises ends the run.
        tell: Hears why the run is to stop, once.
        decisions: Notes the end, and may know where a rule has ended an earlier run.

    Attributes:
        reason: Why the run ends; ``None`` as long as it does not.
        cost_reached: Whether a limit on cost was reached there.
    """

    def __init__(  # noqa: PLR0913 - one wiring point
        self,
        rule: StoppingRule | None,
        limit: int | None,
        reflection: ScanReflection,
        run: RunState,
        epoch: int,
        *,
        least: int = 0,
        between: Callable[[int], None] = lambda iteration: None,
        tell: Callable[[Event], None] = lambda event: None,
        decisions: Decisions | None = None,
    ) -> None:
        self._decisions = decisions if decisions is not None else Decisions(lambda decision: None)
        self._between = between
        self._tell = tell
        self._told = False
        # Iterations finished when gepa last asked, which it does before every end of its own.
        self._finished = 0
        self._run = run
        self._epoch = epoch
        self._bought = -1
        self._bought_at = (0, 0)
        self._rule = rule
        self._limit = limit
        self._reflection = reflection
        self._least = least
        self.reason: str | None = None
        self.cost_reached = False

    def __call__(self, state: Any) -> bool:
        """Return whether to stop.

        Raises:
            Exception: What a strategy raised in the iteration before.
        """
        self.raise_failure()
        self._between(state.i + 1)
        bought = state.total_num_evals + self._run.unbilled
        totals = self._run.totals()
        view = RunView(
            rollouts=bought,
            totals=totals,
            seconds=totals.seconds,
            iteration=state.i + 1,
            validation_scores=tuple(state.program_full_scores_val_set),
            gpu_seconds=totals.total.gpu_seconds,
            validation_history=tuple(self._run.validated),
            epochs=(self._run.cursor - self._run.ahead) / self._epoch,
        )
        self._finished = view.iteration
        if self.reason is None and self._limit is not None and bought >= self._limit:
            self.reason = f"the budget of {self._limit} rollouts is spent ({bought} bought)"
        rule = self._rule
        if self.reason is None:
            self.reason = self._decisions.stop(view.iteration, lambda: None if rule is None else ask(rule, view))
        if self.reason is None and self._limit is not None and view.iteration and self._limit - bought < self._least:
            self.reason = (
                f"what is left of the budget cannot pay for another iteration: {self._limit - bought} of "
                f"{self._limit} rollouts, and the smallest takes {self._least} with its validation"
            )
        if self.reason is None and self._idle(bought, state.i):
            self.reason = "an epoch went by in which no rollout was left to buy: there is nothing more to learn here"
        if self.reason is not None:
            # A rule's answer may be any truth value: what is recorded is one of two.
            self._end(self.reason, lambda: rule is not None and bool(rule.cost_reached(view)))
        return self.reason is not None

    def ended(self) -> str:
        """Return why the run has ended: gepa's loop is over, and nobody asks any more.

        Raises:
            Exception: What a strategy raised, if a stop of gepa's or the user's own came before the next check.
        """
        self.raise_failure()
        if self.reason is None:
            self.reason = "gepa stopped"
            self._end(self.reason, lambda: False)
        return self.reason

    def _end(self, reason: str, cost_reached: Callable[[], bool]) -> None:
        """Tell of the end, once."""
        if self._told:
            return
        self._told = True
        self.cost_reached = self._decisions.cost_reached(self._finished, cost_reached)
        self._decisions.stopped(self._finished, reason, cost_reached=self.cost_reached)
        self._tell(RunStopping(iteration=self._finished, reason=reason))

    def raise_failure(self) -> None:
        """Raise what a strategy raised since this was last asked, if anything."""
        if self._reflection.failure is not None:
            raise self._reflection.failure

    def _idle(self, bought: int, iteration: int) -> bool:
        if bought != self._bought:
            self._bought, self._bought_at = bought, (self._run.cursor, iteration)
        drawn, begun = self._bought_at
        # A sampler of the user's own moves no cursor of ours: then as many iterations as an epoch can have.
        return self._run.cursor - drawn >= self._epoch or iteration - begun >= self._epoch + 1
