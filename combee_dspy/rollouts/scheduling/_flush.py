"""When waiting tasks are released: small rules that compose."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError

__all__ = ["AtOnce", "FlushRule", "FlushView", "at_once", "queue_at_least", "variance_below", "waited"]

SCORES_NEEDED = 8
"""Scores below which a variance says nothing."""


@dataclass(frozen=True, slots=True)
class FlushView:
    """What a rule may know.

    Attributes:
        queued: Tasks that wait.
        oldest: Seconds that the oldest of them has waited.
        free: Idle slots.
        target: Tasks that the service takes at once, as measured by the run's limit.
        variance: Population variance of the run's latest scores; ``None`` below eight of them.
    """

    queued: int
    oldest: float = 0.0
    free: int = 1
    target: int = 1
    variance: float | None = None


class FlushRule(ABC):
    """Says when what waits is released. Pure: everything it decides by is in the view.

    ``a | b`` releases when one of them would, ``a & b`` when both would.
    """

    @abstractmethod
    def check(self, view: FlushView) -> str | None:
        """Return why to release, in a few words, or ``None`` to wait."""

    def due(self, view: FlushView) -> float | None:
        """Return after how many seconds the answer changes though nothing else does, ``None`` for never."""
        return None

    def __or__(self, other: FlushRule) -> FlushRule:
        return (
            _AnyOf((*_parts(self, _AnyOf), *_parts(other, _AnyOf))) if isinstance(other, FlushRule) else NotImplemented
        )

    def __and__(self, other: FlushRule) -> FlushRule:
        return (
            _AllOf((*_parts(self, _AllOf), *_parts(other, _AllOf))) if isinstance(other, FlushRule) else NotImplemented
        )


@dataclass(frozen=True)
class AtOnce(FlushRule):
    """Releases whenever a slot is free: the default.

    A service that takes single requests loses time whenever a task waits
    beside an idle slot, and composes its own batches. Rules that wait are
    for services that cannot: those that pad a batch to its longest task,
    or pay a fixed price per batch.
    """

    def check(self, view: FlushView) -> str | None:
        """Release."""
        return "a slot is free" if view.queued and view.free > 0 else None


@dataclass(frozen=True)
class _QueueAtLeast(FlushRule):
    size: int | Literal["target"]

    def check(self, view: FlushView) -> str | None:
        size = max(1, view.target) if self.size == "target" else self.size
        return f"{view.queued} wait, of {size}" if view.queued >= size else None


@dataclass(frozen=True)
class _Waited(FlushRule):
    seconds: float

    def check(self, view: FlushView) -> str | None:
        return f"waited {self.seconds:g} s" if view.queued and view.oldest >= self.seconds else None

    def due(self, view: FlushView) -> float | None:
        return max(0.0, self.seconds - view.oldest) if view.queued else None


@dataclass(frozen=True)
class _VarianceBelow(FlushRule):
    eps: float

    def check(self, view: FlushView) -> str | None:
        if not view.queued or view.variance is None or view.variance >= self.eps:
            return None
        return f"variance {view.variance:.3g}, below {self.eps:g}"


def at_once() -> FlushRule:
    """Release whenever a slot is free; see :class:`AtOnce`."""
    return AtOnce()


def queue_at_least(size: int | Literal["target"]) -> FlushRule:
    """Release when so many tasks wait.

    Args:
        size: How many, at least 1; ``"target"`` for as many as the service takes at once, by the run's limit.

    Raises:
        ArgumentValueError: It is neither.
    """
    if size != "target" and (isinstance(size, (str, bool)) or size < 1):
        raise ArgumentValueError("size", size, "is neither a number from 1 nor 'target'", "Give one of them.")
    return _QueueAtLeast(size)


def waited(seconds: float) -> FlushRule:
    """Release when the oldest task has waited so long.

    Args:
        seconds: How long, at least 0.

    Raises:
        ArgumentValueError: It is negative, or no number.
    """
    if not seconds >= 0:
        raise ArgumentValueError("seconds", seconds, "is negative", "Give seconds, such as 0.2.")
    return _Waited(seconds)


def variance_below(eps: float) -> FlushRule:
    """Release when the latest scores are so alike that waiting for company tells no more.

    Args:
        eps: Population variance, above 0.

    Raises:
        ArgumentValueError: It is not.
    """
    if not eps > 0:
        raise ArgumentValueError("eps", eps, "is not above 0", "Give a variance, such as 0.01.")
    return _VarianceBelow(eps)


def ask(rule: FlushRule, view: FlushView) -> str | None:
    """Ask a rule, and refuse an answer that is neither a reason nor ``None``.

    Raises:
        ArgumentTypeError: The answer is something else.
    """
    # A rule of a user's own may return anything, whatever it declares.
    answer: object = rule.check(view)
    if answer is None or (isinstance(answer, str) and answer.strip()):
        return answer
    remedy = "Return a few words that say why to release, or None to wait."
    raise ArgumentTypeError(f"flush rule {type(rule).__name__!r}", answer, "returned no reason", remedy)


class _Composed(FlushRule):
    def __init__(self, rules: Iterable[FlushRule]) -> None:
        self.rules = tuple(rules)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, _Composed) and self.rules == other.rules

    def __hash__(self) -> int:
        return hash((type(self), self.rules))

    def __repr__(self) -> str:
        return f" {self._sign} ".join(
            f"({rule!r})" if isinstance(rule, _Composed) else repr(rule) for rule in self.rules
        )

    _sign = "?"


class _AnyOf(_Composed):
    _sign = "|"

    def check(self, view: FlushView) -> str | None:
        reasons = [reason for rule in self.rules if (reason := ask(rule, view)) is not None]
        return "; ".join(reasons) if reasons else None

    def due(self, view: FlushView) -> float | None:
        return min((due for rule in self.rules if (due := rule.due(view)) is not None), default=None)


class _AllOf(_Composed):
    _sign = "&"

    def check(self, view: FlushView) -> str | None:
        reasons = [reason for rule in self.rules if (reason := ask(rule, view)) is not None]
        return "; ".join(reasons) if len(reasons) == len(self.rules) else None

    def due(self, view: FlushView) -> float | None:
        # The last of those that wait for the clock: what the others wait for is looked at when it happens.
        dues = [rule.due(view) for rule in self.rules if ask(rule, view) is None]
        return max((due for due in dues if due is not None), default=None)


def _parts(rule: FlushRule, kind: type[_Composed]) -> tuple[FlushRule, ...]:
    return rule.rules if isinstance(rule, kind) else (rule,)
