"""When waiting jobs are released: small rules that compose with ``|`` and ``&``."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError


@dataclass(frozen=True, slots=True)
class FlushView:
    """What a rule may know.

    Attributes:
        queued: Jobs that wait, at least one.
        oldest: Seconds that the oldest of them has waited.
        free: Idle slots, at least one.
        target: Jobs that the service takes at once, by the limit.
        variance: Population variance of the latest scores; ``None`` below eight of them.
    """

    queued: int
    oldest: float = 0.0
    free: int = 1
    target: int = 1
    variance: float | None = None


def _never(view: FlushView) -> float | None:
    return None


@dataclass(frozen=True, slots=True)
class FlushRule:
    """Says when what waits is released. ``a | b`` releases when one of them would, ``a & b`` when both would.

    Attributes:
        text: How it is written; rules with the same text are equal.
        check: Whether to release. Pure.
        due: After how many seconds that changes though nothing else does, ``None`` for never.
        loose: Whether the text must stand in parentheses beside an ``&``.
    """

    text: str
    check: Callable[[FlushView], bool] = field(compare=False, repr=False)
    due: Callable[[FlushView], float | None] = field(default=_never, compare=False, repr=False)
    loose: bool = field(default=False, compare=False, repr=False)

    def __str__(self) -> str:
        return self.text

    def __or__(self, other: FlushRule) -> FlushRule:
        def due(view: FlushView) -> float | None:
            return min((one for rule in (self, other) if (one := rule.due(view)) is not None), default=None)

        return FlushRule(f"{self} | {other}", lambda view: self.check(view) or other.check(view), due, True)

    def __and__(self, other: FlushRule) -> FlushRule:
        def due(view: FlushView) -> float | None:
            # The last of those that wait for the clock: what the others wait for is looked at when it happens.
            dues = [rule.due(view) for rule in (self, other) if not rule.check(view)]
            return max((one for one in dues if one is not None), default=None)

        text = " & ".join(f"({rule})" if rule.loose else rule.text for rule in (self, other))
        return FlushRule(text, lambda view: self.check(view) and other.check(view), due)


def at_once() -> FlushRule:
    """Release whenever a slot is free: the default.

    A service that takes single requests loses time whenever a job waits beside
    an idle slot, and composes its own batches. Rules that wait are for services
    that cannot: those that pad a batch to its longest job, or pay a fixed price per batch.
    """
    return FlushRule("at_once()", lambda view: True)


def queue_at_least(size: int | Literal["target"]) -> FlushRule:
    """Release when so many jobs wait; ``"target"`` for as many as the service takes at once, by the limit.

    Raises:
        ArgumentValueError: ``size`` is neither a number from 1 nor ``"target"``.
    """
    if size != "target" and (not isinstance(size, int) or size < 1):
        raise ArgumentValueError("size", size, "is neither a number from 1 nor 'target'", "Give one of them.")
    return FlushRule(
        f"queue_at_least({size!r})", lambda view: view.queued >= (view.target if size == "target" else size)
    )


def waited(seconds: float) -> FlushRule:
    """Release when the oldest job has waited so long.

    Raises:
        ArgumentValueError: ``seconds`` is negative.
    """
    if not seconds >= 0:
        raise ArgumentValueError("seconds", seconds, "is negative", "Give seconds, such as 0.2.")
    return FlushRule(
        f"waited({seconds!r})", lambda view: view.oldest >= seconds, lambda view: max(0.0, seconds - view.oldest)
    )


def variance_below(eps: float) -> FlushRule:
    """Release when the latest scores are so alike that waiting for company tells no more.

    Raises:
        ArgumentValueError: ``eps``, a population variance, is not above 0.
    """
    if not eps > 0:
        raise ArgumentValueError("eps", eps, "is not above 0", "Give a variance, such as 0.01.")
    return FlushRule(f"variance_below({eps!r})", lambda view: view.variance is not None and view.variance < eps)


_BY_NAME: dict[str, Callable[..., FlushRule]] = {
    rule.__name__: rule for rule in (at_once, queue_at_least, waited, variance_below)
}


def flush_rule(value: object) -> FlushRule:
    """Return a rule, or read one as it stands in a file: ``"queue_at_least(64) | waited(0.2)"``.

    Raises:
        ArgumentTypeError: It is neither a rule nor a text.
        ArgumentValueError: The text cannot be read.
    """
    if isinstance(value, FlushRule):
        return value
    remedy = "Give a rule such as queue_at_least(64) | waited(0.2), or that as a text."
    if not isinstance(value, str):
        raise ArgumentTypeError("flush", value, "is no flush rule", remedy)
    try:
        return _read(ast.parse(value.strip(), mode="eval").body)
    except (KeyError, TypeError, ValueError, SyntaxError) as error:
        raise ArgumentValueError("flush", value, "cannot be read", remedy) from error


def _read(node: ast.expr) -> FlushRule:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitOr, ast.BitAnd)):
        left, right = _read(node.left), _read(node.right)
        return left | right if isinstance(node.op, ast.BitOr) else left & right
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return _BY_NAME[node.func.id](*(ast.literal_eval(argument) for argument in node.args))
    raise ValueError(ast.unparse(node))
