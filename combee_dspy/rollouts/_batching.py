"""Where effects wait for a slot: by urgency alone, or in batches, released by rules that ``|`` and ``&`` compose."""

from __future__ import annotations

import ast
import asyncio
import heapq
import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import pvariance
from typing import Annotated, Literal, NamedTuple

from pydantic import BeforeValidator, Field, WithJsonSchema

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.records import Rollout
from combee_dspy.rollouts._jobs import Answer, CallJob, RolloutJob
from combee_dspy.strategies import parameters

logger = logging.getLogger("combee_dspy")

Priority = tuple[int, ...]
"""Smaller goes first; the last number is that of the search."""

_SCORES_NEEDED, _SCORES = 8, 32


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


@dataclass(frozen=True, slots=True)
class FlushRule:
    """Says when what waits is released. ``a | b`` releases when one of them would, ``a & b`` when both would.

    Attributes:
        text: How it is written; rules with the same text are equal.
        check: Whether to release. Pure.
        due: After how many seconds its answer changes though nothing else does, ``None`` for never.
        loose: Whether the text must stand in parentheses beside an ``&``.
    """

    text: str
    check: Callable[[FlushView], bool] = field(compare=False, repr=False)
    due: Callable[[FlushView], float | None] = field(default=lambda view: None, compare=False, repr=False)
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
    """Release when so many jobs wait; ``"target"`` for as many as the service takes at once, by the limit."""
    if size != "target" and (not isinstance(size, int) or size < 1):
        raise ArgumentValueError("size", size, "is neither a number from 1 nor 'target'", "Give one of them.")
    return FlushRule(
        f"queue_at_least({size!r})", lambda view: view.queued >= (view.target if size == "target" else size)
    )


def waited(seconds: float) -> FlushRule:
    """Release when the oldest job has waited so long."""
    if not isinstance(seconds, (int, float)) or not seconds >= 0:
        raise ArgumentValueError("seconds", seconds, "is no number from 0", "Give seconds, such as 0.2.")
    return FlushRule(
        f"waited({seconds!r})", lambda view: view.oldest >= seconds, lambda view: max(0.0, seconds - view.oldest)
    )


def variance_below(eps: float) -> FlushRule:
    """Release when the latest scores are so alike that waiting for company tells no more."""
    if not isinstance(eps, (int, float)) or not eps > 0:
        raise ArgumentValueError("eps", eps, "is no number above 0", "Give a population variance, such as 0.01.")
    return FlushRule(f"variance_below({eps!r})", lambda view: view.variance is not None and view.variance < eps)


def full_or_stale(seconds: float = 0.2, eps: float = 0.01) -> FlushRule:
    """Release as many as the service takes at once, or what has waited, or where the latest scores are alike.

    ``queue_at_least("target") | waited(seconds) | variance_below(eps)``: for a server that composes no batches itself.
    """
    return queue_at_least("target") | waited(seconds) | variance_below(eps)


_BY_NAME: dict[str, Callable[..., FlushRule]] = {
    rule.__name__: rule for rule in (at_once, full_or_stale, queue_at_least, waited, variance_below)
}


def _flush_rule(value: object) -> FlushRule:
    """Return a rule, or read one as it stands in a file: ``"queue_at_least(64) | waited(0.2)"``."""
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


@parameters
class Batching:
    """When waiting jobs are released, and in what company.

    Within one urgency, jobs of one program (or of one kind of call) and of one length class go one after another,
    so that a server can share their prefix and need not pad. Lengths are prompt tokens: of a row that has run before
    those measured then, of others by the characters of their inputs and what those of their kind were measured to make
    of them; before the first of a kind has ended, four characters a token.

    Args:
        flush: When what waits is released: a rule, or its text, such as ``"queue_at_least(64) | waited(0.2)"``.
        preempt: What happens when a more urgent job arrives while a released batch waits for slots: ``"drain"``
            lets the batch go first, ``"rollback"`` puts back what of it has not started, ``"drop"`` does so too and
            forgets how long it has waited. No job is lost, and none that runs is taken back: it is paid for.
        tokens: Prompt tokens of one released batch, all of one length class (a power of two); what does not
            fit waits for the next. ``None`` for no such bound.
        patience: Seconds with nothing in flight after which what a rule holds back goes all the same, so that no
            run hangs.
    """

    flush: Annotated[FlushRule, BeforeValidator(_flush_rule), WithJsonSchema({"type": "string"})] = Field(
        default="at_once()", validate_default=True
    )
    preempt: Literal["drain", "rollback", "drop"] = "drain"
    tokens: Annotated[int, Field(ge=1)] | None = None
    patience: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0


class Turn(NamedTuple):
    """One effect that waits for a slot; sorts by urgency, then by company, then by arrival.

    Attributes:
        group: What jobs that share a prompt's beginning have in common, and their length class; 0, 0 where that
            does not count.
        number: Its place in the order of submission.
        since: When it began to wait.
        tokens: About how long its prompt is.
        future: Done once it has a slot, or is no longer wanted.
    """

    priority: Priority
    group: tuple[int, int]
    number: int
    since: float
    tokens: int
    future: asyncio.Future[None]


