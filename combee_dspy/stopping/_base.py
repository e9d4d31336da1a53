"""The stopping contract: what is known in, a reason to stop out; and the algebra of rules."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from combee_dspy.costs import Totals
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.strategies import Strategy

__all__ = ["AllOf", "AnyOf", "RunView", "StoppingRule", "ask"]


@dataclass(frozen=True, slots=True)
class RunView:
    """What a rule may know about a run.

    Attributes:
        rollouts: Rollouts bought so far.
        totals: The ledger's totals, those of the run's earlier parts included where it was resumed.
        seconds: Wall-clock seconds of the run, those of its earlier parts included.
        iteration: Iterations finished.
        validation_scores: Mean validation score of every validated candidate, in order; the seed is first.
        gpu_seconds: GPU-seconds of the run, those of its earlier parts included; ``None`` where nobody counts them.
        validation_history: ``(iteration, score)`` of the same candidates, in the same order: after which
            iteration each was validated, 0 for the seed.
        epochs: Training examples drawn over the size of the training set: 1.0 once each was in one minibatch.
            Examples that are in every minibatch count once an epoch.
    """

    rollouts: int = 0
    totals: Totals = field(default_factory=Totals)
    seconds: float = 0.0
    iteration: int = 0
    validation_scores: tuple[float, ...] = ()
    gpu_seconds: float | None = None
    validation_history: tuple[tuple[int, float], ...] = ()
    epochs: float = 0.0


class StoppingRule(Strategy):
    """Says when a run has done enough.

    Rules are asked between iterations, so a run ends softly: what is in
    flight finishes and is paid. ``a | b`` stops when one of them would,
    ``a & b`` when both would. A rule holds no state: everything it decides
    by is in the view. A rule that raises, or returns something else, ends the run
    with an error: see :func:`ask`.
    """

    kind: ClassVar[str] = "stopping"

    @abstractmethod
    def check(self, view: RunView) -> str | None:
        """Return why to stop, in one sentence, or ``None`` to go on."""

    def needs_prices(self) -> bool:
        """Return whether it decides by dollars, which takes the price of every model."""
        return False

    def needs_gpu_seconds(self) -> bool:
        """Return whether it decides by GPU-seconds, which somebody has to count."""
        return False

    def rollout_limit(self) -> int | None:
        """Return the rollouts after which it stops whatever else happens, or ``None`` where there is no such number.

        Minibatches are clipped to what it leaves.
        """
        return None

    def epoch_limit(self) -> float | None:
        """Return the epochs after which it stops whatever else happens, or ``None`` where there is no such number.

        No minibatch beyond it is begun ahead of time.
        """
        return None

    def cost_reached(self, view: RunView) -> bool:
        """Return whether a limit on cost is reached, not only one on progress.

        Asked once, where a run ends: what the result can do without, further draws of the finalists, is then not
        bought.
        """
        return False

    def __or__(self, other: StoppingRule) -> StoppingRule:
        if not isinstance(other, StoppingRule):
            return NotImplemented
        return AnyOf((*_parts(self, AnyOf), *_parts(other, AnyOf)))

    def __and__(self, other: StoppingRule) -> StoppingRule:
        if not isinstance(other, StoppingRule):
            return NotImplemented
        return AllOf((*_parts(self, AllOf), *_parts(other, AllOf)))


def ask(rule: StoppingRule, view: RunView) -> str | None:
    """Ask a rule, and refuse an answer that is neither a reason nor ``None``.

    A rule that returns ``False`` or an empty text would else go on for ever or
    stop without a reason. What it raises is passed on.

    Raises:
        ArgumentTypeError: The answer is something else.
    """
    # A rule of a user's own may return anything, whatever it declares.
    answer: object = rule.check(view)
    if answer is None or (isinstance(answer, str) and answer.strip()):
        return answer
    remedy = "Return a sentence that says why to stop, or None to go on."
    raise ArgumentTypeError(f"stopping rule {rule.name!r}", answer, "returned no reason", remedy)


class _Composed(StoppingRule):
    def __init__(self, rules: Iterable[StoppingRule]) -> None:
        self.rules = tuple(rules)
        for rule in self.rules:
            if not isinstance(rule, StoppingRule):
                raise ArgumentTypeError("rules", rule, "is no stopping rule", "Give objects of StoppingRule.")
        if not self.rules:
            # all() of nothing would stop at once, any() of nothing never.
            raise ArgumentValueError("rules", self.rules, "is empty", "Give at least one stopping rule.")

    def needs_prices(self) -> bool:
        return any(rule.needs_prices() for rule in self.rules)

    def needs_gpu_seconds(self) -> bool:
        return any(rule.needs_gpu_seconds() for rule in self.rules)


class AnyOf(_Composed):
    """Stops when one of its rules would; ``a | b``.

    Args:
        rules: At least one rule.

    Raises:
        ArgumentTypeError: One of them is no stopping rule.
        ArgumentValueError: There is none.
    """

    name: ClassVar[str] = "any-of"

    def rollout_limit(self) -> int | None:
        """Return the smallest limit of its rules: the first one reached stops."""
        return min(_limits(self.rules), default=None)

    def epoch_limit(self) -> float | None:
        """Return the smallest limit in epochs of its rules: the first one reached stops."""
        return min(_epochs(self.rules), default=None)

    def cost_reached(self, view: RunView) -> bool:
        """Return whether a limit on cost of any of its rules is reached."""
        return any(rule.cost_reached(view) for rule in self.rules)

    def check(self, view: RunView) -> str | None:
        """Return the reasons of the rules that would stop, or ``None``."""
        reasons = [reason for rule in self.rules if (reason := ask(rule, view)) is not None]
        return "; ".join(reasons) if reasons else None


class AllOf(_Composed):
    """Stops when all of its rules would; ``a & b``.

    Args:
        rules: At least one rule.

    Raises:
        ArgumentTypeError: One of them is no stopping rule.
        ArgumentValueError: There is none.
    """

    name: ClassVar[str] = "all-of"

    def rollout_limit(self) -> int | None:
        """Return the largest limit of its rules, or ``None`` where one of them has none."""
        found = _limits(self.rules)
        return max(found) if len(found) == len(self.rules) else None

    def epoch_limit(self) -> float | None:
        """Return the largest limit in epochs of its rules, or ``None`` where one of them has none."""
        found = _epochs(self.rules)
        return max(found) if len(found) == len(self.rules) else None

    def cost_reached(self, view: RunView) -> bool:
        """Return whether limits on cost of all its rules are reached: beside a rule on progress, a limit is a floor."""
        return all(rule.cost_reached(view) for rule in self.rules)

    def check(self, view: RunView) -> str | None:
        """Return the reasons of all rules, or ``None`` where one would go on."""
        reasons = [reason for rule in self.rules if (reason := ask(rule, view)) is not None]
        return "; ".join(reasons) if len(reasons) == len(self.rules) else None


def _limits(rules: Iterable[StoppingRule]) -> list[int]:
    return [limit for rule in rules if (limit := rule.rollout_limit()) is not None]


def _epochs(rules: Iterable[StoppingRule]) -> list[float]:
    return [limit for rule in rules if (limit := rule.epoch_limit()) is not None]


def _parts(rule: StoppingRule, kind: type[_Composed]) -> tuple[StoppingRule, ...]:
    return rule.rules if isinstance(rule, kind) else (rule,)
