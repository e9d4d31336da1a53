"""The contract of stopping rules, and how they compose with ``|`` and ``&``."""

from __future__ import annotations

import operator
from abc import abstractmethod
from dataclasses import asdict, dataclass
from functools import reduce
from itertools import chain
from typing import Any, ClassVar

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.strategies import Strategy, parameters


@dataclass(frozen=True, slots=True)
class RunView:
    """What a rule may know about a run, its earlier parts included where it was resumed.

    Attributes:
        rollouts: Rollouts bought.
        calls: LM calls sent to a service; answers of a cache are free.
        tokens: Prompt and completion tokens together, all roles.
        dollars: What was spent; ``None`` where the price of a call is not known.
        seconds: Wall-clock seconds of the run.
        gpu_seconds: Seconds of the GPUs behind the run's models; ``None`` where nobody counts them.
        updates: Updates begun so far.
        unread: How many of them, the last ones, were begun before their predecessors' validation
            was known, as ``staleness`` allows: what they validate is not yet in
            ``validation_history``.
        epochs: Training examples drawn over the size of the training set: 1.0 once each was in one
            minibatch. Examples that are in every minibatch count once an epoch.
        validation_history: ``(update, mean score)`` of every validated candidate, in order; −1 for
            the student.
    """

    rollouts: int = 0
    calls: int = 0
    tokens: int = 0
    dollars: float | None = 0.0
    seconds: float = 0.0
    gpu_seconds: float | None = None
    updates: int = 0
    unread: int = 0
    epochs: float = 0.0
    validation_history: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run may spend at most; ``None`` for no such limit.

    The search grants nothing beyond them.

    The fields are those of :class:`RunView`.
    """

    rollouts: int | None = None
    calls: int | None = None
    tokens: int | None = None
    dollars: float | None = None
    seconds: float | None = None
    gpu_seconds: float | None = None
    updates: int | None = None
    epochs: float | None = None

    def __or__(self, other: Limits) -> Limits:
        """Return the smaller of each two: the first one reached stops."""
        return Limits(
            **{name: min(limits, default=None) for name, limits in self._pair(other).items()}
        )

    def __and__(self, other: Limits) -> Limits:
        """Return the larger of each two, and none where one has none."""
        return Limits(
            **{
                name: max(limits) if len(limits) == 2 else None
                for name, limits in self._pair(other).items()
            }
        )

    def _pair(self, other: Limits) -> dict[str, list[Any]]:
        """Return the limits that either has, by name."""
        first, second = asdict(self), asdict(other)
        return {
            name: [limit for limit in (first[name], second[name]) if limit is not None]
            for name in first
        }


class StoppingRule(Strategy):
    """Says when a run has done enough.

    Rules are asked between updates, so a run ends softly: what is in flight finishes and is paid.
    ``a | b`` stops when one of them would, ``a & b`` when both would. A rule holds no state:
    everything it decides by is in the view. A rule that raises, or returns something else, ends the
    run with an error: see :func:`ask`.
    """

    kind: ClassVar[str] = "stopping"

    @abstractmethod
    def check(self, view: RunView) -> str | None:
        """Return why to stop, in one sentence, or ``None`` to go on."""

    def limits(self) -> Limits:
        """Return the figures at which it stops whatever else happens; none by default."""
        return Limits()

    def needs(self) -> frozenset[str]:
        """Return what of :class:`RunView` a run may lack and this rule decides by.

        These are ``dollars``, ``gpu_seconds``, and ``validation_history`` where no validation row
        is new to the search.
        """
        return frozenset()

    def parts(self) -> tuple[StoppingRule, ...]:
        """Return the rules that it is composed of: itself, unless it is composed."""
        return (self,)

    def __or__(self, other: StoppingRule) -> StoppingRule:
        return self._composed(other, AnyOf)

    def __and__(self, other: StoppingRule) -> StoppingRule:
        return self._composed(other, AllOf)

    def _composed(self, other: StoppingRule, kind: type[_Composed]) -> StoppingRule:
        if not isinstance(other, StoppingRule):
            return NotImplemented
        parts = [rule.rules if isinstance(rule, kind) else (rule,) for rule in (self, other)]
        return kind(tuple(chain.from_iterable(parts)))


def ask(rule: StoppingRule, view: RunView) -> str | None:
    """Ask a rule, and refuse an answer that is neither a reason nor ``None``.

    A rule that returns ``False`` or an empty text would else go on for ever or stop without a
    reason. What it raises is passed on.

    Raises:
        ArgumentTypeError: The answer is something else.
    """
    # A rule of a user's own may return anything, whatever it declares.
    answer: object = rule.check(view)
    if answer is None or (isinstance(answer, str) and answer.strip()):
        return answer
    remedy = "Return a sentence that says why to stop, or None to go on."
    raise ArgumentTypeError(f"stopping rule {rule.name!r}", answer, "returned no reason", remedy)


@parameters
class _Composed(StoppingRule):
    rules: tuple[StoppingRule, ...]

    def __post_init__(self) -> None:
        if not self.rules:
            # all() of nothing would stop at once, any() of nothing never.
            raise ArgumentValueError(
                "rules", self.rules, "is empty", "Give at least one stopping rule."
            )

    def parts(self) -> tuple[StoppingRule, ...]:
        """Return its rules."""
        return self.rules

    def needs(self) -> frozenset[str]:
        """Return what any of its rules needs."""
        return frozenset[str]().union(*(rule.needs() for rule in self.rules))

    def reasons(self, view: RunView) -> list[str]:
        """Return the reasons of the rules that would stop.

        All are asked, so a broken rule shows.
        """
        return [reason for rule in self.rules if (reason := ask(rule, view)) is not None]


@parameters
class AnyOf(_Composed):
    """Stops when one of its rules would; ``a | b``.

    Example:
        >>> from combee_dspy.stopping import Budget, RunView, Target
        >>> (Budget(rollouts=500) | Target(0.9)).check(RunView(rollouts=500))
        'budget.rollouts is spent: 500 of 500'

    Args:
        rules: At least one rule.
    """

    name: ClassVar[str] = "any-of"

    def check(self, view: RunView) -> str | None:
        """Return the reasons of the rules that would stop, or ``None``."""
        return "; ".join(self.reasons(view)) or None

    def limits(self) -> Limits:
        """Return the smallest limits of its rules."""
        return reduce(operator.or_, (rule.limits() for rule in self.rules))


@parameters
class AllOf(_Composed):
    """Stops when all of its rules would; ``a & b``.

    Example:
        >>> from combee_dspy.stopping import Budget, RunView, Target
        >>> (Budget(rollouts=500) & Target(0.9)).check(RunView(rollouts=500)) is None
        True

    Args:
        rules: At least one rule.
    """

    name: ClassVar[str] = "all-of"

    def check(self, view: RunView) -> str | None:
        """Return the reasons of all rules, or ``None`` where one would go on."""
        reasons = self.reasons(view)
        return "; ".join(reasons) if len(reasons) == len(self.rules) else None

    def limits(self) -> Limits:
        """Return the largest limits of its rules, and none where one of them has none."""
        return reduce(operator.and_, (rule.limits() for rule in self.rules))
