"""Scans that begin before their rollouts have ended."""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from combee_dspy.aggregators import Scan
from combee_dspy.events import Event
from combee_dspy.records import Lessons, Reflection, Rollout

__all__ = ["Guess", "HeldEvents", "Stream", "StreamKey", "Streams", "stream_key"]

# A reader waits for its one call. What bounds the calls is the session, not this.
_READERS = 128

StreamKey = tuple[str, tuple[str, ...]]
"""A parent's content hash and the row hashes of its minibatch."""


def stream_key(parent: str, rollouts: Sequence[Rollout]) -> StreamKey:
    """Return the key of what a parent's rollouts are read by."""
    return parent, tuple(rollout.example_id for rollout in rollouts)


@dataclass(slots=True)
class _Reading:
    """One component's scan, on its way."""

    scan: Scan
    rescued: tuple[Reflection, ...]
    ready: list[Any] = field(default_factory=list)
    reads: list[Future[None]] = field(default_factory=list)
    records: dict[int, Any] = field(default_factory=dict)
    used: bool = False


class HeldEvents:
    """Keeps what a scan tells until it is known that somebody asks for the scan. Thread-safe.

    Args:
        emit: Where it goes then.
    """

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self._lock = threading.Lock()
        self._kept: list[Event] | None = []

    def __call__(self, event: Event) -> None:
        """Keep an event, or pass it on."""
        with self._lock:
            if self._kept is not None:
                self._kept.append(event)
                return
        self._emit(event)

    def release(self) -> None:
        """Pass on what was kept, then keep nothing more. What comes meanwhile waits for its turn."""
        while True:
            with self._lock:
                kept, self._kept = self._kept, [] if self._kept else None
            if not kept:
                return
            for event in kept:
                self._emit(event)


@dataclass(frozen=True, slots=True)
class Guess:
    """How a stream is read that nobody may ever ask for.

    Attributes:
        reads: The most shards that may be read: those that are there first.
        events: Keeps what its scans tell.
    """

    reads: int
    events: HeldEvents


class Stream:
    """One parent on one minibatch, read while its rollouts still run.

    A shard is read as soon as the records of all its reflections are there, so the first
    calls run beside the last rollouts. What is learned is the same as if everything had been
    read at the end: plan, prompts and joins go by position, never by arrival.

    Nothing is read before a rollout fell short of a perfect score, where gepa skips minibatches without a mistake.

    Thread-safe.

    Args:
        key: Tells streams apart.
        iteration: The iteration that asks for it.
        readings: The scans begun, by component, each with the rescued reflections behind the minibatch's own.
        record: Makes one rollout's record for a component; ``None`` where it says nothing.
        enough: The score from which a rollout has no mistake; ``None`` reads shards at once.
        readers: Where shards are read. Not owned.
        guess: How it is read while nobody may ever ask for it; ``None`` where it is certain to be asked for.

    Attributes:
        key: As given.
        iteration: As given.
    """

    def __init__(
        self,
        key: StreamKey,
        iteration: int,
        readings: Mapping[str, tuple[Scan, tuple[Reflection, ...]]],
        record: Callable[[str, int, Rollout], Any | None],
        enough: float | None,
        readers: ThreadPoolExecutor,
        *,
        guess: Guess | None = None,
    ) -> None:
        self.key = key
        self.iteration = iteration
        self._guess = guess
        self._record = record
        self._enough = enough
        self._readers = readers
        self._lock = threading.Lock()
        self._heard: set[int] = set()
        self._open = enough is None
        self._failure: BaseException | None = None
        self._readings = {component: _Reading(scan, rescued) for component, (scan, rescued) in readings.items()}
        size = len(key[1])
        for reading in self._readings.values():
            for number, reflection in enumerate(reading.rescued):
                reading.ready.extend(reading.scan.feed(size + number, reflection))

    @property
    def guess(self) -> Guess | None:
        """How it is read while nobody may ever ask for it; ``None`` once somebody is certain to."""
        return self._guess

    def confirm(self) -> None:
        """Note that it is asked for: what its scans had to tell is told now, and what is there is read."""
        with self._lock:
            guess, self._guess = self._guess, None
            if self._open and self._failure is None:
                self._read_all()
        if guess is not None:
            guess.events.release()

    @property
    def submitted(self) -> int:
        """How many shards were given to be read."""
        with self._lock:
            return self._given()

    @property
    def running(self) -> list[Future[None]]:
        """The reads that have not ended and were not stopped."""
        with self._lock:
            return [read for reading in self._readings.values() for read in reading.reads if not read.done()]

    @property
    def components(self) -> tuple[str, ...]:
        """The components that are read."""
        return tuple(self._readings)

    def used(self, component: str) -> bool:
        """Return whether somebody has asked for what a component's scan learned."""
        return self._readings[component].used

    def rescued(self, component: str) -> tuple[Reflection, ...]:
        """Return the rescued reflections of a component."""
        return self._readings[component].rescued

    def hear(self, position: int, rollout: Rollout) -> None:
        """Take in one rollout. Heard again, it changes nothing."""
        with self._lock:
            if position in self._heard or self._failure is not None:
                return
            self._heard.add(position)
            self._open = self._open or self._enough is None or not rollout.score >= self._enough
            try:
                for component, reading in self._readings.items():
                    record = self._record(component, position, rollout)
                    if record is not None:
                        reading.records[position] = record
                    given = None if record is None else Reflection(position, record, rollout.example_id)
                    reading.ready.extend(reading.scan.feed(position, given))
            except BaseException as error:  # noqa: BLE001 - kept, and raised to whoever asks for the records
                self._failure = error
                return
            if self._open:
                self._read_all()

    def records(self, rollouts: Sequence[Rollout]) -> dict[str, dict[int, Any]]:
        """Return the records by component and position, once all rollouts are there.

        Raises:
            Exception: What making a record raised.
        """
        for position, rollout in enumerate(rollouts):
            self.hear(position, rollout)
        if self._failure is not None:
            raise self._failure
        return {component: dict(reading.records) for component, reading in self._readings.items()}

    def lessons(self, component: str) -> Lessons:
        """Return what a component's scan learned. Every rollout must have been heard.

        Raises:
            Exception: What the aggregator raised.
        """
        reading = self._readings[component]
        with self._lock:
            reading.used = True
            self._read(reading)
            reads = tuple(reading.reads)
        for read in reads:
            read.result()
        return reading.scan.finish()

    def cancel(self) -> None:
        """Read nothing more."""
        with self._lock:
            self._failure = self._failure or RuntimeError("the stream was cancelled")
            for reading in self._readings.values():
                reading.ready.clear()
                for read in reading.reads:
                    read.cancel()

    def _read_all(self) -> None:
        for reading in self._readings.values():
            self._read(reading)

    def _read(self, reading: _Reading) -> None:
        room = None
        if self._guess is not None:
            room = max(0, self._guess.reads - self._given())
        for shard in reading.ready[:room]:
            # A fresh copy per task: two threads may not run in one context.
            context = contextvars.copy_context()
            reading.reads.append(self._readers.submit(context.run, reading.scan.read, shard))
        del reading.ready[:room]

    def _given(self) -> int:
        return sum(len(reading.reads) for reading in self._readings.values())


