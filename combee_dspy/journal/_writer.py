"""The one thread that writes a journal: what is waiting is committed together."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from combee_dspy.exceptions import JournalError

__all__ = ["Statement", "Writer"]

Statement = tuple[str, Sequence[Any]]
"""SQL and its parameters."""

_Waiting = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]
_MOST = 512  # statements in one commit: keeps the wait of the first one short


class Writer:
    """Commits statements in the order in which they were given, as many as are waiting at a time.

    ``put`` may be called from any thread; ``commit`` on an event loop. A
    statement that fails (a full disk) fails every later one too: what a run
    bought after it would be missing from the books.

    Args:
        path: The file. Its tables exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._queue: queue.SimpleQueue[tuple[Sequence[Statement], _Waiting | None] | None] = queue.SimpleQueue()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="combee-journal", daemon=True)
        self._thread.start()

    def put(self, statements: Sequence[Statement]) -> None:
        """Write statements some time soon, together."""
        self._queue.put((statements, None))

    async def commit(self, statements: Sequence[Statement]) -> None:
        """Write statements together, and return once they are committed.

        Raises:
            JournalError: They could not be written.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._queue.put((statements, (loop, done)))
        await done

    def close(self) -> None:
        """Write what is waiting and stop. May be called twice.

        Raises:
            JournalError: Something could not be written.
        """
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        if self._failure is not None:
            raise JournalError(f"{self._path} could not be written: {self._failure}") from self._failure

    def _work(self) -> None:
        connection = None
        try:
            connection = connect(self._path)
        except sqlite3.Error as error:
            self._failure = error  # told to everybody who waits, now and later
        while self._write_group(connection):
            pass
        if connection is not None:
            connection.close()

    def _write_group(self, connection: sqlite3.Connection | None) -> bool:
        """Commit what is waiting; return whether there will be more."""
        group = [self._queue.get()]
        while group[-1] is not None and len(group) < _MOST and not self._queue.empty():
            group.append(self._queue.get())
        work = [one for one in group if one is not None]
        self._commit(connection, [one for statements, _ in work for one in statements])
        loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for _, waiting in work:
            if waiting is not None:
                loops.setdefault(waiting[0], []).append(waiting[1])
        for loop, futures in loops.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._tell, futures)
        return group[-1] is not None

    def _commit(self, connection: sqlite3.Connection | None, statements: Sequence[Statement]) -> None:
        if connection is None or self._failure is not None:
            return
        try:
            connection.execute("BEGIN IMMEDIATE")
            for sql, parameters in statements:
                connection.execute(sql, parameters)
            connection.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of it, and of nothing that comes after
            self._failure = error
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _tell(self, futures: Sequence[asyncio.Future[None]]) -> None:
        for future in futures:
            if future.done():
                continue
            if self._failure is None:
                future.set_result(None)
            else:
                future.set_exception(JournalError(f"{self._path} could not be written: {self._failure}"))


def connect(path: Path) -> sqlite3.Connection:
    """Return a connection that commits by hand. A commit survives the death of the process, the last of a power cut."""
    connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA synchronous=NORMAL")
    return connection