class Lengths:
    """Prompt tokens of jobs: of a row that has run as they were measured, of others by those of its kind."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        # By kind: prompt tokens measured, characters of the inputs that they were measured for.
        self._sums: dict[str, tuple[int, int]] = {}

    def of(self, job: RolloutJob | CallJob) -> int:
        """Return the prompt tokens that a job is expected to have."""
        kind, row, characters = _measurable(job)
        tokens, of = self._sums.get(kind, (1, 4))
        return self._rows.get(row, characters * tokens // of)

    def measured(self, job: RolloutJob | CallJob, tokens: int) -> None:
        """Note how many it had."""
        kind, row, characters = _measurable(job)
        before, of = self._sums.get(kind, (0, 0))
        self._sums[kind] = (before + tokens, of + characters)
        if row:
            self._rows[row] = tokens


def _measurable(job: RolloutJob | CallJob) -> tuple[str, str, int]:
    """Return a job's kind, its row if it has one, and the characters of its inputs."""
    if isinstance(job, RolloutJob):
        return "rollout", job.example_id, max(1, len(str(dict(job.example.inputs()))))
    return job.signature.__name__, "", max(1, len(str(dict(job.inputs))))


class Queue:
    """Waiting turns: the most urgent goes as soon as there is a slot."""

    def __init__(self) -> None:
        self._heap: list[Turn] = []

    def __len__(self) -> int:
        return len(self._heap)

    def waiting(self) -> tuple[Turn, ...]:
        """Return those that wait, in no stated order."""
        return tuple(self._heap)

    def push(self, turn: Turn) -> None:
        """Add a turn."""
        heapq.heappush(self._heap, turn)

    def pop(self, free: int, target: int, now: float) -> Turn | float:
        """Return the next turn; or the time at which to ask again, infinite for when something happens."""
        return heapq.heappop(self._heap) if self._heap else math.inf

    def company(self, job: RolloutJob | CallJob) -> tuple[tuple[int, int], int]:
        """Return the group of a job's turn, and its tokens."""
        return (0, 0), 0

    def heard(self, job: RolloutJob | CallJob, result: Rollout | Answer) -> None:
        """Hear what came of a job."""


class Batches(Queue):
    """Waiting turns that a rule releases; from then on they go by their urgency."""

    def __init__(self, options: Batching) -> None:
        self._options = options
        self._rule = options.flush
        self._held: list[Turn] = []
        self._released: deque[Turn] = deque()
        self._scores: deque[float] = deque(maxlen=_SCORES)
        self._lengths = Lengths()
        self._pushed_at = -math.inf

    def __len__(self) -> int:
        return len(self._held) + len(self._released)

    def waiting(self) -> tuple[Turn, ...]:
        return (*self._held, *self._released)

    def company(self, job: RolloutJob | CallJob) -> tuple[tuple[int, int], int]:
        tokens = self._lengths.of(job)
        shared = id(job.program) if isinstance(job, RolloutJob) else id(job.signature)
        return (shared, tokens.bit_length()), tokens

    def heard(self, job: RolloutJob | CallJob, result: Rollout | Answer) -> None:
        usage = result.usage
        if isinstance(result, Rollout):
            self._scores.append(result.score)
            usage = tuple(one for one in usage if one.role == "task")
        if tokens := sum(one.prompt_tokens for one in usage):
            self._lengths.measured(job, tokens)

    def push(self, turn: Turn) -> None:
        self._held.append(turn)
        self._pushed_at = turn.since
        preempt = self._options.preempt
        if preempt != "drain" and self._released and turn.priority < self._released[0].priority:
            back = (
                self._released if preempt == "rollback" else (one._replace(since=turn.since) for one in self._released)
            )
            self._held.extend(back)
            self._released.clear()

    def pop(self, free: int, target: int, now: float) -> Turn | float:
        if not self._released:
            self._held = [turn for turn in self._held if not turn.future.done()]
            if not self._held:
                return math.inf
            if (again := self._ask_again_at(free, target, now)) > now:
                return again
            self._release()
        return self._released.popleft()

    def _ask_again_at(self, free: int, target: int, now: float) -> float:
        """Return when to ask again; ``now`` or before to release."""
        oldest = min(turn.since for turn in self._held)
        variance = pvariance(self._scores) if len(self._scores) >= _SCORES_NEEDED else None
        view = FlushView(len(self._held), now - oldest, free, target, variance)
        try:
            if self._rule.check(view):
                return now
            due = self._rule.due(view)
        except Exception:  # it may be anybody's; where it is asked, nobody could hear what it raises
            logger.warning("The flush rule %s failed; jobs now go at once", self._rule, exc_info=True)
            self._rule = at_once()
            return now
        # With nothing in flight, nothing but a submission or the clock can change the answer.
        stalled = self._pushed_at + self._options.patience if free >= target else math.inf
        return min(math.inf if due is None else now + due, stalled)

    def _release(self) -> None:
        bound = self._options.tokens
        spent, rest = 0, []
        for turn in sorted(self._held):
            first = self._released[0] if self._released else turn
            if bound is None or turn is first or (turn.group[1] == first.group[1] and spent + turn.tokens <= bound):
                self._released.append(turn)
                spent += turn.tokens
            else:
                rest.append(turn)
        self._held = rest