class Streams:
    """The streams of one run.

    Rollouts are heard in a thread of their own: making records is no work for the threads
    that carry out rollouts. Opened, taken and closed by the thread that runs gepa's loop.
    """

    def __init__(self) -> None:
        self._streams: dict[StreamKey, Stream] = {}
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._listener: threading.Thread | None = None
        self.readers = ThreadPoolExecutor(_READERS, thread_name_prefix="combee-read")

    def open(self, stream: Stream) -> Callable[[int, Rollout], None]:
        """Take a stream in, and return what hears its rollouts."""
        self._streams[stream.key] = stream
        return self.hears(stream)

    def hears(self, stream: Stream) -> Callable[[int, Rollout], None]:
        """Return what hears a stream's rollouts, in any order and from any thread."""
        if self._listener is None:
            # A daemon: a run that is interrupted must not wait for it.
            self._listener = threading.Thread(target=self._listen, name="combee-stream", daemon=True)
            self._listener.start()
        context = contextvars.copy_context()

        def ready(position: int, rollout: Rollout) -> None:
            self._queue.put(lambda: context.run(stream.hear, position, rollout))

        return ready

    def get(self, key: StreamKey) -> Stream | None:
        """Return a stream that has been opened."""
        return self._streams.get(key)

    def drop(self, unwanted: Callable[[Stream], bool]) -> list[Stream]:
        """Cancel the streams that nobody wants any more, and return them."""
        gone = [key for key, stream in self._streams.items() if unwanted(stream)]
        dropped = [self._streams.pop(key) for key in gone]
        for stream in dropped:
            stream.cancel()
        return dropped

    def certain(self) -> list[Stream]:
        """Return the streams that somebody asks for."""
        return [stream for stream in self._streams.values() if stream.guess is None]

    def guesses(self) -> list[Stream]:
        """Return the streams that nobody is sure to ask for."""
        return [stream for stream in self._streams.values() if stream.guess is not None]

    def close(self) -> None:
        """Stop; all streams must have been dropped. May be called twice."""
        self._queue.put(None)
        self.readers.shutdown(wait=False, cancel_futures=True)

    def _listen(self) -> None:
        while (heard := self._queue.get()) is not None:
            heard()
