"""Carries events from the threads of a run to its hooks."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Protocol

from combee_dspy.events import ErrorRaised, Event
from combee_dspy.tracking._base import Hook

__all__ = ["EventBus"]

_logger = logging.getLogger(__name__)

CAPACITY = 100_000
"""Events that may wait for the hooks before an emitter has to."""


class Recorder(Protocol):
    """Keeps events where a killed process leaves them: a :class:`combee_dspy.tracking.Journal`. Thread-safe."""

    def record(self, event: Event) -> None:
        """Keep one event. Never raises."""
        ...

    def close(self) -> None:
        """Finish. Idempotent."""
        ...


class EventBus:
    """Delivers events to hooks from one thread, in the order of emission.

    :meth:`emit` puts an event into a queue and returns. No event is ever
    dropped: when ``capacity`` events wait because a hook is slower than the
    run, :meth:`emit` blocks until one has been delivered. A hook that raises
    is logged as a warning once, announced to the others as
    :class:`~combee_dspy.events.ErrorRaised`, and hears nothing more; it is
    still closed. Without hooks no thread is started.

    A journal hears each event before :meth:`emit` returns, in the thread that
    emits it: whatever is done next follows from something that is recorded. It
    is closed before the hooks are, so that a hook can wait for its end. Without
    hooks and journal :meth:`emit` does nothing.

    Thread-safe. A hook may call :meth:`emit` itself: its event follows the
    one it is hearing, and never blocks.

    Args:
        hooks: Who listens, in the order in which they hear each event.
        capacity: Events that may wait, at least 1.
        journal: Hears each event first.
    """

    def __init__(
        self, hooks: Iterable[Hook] = (), *, capacity: int = CAPACITY, journal: Recorder | None = None
    ) -> None:
        self._journal = journal
        self._hooks = tuple(hooks)
        self._listening = list(self._hooks)
        self._wants = {id(hook): hook.wants for hook in self._hooks}
        wanted = [wants for wants in self._wants.values() if wants is not None]
        self._wanted = None if len(wanted) < len(self._hooks) else tuple({kind for kinds in wanted for kind in kinds})
        self._queue: queue.Queue[Event | None] = queue.Queue(max(1, capacity))
        self._own: deque[Event] = deque()
        # Held while an event enters the queue, so that nothing can enter behind the end mark.
        self._entry = threading.Lock()
        # What a hook raised to end the run, until it has been raised in the run's own thread, which made the bus:
        # raised in another, it would be kept in a future that nobody may ask.
        self._owner = threading.get_ident()
        self._ending: BaseException | None = None
        # Not the other lock: an emitter holds that one while it waits for the delivering thread.
        self._ends = threading.Lock()
        self._closed = not self._hooks
        self._thread: threading.Thread | None = None
        if self._hooks:
            self._thread = threading.Thread(target=self._run, name="combee-events", daemon=True)
            self._thread.start()

    def emit(self, event: Event) -> None:
        """Say what happened. An event that comes after :meth:`close` is ignored.

        Raises:
            BaseException: What a hook raised to end the run, once, in the thread that made this object; no
                ``Exception``, which a hook is skipped for.
        """
        if self._journal is not None:
            self._journal.record(event)
        if not self._hooks:
            return
        if threading.current_thread() is self._thread:
            self._own.append(event)
            return
        if self._wanted is None or isinstance(event, self._wanted):
            with self._entry:
                if not self._closed:
                    self._queue.put(event)
        if threading.get_ident() == self._owner:
            self.raise_ending()

    def close(self) -> None:
        """Deliver what is waiting, then close every hook exactly once. Idempotent.

        Returns when the last hook is closed.

        Raises:
            RuntimeError: A hook called it; only the owner of the bus can wait for its end.
            BaseException: What a hook raised to end the run, unless :meth:`emit` has.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError("a hook cannot close the bus that it listens to")
        with self._entry:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        if self._thread is None and self._journal is not None:
            self._journal.close()
        if self._thread is not None:
            self._thread.join()
        self.raise_ending()

    def raise_ending(self) -> None:
        """Raise what a hook raised to end the run, once: for whoever waits long and says nothing meanwhile.

        Raises:
            BaseException: That.
        """
        if self._ending is None:
            return
        with self._ends:
            ending, self._ending = self._ending, None
        if ending is not None:
            raise ending

    def __enter__(self) -> EventBus:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        while (event := self._queue.get()) is not None:
            self._deliver(event)
            self._deliver_own()
        self._deliver_own()
        if self._journal is not None:
            self._journal.close()
        for hook in self._hooks:
            self._guarded(hook, None)

    def _deliver_own(self) -> None:
        while self._own:
            self._deliver(self._own.popleft())

    def _deliver(self, event: Event) -> None:
        for hook in tuple(self._listening):
            wants = self._wants[id(hook)]
            if wants is not None and not isinstance(event, wants):
                continue
            error = self._guarded(hook, event)
            if error is None:
                continue
            self._listening = [other for other in self._listening if other is not hook]
            raised = ErrorRaised(
                iteration=event.iteration, where=f"hook {type(hook).__name__}", error=error, fatal=False
            )
            if self._journal is not None:
                self._journal.record(raised)
            self._own.append(raised)

    def _guarded(self, hook: Hook, event: Event | None) -> str | None:
        """Call a hook, with ``None`` for its close; return its error's text."""
        try:
            if event is None:
                hook.close()
            else:
                hook.handle(event)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a hook is foreign code and must not end the run
            text = f"{type(error).__name__}: {error}"
            what = "could not be closed" if event is None else "failed and hears no further event"
            _logger.warning("Hook %s %s: %s", type(hook).__name__, what, text)
            return text
        except BaseException as error:  # noqa: BLE001 - a budget that is spent passes through, in the run's thread
            with self._ends:
                self._ending = self._ending or error
            return f"{type(error).__name__}: {error}"
        return None
