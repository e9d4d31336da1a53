from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections import Counter

import pytest

from combee_dspy.events import ErrorRaised, Event, IterationStarted
from combee_dspy.tracking import EventBus, Hook


class Recorder(Hook):
    def __init__(self) -> None:
        self.heard: list[Event] = []
        self.closed = 0
        self.threads: set[str] = set()

    def handle(self, event: Event) -> None:
        self.heard.append(event)
        self.threads.add(threading.current_thread().name)

    def close(self) -> None:
        self.closed += 1


class Broken(Recorder):
    def handle(self, event: Event) -> None:
        super().handle(event)
        raise ValueError("no disk")


def test_events_of_many_threads_arrive_once_and_in_each_threads_order() -> None:
    hook = Recorder()
    bus = EventBus([hook], capacity=8)

    def speak(speaker: int) -> None:
        for count in range(200):
            bus.emit(Event(iteration=speaker * 1000 + count))

    threads = [threading.Thread(target=speak, args=(speaker,)) for speaker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bus.close()
    heard = [event.iteration for event in hook.heard]
    assert Counter(heard) == Counter(speaker * 1000 + count for speaker in range(8) for count in range(200))
    for speaker in range(8):
        own = [number for number in heard if number // 1000 == speaker]
        assert own == sorted(own)
    assert hook.threads == {"combee-events"}


def test_an_emitter_does_not_wait_for_a_slow_hook() -> None:
    release = threading.Event()

    class Slow(Recorder):
        def handle(self, event: Event) -> None:
            release.wait()
            super().handle(event)

    hook = Slow()
    bus = EventBus([hook])
    for number in range(50):
        bus.emit(Event(iteration=number))
    # All 50 calls came back although the hook has not finished the first.
    assert hook.heard == []
    release.set()
    bus.close()
    assert len(hook.heard) == 50


def test_a_full_queue_makes_the_emitter_wait_and_loses_nothing() -> None:
    release, entered, emitted = threading.Event(), threading.Event(), threading.Event()

    class Slow(Recorder):
        def handle(self, event: Event) -> None:
            entered.set()
            release.wait()
            super().handle(event)

    hook = Slow()
    bus = EventBus([hook], capacity=2)
    bus.emit(Event(iteration=0))
    entered.wait()
    bus.emit(Event(iteration=1))
    bus.emit(Event(iteration=2))

    def overflow() -> None:
        bus.emit(Event(iteration=3))
        emitted.set()

    thread = threading.Thread(target=overflow)
    thread.start()
    assert not emitted.wait(0.05)
    release.set()
    thread.join()
    bus.close()
    assert [event.iteration for event in hook.heard] == [0, 1, 2, 3]


def test_a_failing_hook_is_reported_once_and_skipped_and_still_closed(caplog: pytest.LogCaptureFixture) -> None:
    broken, witness = Broken(), Recorder()
    bus = EventBus([broken, witness])
    with caplog.at_level(logging.WARNING):
        for number in range(5):
            bus.emit(Event(iteration=number))
        bus.close()
    assert len(broken.heard) == 1
    errors = [event for event in witness.heard if isinstance(event, ErrorRaised)]
    assert [(one.where, one.error, one.fatal) for one in errors] == [("hook Broken", "ValueError: no disk", False)]
    assert [event.iteration for event in witness.heard if not isinstance(event, ErrorRaised)] == [0, 1, 2, 3, 4]
    assert len([record for record in caplog.records if "no disk" in record.message]) == 1
    assert (broken.closed, witness.closed) == (1, 1)


def test_hooks_that_fail_on_each_others_failure_end() -> None:
    hooks = [Broken(), Broken(), Broken()]
    bus = EventBus(hooks)
    bus.emit(Event())
    bus.close()
    assert [hook.closed for hook in hooks] == [1, 1, 1]
    assert all(len(hook.heard) == 1 for hook in hooks)


def test_a_hook_that_cannot_be_closed_does_not_keep_the_next_from_it(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(Recorder):
        def close(self) -> None:
            super().close()
            sys.exit("enough")

    stuck, other = Stuck(), Recorder()
    with caplog.at_level(logging.WARNING), EventBus([stuck, other]) as bus:
        bus.emit(Event())
    assert (stuck.closed, other.closed) == (1, 1)
    assert "could not be closed" in caplog.text


def test_close_twice_closes_each_hook_once_and_later_events_are_ignored() -> None:
    hook = Recorder()
    bus = EventBus([hook])
    bus.emit(Event(iteration=1))
    bus.close()
    bus.close()
    bus.emit(Event(iteration=2))
    assert [event.iteration for event in hook.heard] == [1]
    assert hook.closed == 1


def test_a_hook_may_emit_even_when_the_queue_is_full() -> None:
    class Chatty(Recorder):
        bus: EventBus

        def handle(self, event: Event) -> None:
            super().handle(event)
            if event.iteration < 100:
                self.bus.emit(Event(iteration=event.iteration + 100))

    hook = Chatty()
    hook.bus = bus = EventBus([hook], capacity=1)
    for number in range(20):
        bus.emit(Event(iteration=number))
    bus.close()
    assert sorted(event.iteration for event in hook.heard) == [*range(20), *range(100, 120)]


def test_a_hook_that_closes_the_bus_is_a_failing_hook() -> None:
    class Closer(Recorder):
        bus: EventBus

        def handle(self, event: Event) -> None:
            self.bus.close()

    closer, witness = Closer(), Recorder()
    closer.bus = bus = EventBus([closer, witness])
    bus.emit(Event())
    bus.close()
    assert any(isinstance(event, ErrorRaised) and "cannot close" in event.error for event in witness.heard)


def test_without_hooks_there_is_no_thread() -> None:
    before = threading.active_count()
    bus = EventBus()
    bus.emit(Event())
    assert threading.active_count() == before
    bus.close()


def test_hooks_that_are_equal_are_told_apart() -> None:
    class Same(Broken):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Recorder)

        __hash__ = Recorder.__hash__

    broken, witness = Same(), Recorder()
    with EventBus([witness, broken]) as bus:
        bus.emit(Event(iteration=1))
        bus.emit(Event(iteration=2))
    assert [event.iteration for event in witness.heard if type(event) is Event] == [1, 2]


def test_importing_the_room_or_making_a_tracker_loads_no_mlflow() -> None:
    code = (
        "import sys, combee_dspy.tracking as room; "
        "bad = [name for name in ('mlflow', 'pyarrow', 'combee_dspy.cli') if name in sys.modules]; "
        "room.MLflowTracker(); "
        "bad += [name for name in ('mlflow', 'pyarrow') if name in sys.modules]; "
        "sys.exit(','.join(bad) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603 - our own code
    assert (done.returncode, done.stderr) == (0, "")


class Spent(BaseException):
    """A budget that a hook keeps."""


def test_what_ends_a_run_passes_through_and_leaves_no_hook_open() -> None:
    closed, heard = [], []

    class Keeper(Hook):
        def handle(self, event: Event) -> None:
            raise Spent("enough")

        def close(self) -> None:
            closed.append("keeper")

    class Other(Hook):
        def handle(self, event: Event) -> None:
            heard.append(event)

        def close(self) -> None:
            closed.append("other")

    bus = EventBus([Keeper(), Other()])
    with pytest.raises(Spent, match="enough"):
        # Whichever comes first after the hook has raised it.
        bus.emit(IterationStarted(iteration=1))
        bus.close()
    bus.close()
    assert closed == ["keeper", "other"]
    assert [type(event).__name__ for event in heard] == ["IterationStarted", "ErrorRaised"]


def test_what_ends_a_run_is_raised_in_the_thread_that_made_the_bus_alone() -> None:
    raised: list[BaseException] = []

    class Keeper(Hook):
        def handle(self, event: Event) -> None:
            raise Spent("enough")

    def speak() -> None:
        try:
            for _ in range(3):
                bus.emit(IterationStarted(iteration=1))
        except Spent as ending:
            raised.append(ending)

    bus = EventBus([Keeper()])
    speaker = threading.Thread(target=speak)
    speaker.start()
    speaker.join()
    assert not raised
    with pytest.raises(Spent, match="enough"):
        bus.close()
    bus.raise_ending()


def test_a_hook_hears_what_it_wants_and_the_journal_all() -> None:
    picky, journal = Recorder(), Recorder()
    picky.wants = (IterationStarted,)
    journal.record = journal.handle  # type: ignore[attr-defined]
    with EventBus([picky], journal=journal) as bus:  # type: ignore[arg-type]
        for number in range(3):
            bus.emit(Event(iteration=number))
            bus.emit(IterationStarted(iteration=number))
    assert picky.heard == [IterationStarted(iteration=number) for number in range(3)]
    assert len(journal.heard) == 6
    # One that wants all does not make another hear more.
    everything = Recorder()
    picky = Recorder()
    picky.wants = (IterationStarted,)
    with EventBus([picky, everything]) as bus:
        bus.emit(Event())
        bus.emit(IterationStarted())
    assert picky.heard == [IterationStarted()]
    assert everything.heard == [Event(), IterationStarted()]
