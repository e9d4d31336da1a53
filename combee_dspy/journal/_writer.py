"""Writes a journal from one thread, which commits together what is waiting."""

from __future__ import annotations

import asyncio
import functools
import os
import queue
import sqlite3
import tempfile
import threading
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future, wait
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from combee_dspy.exceptions import JournalError, NotPlainFileError
from combee_dspy.files import check_database, check_plain, make_private, replace_file
from combee_dspy.journal._holder import Mark
from combee_dspy.journal._integrity import SCHEMA, VERSION, row_sum

Statement = tuple[str, Sequence[Any]]
"""SQL and its parameters."""

_Waiting = asyncio.Future[None] | Future[None]
_MOST = 512  # statements in one commit: keeps the wait of the first one short
_RESERVE = 16 << 20  # 256 effects in flight, whose pages take 20 to 60 kB in SQLite's log
_NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


class Writer:
    """Commits statements in the order in which they were given, as many as are waiting at a time.

    ``put`` may be called from any thread; ``commit`` on an event loop. A
    statement that fails fails every later one too: what a run bought after it
    would be missing from the books. So that what is in flight can be written
    where a disk is full, 16 MiB are reserved beforehand and given back then.

    Args:
        path: The file. Its tables exist.
        mark: Told of each commit; ``None`` where nobody will go on with the file, whose commits
            need not last then.

    Attributes:
        full: Why there is no room for more than what is in flight; ``None`` where there is.

    Raises:
        NotPlainFileError: A special file lies where the reserve belongs.
        OSError: There is no room for the reserve.
    """

    def __init__(self, path: Path, mark: Mark | None = None) -> None:
        self._path = path
        self._mark = mark
        self.full: Exception | None = None
        self._reserve = None if mark is None else _reserved(path.with_name(f"{path.name}.reserve"))
        self._queue: queue.SimpleQueue[tuple[Sequence[Statement], _Waiting | None] | None] = (
            queue.SimpleQueue()
        )
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="combee-journal", daemon=True)
        self._thread.start()

    def put(self, statements: Sequence[Statement]) -> None:
        """Write statements some time soon, together."""
        self._queue.put((statements, None))

    async def commit(self, statements: Sequence[Statement]) -> None:
        """Write statements together, and return once they are committed.

        Raises:
            JournalError: They could not be written, or the writer was closed before.
        """
        if not self._thread.is_alive():
            raise self._closed()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put((statements, done))
        await done

    def wait(self) -> None:
        """Return once all that was put before is committed. Blocks its thread; never the writer's.

        Raises:
            JournalError: It could not be written, or the writer was closed.
        """
        done: Future[None] = Future()
        self._queue.put(((), done))
        # Another thread may close the writer meanwhile, which leaves in the queue what comes after.
        while self._thread.is_alive() and not wait([done], timeout=0.1).done:
            pass
        if not done.done():
            raise self._closed()
        done.result()

    def _closed(self) -> JournalError:
        return JournalError(f"{self._path} is closed: nothing more is written to it")

    def close(self) -> None:
        """Write what is waiting and stop. May be called twice.

        Raises:
            JournalError: Something could not be written.
        """
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
            if self._reserve is not None:
                self._reserve.unlink(missing_ok=True)
        self.check()

    def check(self) -> None:
        """Raise where nothing can be written any more.

        Raises:
            JournalError: An earlier statement could not be written.
        """
        if self._failure is not None:
            raise self._unwritten(self._failure) from self._failure

    def _unwritten(self, error: Exception) -> JournalError:
        return JournalError(f"{self._path} could not be written: {error}")

    def _work(self) -> None:
        connection = None
        try:
            connection = connect(self._path, durable=self._mark is not None)
        except (sqlite3.Error, NotPlainFileError) as error:
            self._failure = error  # everybody who waits gets it, now and later
        while self._write_group(connection):
            pass
        if connection is not None:
            connection.close()

    def _write_group(self, connection: sqlite3.Connection | None) -> bool:
        """Commit what is waiting; return whether there will be more."""
        group = [self._queue.get()]
        while group[-1] is not None and len(group) < _MOST and not self._queue.empty():
            group.append(self._queue.get())
        work = [item for item in group if item is not None]
        self._commit(connection, [statement for statements, _ in work for statement in statements])
        loops: defaultdict[asyncio.AbstractEventLoop, list[_Waiting]] = defaultdict(list)
        for _, waiting in work:
            if isinstance(waiting, Future):
                self._answer([waiting])
            elif waiting is not None:
                loops[waiting.get_loop()].append(waiting)
        for loop, futures in loops.items():
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._answer, futures)
        return group[-1] is not None

    def _commit(
        self, connection: sqlite3.Connection | None, statements: Sequence[Statement]
    ) -> None:
        if connection is None or self._failure is not None:
            return
        try:
            try:
                self._transact(connection, statements)
            except sqlite3.OperationalError as error:
                if self._reserve is None or error.sqlite_errorcode & 0xFF not in _NO_ROOM:
                    raise
                self._reserve.unlink()
                self._reserve, self.full = None, error
                self._transact(connection, statements)
            if self._mark is not None:
                self._mark.write(connection)
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of it, and of nothing that comes after
            self._failure = error

    def _transact(self, connection: sqlite3.Connection, statements: Sequence[Statement]) -> None:
        try:
            connection.execute("BEGIN IMMEDIATE")
            for sql, parameters in statements:
                connection.execute(sql, parameters)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _answer(self, futures: Sequence[_Waiting]) -> None:
        for future in futures:
            if future.done():
                continue  # whoever waited was cancelled
            if self._failure is None:
                future.set_result(None)
            else:
                future.set_exception(self._unwritten(self._failure))


def _reserved(path: Path) -> Path:
    """Make a file that takes room on the disk."""
    if check_plain(path) is not None:
        path.unlink()  # a run that was killed left it, and there may be no room for two
    with replace_file(path) as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, _RESERVE)
        else:
            file.write(bytes(_RESERVE))
    return path


def connect(path: Path, *, durable: bool = False) -> sqlite3.Connection:
    """Return a connection that commits by hand, and knows checksums.

    A commit survives the death of the process; that of the machine where it is ``durable``.

    Raises:
        NotPlainFileError: The file, or one that SQLite keeps beside it, is no plain file.
    """
    check_database(path)
    make_private(path)
    connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
    connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
    connection.create_function("row_sum", -1, row_sum)
    return connection


@functools.cache
def whole_file() -> bytes:
    """Return the file of a journal without a run.

    It is made elsewhere, and moved into place whole: a kill in the middle would leave a file that
    only its own writer could mend.
    """
    with tempfile.TemporaryDirectory(prefix="combee-") as folder:
        path = Path(folder, "journal.sqlite")
        with closing(connect(path)) as connection:
            make_tables(connection)
            connection.execute("PRAGMA journal_mode=WAL")
        return path.read_bytes()


def make_tables(connection: sqlite3.Connection) -> None:
    """Make the tables of a journal."""
    connection.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version={VERSION}; COMMIT;")
