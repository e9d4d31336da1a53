"""Where effects wait for a slot: by urgency alone, or in batches that length, time or scores
release.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from statistics import pvariance
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from combee_dspy.records import Rollout
from combee_dspy.rollouts._jobs import Answer, CallJob, RolloutJob
from combee_dspy.strategies import parameters

Priority = tuple[int, ...]
"""Smaller goes first; the last number is that of the search."""

_SCORES_NEEDED, _SCORES = 8, 32


@parameters
class Batching:
    """When waiting jobs are released, and in what company.

    Jobs are released when so many wait, when the oldest has waited so long, or when the latest
    scores are alike: whichever comes first. They go as slots become free: a service that answers a
    batch together gets the next one together. By default each job goes as soon as a slot is free. A
    service that takes single requests composes its own batches, and loses time whenever a job
    waits beside an idle slot. ``Batching(queue="target", seconds=0.2, variance=0.01)`` is for
    those that cannot: they pad a batch to its longest job, or pay a fixed price for each batch.

    Within one urgency, jobs of one program (or of one kind of call) and of one length class go one
    after another: a server can share their prefix and need not pad. Lengths are prompt tokens. A
    row that has run has those that were measured then; others are estimated by the characters of
    their inputs, at the rate measured for their kind. Before that: four characters a token.

    Args:
        queue: Release when so many jobs wait; ``"target"``: as many as the service takes at once.
        seconds: Release when the oldest job has waited so long; ``None``: however long.
        variance: Release when the population variance of the latest scores is below this: waiting
            for company then tells no more. Needs eight scores. ``None``: whatever they are.
        preempt: What happens when a more urgent job arrives while a released batch waits for
            slots. ``"drain"`` lets the batch go first; ``"rollback"`` puts back what of it has not
            started; ``"drop"`` does so too and forgets how long it has waited. No job is lost, and
            none that runs is taken back: it is paid for.
        tokens: Prompt tokens of one released batch, all of one length class (a power of two); what
            does not fit waits for the next. ``None``: no such bound.
        patience: Seconds with nothing in flight after which jobs go all the same, so that no run
            hangs.
    """

    queue: Annotated[int, Field(ge=1)] | Literal["target"] = 1
    seconds: Annotated[float, Field(ge=0)] | None = None
    variance: Annotated[float, Field(gt=0)] | None = None
    preempt: Literal["drain", "rollback", "drop"] = "drain"
    tokens: Annotated[int, Field(ge=1)] | None = None
    patience: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0

    def releases(
        self, queued: int, oldest: float, target: int, variance: float | None = None
    ) -> bool:
        """Return whether waiting jobs go now.

        Args:
            queued: Jobs that wait, at least 1.
            oldest: Seconds that the oldest of them has waited.
            target: Jobs that the service takes at once.
            variance: Population variance of the latest scores; ``None`` below eight of them.
        """
        if queued >= (target if self.queue == "target" else self.queue):
            return True
        if self.seconds is not None and oldest >= self.seconds:
            return True
        return self.variance is not None and variance is not None and variance < self.variance


class Turn(NamedTuple):
    """One effect that waits for a slot; sorts by urgency, then by company, then by arrival.

    Attributes:
        group: What jobs that share a prompt's beginning have in common, and their length class; 0,
            0 where that does not count.
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
    """Prompt tokens of jobs: of a row that has run as they were measured, of others by those of its
    kind.
    """

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        # By kind: prompt tokens measured, characters of the inputs that they were measured for.
        self._sums: dict[str, tuple[int, int]] = {}

    def estimate(self, job: RolloutJob | CallJob) -> int:
        """Return the prompt tokens that a job is expected to have."""
        kind, row, characters = _measurable(job)
        tokens, measured_characters = self._sums.get(kind, (1, 4))
        return self._rows.get(row, characters * tokens // measured_characters)

    def note(self, job: RolloutJob | CallJob, tokens: int) -> None:
        """Note how many a job had."""
        kind, row, characters = _measurable(job)
        tokens_before, characters_before = self._sums.get(kind, (0, 0))
        self._sums[kind] = (tokens_before + tokens, characters_before + characters)
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
        """Return the next turn, or when to ask again: infinite for when something happens."""
        return heapq.heappop(self._heap) if self._heap else math.inf

    def group(self, job: RolloutJob | CallJob) -> tuple[tuple[int, int], int]:
        """Return the group of a job's turn, and its tokens."""
        return (0, 0), 0

    def note(self, job: RolloutJob | CallJob, result: Rollout | Answer) -> None:
        """Note what came of a job."""


class Batches(Queue):
    """Waiting turns that are released together; from then on they go by their urgency."""

    def __init__(self, options: Batching) -> None:
        self._options = options
        self._held: list[Turn] = []
        self._released: deque[Turn] = deque()
        self._scores: deque[float] = deque(maxlen=_SCORES)
        self._lengths = Lengths()
        self._pushed_at = -math.inf

    def __len__(self) -> int:
        return len(self._held) + len(self._released)

    def waiting(self) -> tuple[Turn, ...]:
        return (*self._held, *self._released)

    def group(self, job: RolloutJob | CallJob) -> tuple[tuple[int, int], int]:
        tokens = self._lengths.estimate(job)
        shared = id(job.program) if isinstance(job, RolloutJob) else id(job.signature)
        return (shared, tokens.bit_length()), tokens

    def note(self, job: RolloutJob | CallJob, result: Rollout | Answer) -> None:
        usage = result.usage
        if isinstance(result, Rollout):
            self._scores.append(result.score)
            usage = tuple(row for row in usage if row.role == "task")
        if tokens := sum(row.prompt_tokens for row in usage):
            self._lengths.note(job, tokens)

    def push(self, turn: Turn) -> None:
        self._held.append(turn)
        self._pushed_at = turn.since
        preempt = self._options.preempt
        if preempt != "drain" and self._released and turn.priority < self._released[0].priority:
            if preempt == "drop":
                self._held.extend(each._replace(since=turn.since) for each in self._released)
            else:
                self._held.extend(self._released)
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
        options = self._options
        if options.releases(len(self._held), now - oldest, target, variance):
            return now
        due = math.inf if options.seconds is None else oldest + options.seconds
        # With nothing in flight, nothing but a submission or the clock can change the answer.
        stalled = self._pushed_at + options.patience if free >= target else math.inf
        return min(due, stalled)

    def _release(self) -> None:
        bound = self._options.tokens
        spent, rest = 0, []
        for turn in sorted(self._held):
            first = self._released[0] if self._released else turn
            if (
                bound is None
                or turn is first
                or (turn.group[1] == first.group[1] and spent + turn.tokens <= bound)
            ):
                self._released.append(turn)
                spent += turn.tokens
            else:
                rest.append(turn)
        self._held = rest
