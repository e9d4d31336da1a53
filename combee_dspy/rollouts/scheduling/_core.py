"""The decisions of a scheduler, without threads: what waits, what is in flight, what goes next."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, replace

from combee_dspy.rollouts.scheduling._account import Books, LaneCounts, ScheduleAccount
from combee_dspy.rollouts.scheduling._announce import Decided
from combee_dspy.rollouts.scheduling._gate import GuardedLimit, GuardedRule
from combee_dspy.rollouts.scheduling._job import Job
from combee_dspy.rollouts.scheduling._place import SPECULATIVE, Place
from combee_dspy.rollouts.scheduling._queue import TaskQueue
from combee_dspy.rollouts.scheduling._record import Released
from combee_dspy.rollouts.scheduling._settings import Scheduling

__all__ = ["Core", "Taken"]


@dataclass(frozen=True, slots=True)
class Taken:
    """What goes next.

    Attributes:
        jobs: Tasks to hand to the inner session, in order.
        notes: What was decided.
        ring_at: When to ask again though nothing else happens; infinite for never.
        more: Whether to ask again at once.
    """

    jobs: tuple[Job, ...] = ()
    notes: tuple[Released | Decided, ...] = ()
    ring_at: float = math.inf
    more: bool = False


_NOTHING = Taken()


class Core:
    """What waits and what is in flight. Not thread-safe: its owner holds a lock.

    Args:
        settings: How to decide.
        queue: Where tasks wait.
        limit: Tasks that may be in flight.
        rule: When tasks are released.
        replays: Whether ``queue`` follows a record: the flush rule is not asked then.
        now: The time.

    Attributes:
        closed: Whether nothing more may go.
        flying: Tasks with the inner session, by serial, in order of dispatch.
        slots: Tasks that may be in flight, as last asked.
    """

    def __init__(
        self,
        settings: Scheduling,
        queue: TaskQueue,
        limit: GuardedLimit,
        rule: GuardedRule,
        *,
        replays: bool,
        now: float,
    ) -> None:
        self._settings = settings
        self._queue = queue
        self._limit = limit
        self._rule = rule
        self._replays = replays
        self._books = Books(settings.order, limit.slots(), now)
        self._waiting: OrderedDict[int, Job] = OrderedDict()
        self._optional: dict[int, Job] = {}
        self.flying: dict[int, Job] = {}
        self.closed = False
        self._serial = 0
        self._touched = now
        self._batch = 0
        # What the last flush released and did not find a slot for: tasks, tokens, length class.
        self._credit = 0
        self._tokens: int | None = None
        self._bucket: int | None = None
        self._reason = ""

    @property
    def slots(self) -> int:
        """Tasks that may be in flight, as last asked."""
        return self._books.slots

    def lane(self, job: Job) -> LaneCounts:
        """Return the counts of a task's lane."""
        return self._books.lanes[job.place.lane]

    def account(self, now: float) -> ScheduleAccount:
        """Return the account."""
        running = [(job.place.lane, job.began) for job in self.flying.values() if job.began is not None]
        return self._books.account(now, running)

    def waiting(self, *, optional: bool = False) -> list[Job]:
        """Return what waits, the oldest first; with ``optional`` only what may be dropped."""
        return list((self._optional if optional else self._waiting).values())

    def submit(self, job: Job, now: float) -> None:
        """Take a new task in."""
        self._serial += 1
        job.serial = self._serial
        self.lane(job).submitted += 1
        self._queue.push(job)
        self._enter(job, now)

    def _enter(self, job: Job, now: float) -> None:
        job.since = self._touched = now
        self._waiting[job.serial] = job
        self.lane(job).waiting += 1
        if job.place.lane == SPECULATIVE:
            self._optional[job.serial] = job

    def _leave(self, job: Job) -> bool:
        if self._waiting.pop(job.serial, None) is None:
            return False
        self._optional.pop(job.serial, None)
        self.lane(job).waiting -= 1
        return True

    def remove(self, job: Job) -> bool:
        """Take a task out that waits; return whether it did."""
        return self._leave(job) and self._queue.discard(job)

    def move(self, job: Job, place: Place) -> bool:
        """Give a task that waits another place; return whether it did wait.

        It stands at the end of its new lane. Its wait goes on; it keeps its key, and its turn in a replay.
        """
        if not self._leave(job):
            return False
        since, touched = job.since, self._touched
        self.lane(job).submitted -= 1
        replayed = job.position is not None
        if not replayed:
            self._queue.discard(job)
        job.place = replace(place, key=job.place.key, tenant=job.place.tenant)
        job.bucket = place.length_class
        self.lane(job).submitted += 1
        if not replayed:
            self._queue.push(job)
        self._enter(job, touched)
        job.since = since
        return True

    def land(self, job: Job) -> bool:
        """Take a task out that was in flight; return whether it was."""
        if self.flying.pop(job.serial, None) is None:
            return False
        self.lane(job).in_flight -= 1
        self._queue.ended(job)
        return True

    def ended(self, job: Job, now: float) -> float:
        """Hear that a task's worker is done; return its seconds there. Its slot is free after :meth:`land`."""
        self._touched = now
        seconds = 0.0 if job.began is None else now - job.began
        job.began = None
        self.lane(job).busy_seconds += seconds
        return seconds

    def put_back(self, job: Job, now: float) -> None:
        """Queue a task again that was in flight."""
        self.land(job)
        self.lane(job).rolled_back += 1
        job.inner = None
        job.recalled = False
        job.again += 1
        self._queue.put_back(job)
        self._enter(job, now)

    def take(self, now: float) -> Taken:
        """Take the next tasks out of the queue; they are in flight from now on."""
        notes: list[Released | Decided] = []
        slots, before = self._limit.slots(), self._books.slots
        if slots != before:
            self._books.count_slots(now, slots)
            notes.append(Decided("concurrency", {"limit": slots, "before": before, "reason": self._limit.reason()}))
        free = slots - len(self.flying)
        if self.closed or free <= 0 or not self._waiting:
            return Taken(notes=tuple(notes)) if notes else _NOTHING
        hold = self._limit.hold()
        if hold > 0:
            return Taken(notes=tuple(notes), ring_at=now + hold)
        queued = len(self._waiting)
        jobs, ring_at = self._next(now, free, slots)
        if not jobs:
            return Taken(notes=tuple(notes), ring_at=ring_at)
        for job in jobs:
            self._leave(job)
            self.flying[job.serial] = job
            job.batch = self._batch
            lane = self.lane(job)
            lane.in_flight += 1
            lane.started += 1
            lane.waited_seconds += now - job.since
        notes.append(self._released(jobs, slots, queued))
        return Taken(tuple(jobs), tuple(notes), more=len(jobs) < free and bool(self._waiting))

    def _released(self, jobs: list[Job], slots: int, queued: int) -> Released:
        again = tuple(position for position, job in enumerate(jobs) if job.again)
        tasks = tuple((job.place.lane, job.place.key) for job in jobs)
        return Released(self._batch, self._reason, slots, queued, tasks, again, jobs[0].place.iteration)

    def _next(self, now: float, free: int, slots: int) -> tuple[list[Job], float]:
        stall_at = self._touched + self._settings.patience if not self.flying else math.inf
        stalled = stall_at <= now
        # Nothing changes by itself once it has stalled: asked again at a time that is over, a thread would never rest.
        stall_at = math.inf if stalled else stall_at
        if self._replays:
            jobs = self._queue.take(free, slots, stalled=stalled)
            self._begin("replay")
            return jobs, stall_at
        if self._rule.at_once:
            self._begin("a slot is free")
            return self._queue.take(free, slots, tokens=self._settings.tokens), math.inf
        jobs = self._go_on(free, slots)
        if jobs:
            return jobs, math.inf
        oldest = now - next(iter(self._waiting.values())).since
        reason, due = self._rule.decide(len(self._waiting), oldest, free, slots, stalled=stalled)
        if reason is None:
            return [], min(now + due, stall_at)
        self._begin(reason)
        self._credit, self._tokens, self._bucket = len(self._waiting), self._settings.tokens, None
        return self._go_on(free, slots), math.inf

    def _begin(self, reason: str) -> None:
        self._batch += 1
        self._reason = reason

    def _go_on(self, free: int, slots: int) -> list[Job]:
        """Take what the last flush has released."""
        room = min(free, self._credit, len(self._waiting))
        if room <= 0:
            return []
        jobs = self._queue.take(room, slots, tokens=self._tokens, bucket=self._bucket)
        # What the token bound keeps out waits for company; what only lacks a slot belongs to this batch.
        self._credit = self._credit - room if len(jobs) == room else 0
        if self._tokens is not None and jobs:
            self._tokens -= sum(job.place.tokens or 0 for job in jobs)
            self._bucket = jobs[0].bucket
        return jobs
