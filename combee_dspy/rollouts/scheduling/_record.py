"""A schedule as it was decided: written as JSONL, read, and followed again."""

from __future__ import annotations

import heapq
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.rollouts.scheduling._job import Job
from combee_dspy.rollouts.scheduling._queue import TaskQueue

__all__ = ["Recorded", "Released", "ReplayQueue", "ScheduleRecord"]

_HEAD = {"format": "combee-schedule", "version": 1}


@dataclass(frozen=True, slots=True)
class Released:
    """Tasks that were dispatched together.

    Attributes:
        batch: Number of the flush that released them; several lines may share one, where slots came free in between.
        reason: The flush rule's reason.
        limit: Tasks that might be in flight.
        queued: Tasks that waited, these included.
        tasks: Lane and key of each, in the order of dispatch.
        again: Positions in ``tasks`` of those that had been dispatched before and rolled back.
        iteration: The run's iteration.
    """

    batch: int
    reason: str
    limit: int
    queued: int
    tasks: tuple[tuple[str, str], ...]
    again: tuple[int, ...] = ()
    iteration: int = 0

    def line(self) -> str:
        """Return one line of JSON, with its end."""
        data = {
            "batch": self.batch,
            "reason": self.reason,
            "limit": self.limit,
            "queued": self.queued,
            "tasks": self.tasks,
            "again": self.again,
            "iteration": self.iteration,
        }
        return json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A decision of the run that depended on time, kept beside its schedule.

    Attributes:
        decision: What kind of decision.
        iteration: The run's iteration.
        values: What was decided; JSON values.
    """

    decision: str
    iteration: int
    values: Mapping[str, Any]

    def line(self) -> str:
        """Return one line of JSON, with its end."""
        data = {"decision": self.decision, "iteration": self.iteration, "values": dict(self.values)}
        return json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n"


@dataclass(frozen=True, slots=True)
class ScheduleRecord:
    """A recorded schedule.

    Attributes:
        released: What was dispatched, in order.
        decisions: What else was decided, in order.
    """

    released: tuple[Released, ...] = ()
    decisions: tuple[Recorded, ...] = ()

    def __add__(self, later: ScheduleRecord) -> ScheduleRecord:
        return ScheduleRecord((*self.released, *later.released), (*self.decisions, *later.decisions))

    def keys(self) -> tuple[str, ...]:
        """Return the keys in the order of their first dispatch; a key appears as often as it was submitted."""
        return tuple(
            key
            for one in self.released
            for position, (_, key) in enumerate(one.tasks)
            if key and position not in one.again
        )

    def write(self, path: str | PathLike[str]) -> None:
        """Write it as JSONL, one line a group of tasks, after a line that names the format."""
        with Path(path).open("w", encoding="utf-8") as file:
            file.write(head())
            file.writelines(one.line() for one in self.decisions)
            file.writelines(one.line() for one in self.released)

    @classmethod
    def read(cls, path: str | PathLike[str]) -> ScheduleRecord:
        """Read what :meth:`write`, or a scheduler with ``record``, has written.

        A last line without its end, as a killed process leaves it, is skipped.

        Raises:
            ArgumentValueError: It is no such file, or a line of it cannot be read.
            OSError: The file cannot be opened.
        """
        text = Path(path).read_text(encoding="utf-8", errors="replace")
        lines = text.split("\n")[:-1]
        if not lines or _loads(lines[0]) != _HEAD:
            raise ArgumentValueError("replay", str(path), "is no schedule of this version", "Give a recorded schedule.")
        found = [_entry(line, f"{path}:{number}") for number, line in enumerate(lines[1:], 2)]
        return cls(
            tuple(one for one in found if isinstance(one, Released)),
            tuple(one for one in found if isinstance(one, Recorded)),
        )


def head() -> str:
    """Return the first line of a file."""
    return json.dumps(_HEAD) + "\n"


def _loads(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _entry(line: str, where: str) -> Released | Recorded:
    data = _loads(line)
    if isinstance(data, dict) and "decision" in data:
        decision, iteration, values = data["decision"], data.get("iteration"), data.get("values")
        if isinstance(decision, str) and type(iteration) is int and isinstance(values, dict):
            return Recorded(decision, iteration, values)
    elif (
        isinstance(data, dict)
        and all(type(data.get(name)) is int for name in ("batch", "limit", "queued", "iteration"))
        and isinstance(data.get("reason"), str)
        and isinstance(data.get("tasks"), list)
        and all(_is_task(task) for task in data["tasks"])
        and isinstance(data.get("again"), list)
        and all(type(position) is int for position in data["again"])
    ):
        tasks = tuple((lane, key) for lane, key in data["tasks"])
        return Released(
            data["batch"], data["reason"], data["limit"], data["queued"], tasks, tuple(data["again"]), data["iteration"]
        )
    raise ArgumentValueError("replay", where, "is no line of a schedule", "Give the file as it was written.")


def _is_task(task: Any) -> bool:
    return isinstance(task, list) and len(task) == 2 and all(isinstance(part, str) for part in task)


class ReplayQueue:
    """Waiting tasks in the order of a record; implements :class:`~combee_dspy.rollouts.scheduling._queue.TaskQueue`.

    The n-th task of a key takes the n-th place that the record has for it. A
    task goes when all earlier places are taken, or given up: a place is
    given up when its task is cancelled (or done by who waits for it), and
    when nothing else can happen (``stalled``), which gives up all places before the
    first task that waits. A task whose place was given up, or that the
    record does not know, waits for the end of the record, or for a stall
    without recorded tasks. A task without a key is not ordered: it goes as if there were no record,
    behind the recorded task whose turn it is.

    Args:
        keys: The recorded keys, in order of dispatch.
        others: Makes the queue for tasks that the record does not order.
    """

    def __init__(self, keys: Iterable[str], others: Callable[[], TaskQueue]) -> None:
        self._places: dict[str, deque[int]] = {}
        self._end = 0
        for key in keys:
            self._places.setdefault(key, deque()).append(self._end)
            self._end += 1
        self._next = 0
        self._given_up: set[int] = set()
        self._heap: list[int] = []
        self._jobs: dict[int, Job] = {}
        self._unknown = others()
        self._unordered = others()

    def __len__(self) -> int:
        return len(self._jobs) + len(self._unknown) + len(self._unordered)

    def push(self, job: Job) -> None:
        """Add a task."""
        places = self._places.get(job.place.key)
        position = places.popleft() if places else -1
        if position >= self._next:
            job.position = position
            self._hold(job, position)
        else:
            self._home(job).push(job)

    def put_back(self, job: Job) -> None:
        """Add a task that had been taken out: its turn has come."""
        if job.position is None:
            self._home(job).put_back(job)
        else:
            self._hold(job, job.position)

    def _hold(self, job: Job, position: int) -> None:
        self._jobs[position] = job
        heapq.heappush(self._heap, position)

    def _home(self, job: Job) -> TaskQueue:
        return self._unknown if job.place.key else self._unordered

    def take(
        self, room: int, slots: int, *, tokens: int | None = None, bucket: int | None = None, stalled: bool = False
    ) -> list[Job]:
        """Take out the next tasks; see :class:`~combee_dspy.rollouts.scheduling._queue.TaskQueue`."""
        taken = list(self._ordered(room))
        if len(taken) < room:
            taken += self._unordered.take(room - len(taken), slots)
        if not taken and stalled and self._first() is not None:
            self._next = self._heap[0]
            self._given_up = {position for position in self._given_up if position > self._next}
            taken = list(self._ordered(room))
        if len(taken) < room and (self._next >= self._end or (stalled and not taken)):
            taken += self._unknown.take(room - len(taken), slots)
        return taken

    def _ordered(self, room: int) -> Iterator[Job]:
        while room and (position := self._first()) is not None and position <= self._next:
            heapq.heappop(self._heap)
            room -= 1
            yield self._jobs.pop(position)
            self._pass(position)

    def _first(self) -> int | None:
        while self._heap and self._heap[0] not in self._jobs:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def _pass(self, position: int) -> None:
        if position > self._next:
            self._given_up.add(position)
        elif position == self._next:
            self._next += 1
            while self._next in self._given_up:
                self._given_up.discard(self._next)
                self._next += 1

    def ended(self, job: Job) -> None:
        """Hear that a task that was taken out is no longer in flight."""
        if job.position is None:
            self._home(job).ended(job)

    def discard(self, job: Job) -> bool:
        """Take a task out and give up its place; return whether it was there."""
        if job.position is None:
            return self._home(job).discard(job)
        found = self._jobs.pop(job.position, None) is not None
        if found:
            self._pass(job.position)
        return found
