"""The file beside a journal that says which process holds it, and how many rows it must hold."""

from __future__ import annotations

import errno
import os
import socket
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from combee_dspy.files import check_plain, open_in_place, read_plain, write_plain
from combee_dspy.journal._integrity import COUNTED

# How often whoever is refused looks for the holder's name, and seconds between.
_LOOKS, _LOOK = 10, 0.1
_LONGEST = 1_000  # bytes
_COUNTS = ", ".join(
    f"(SELECT coalesce(max(rowid), 0) FROM {table})"  # noqa: S608 - constants
    for table in COUNTED
)


class Mark:
    """Who holds a journal, and how many rows it must hold: rows that were cut off at its end leave
    no other trace.

    It is written after each commit, so a process that dies in between leaves it behind the journal,
    never before it.

    Args:
        path: The file; made where it is missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._at = 0

    def read(self) -> tuple[str, tuple[int, ...]]:
        """Return who held the journal last, or nobody, and the least rows of each counted table."""
        facts = check_plain(self._path)
        # Nobody writes a longer one; a folder that somebody else has written may hold any.
        is_ours = facts is not None and facts.st_size <= _LONGEST
        text = read_plain(self._path) if is_ours else b""
        lines = text.decode("utf-8", "replace").split("\n")
        counts = lines[1].split() if len(lines) > 1 else []
        is_whole = len(counts) == len(COUNTED) and all(count.isdecimal() for count in counts)
        return lines[0], tuple(map(int, counts)) if is_whole else (0,) * len(COUNTED)

    def hold(self, counts: Sequence[int]) -> None:
        """Say that this process holds the journal from now on."""
        holder = f"process {os.getpid()} on {socket.gethostname()}"
        self._at = len(holder.encode()) + 1
        write_plain(self._path, f"{holder}\n{_written(counts)}\n")
        self._file = open_in_place(self._path)

    def write(self, connection: sqlite3.Connection) -> None:
        """Note how many rows are committed."""
        if self._file is not None:
            counts = connection.execute(f"SELECT {_COUNTS}").fetchone()
            self._file.seek(self._at)
            self._file.write(_written(counts).encode())

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self._file is not None:
            self._file.close()

    def holder(self) -> str:
        """Return who holds the journal. Waits for a second where nobody says so yet."""
        for _ in range(_LOOKS):
            holder, _ = self.read()
            number, _, host = holder.removeprefix("process ").partition(" on ")
            if number.isdecimal() and (host != socket.gethostname() or _lives(int(number))):
                return holder
            time.sleep(_LOOK)
        return "another process"


def _written(counts: Sequence[int]) -> str:
    # As long whatever they are: they are written in place.
    return " ".join(f"{count:015d}" for count in counts)


def _lives(process: int) -> bool:
    if os.name != "posix":
        return True  # elsewhere signal 0 is no question
    try:
        os.kill(process, 0)
    except OSError as error:
        return error.errno == errno.EPERM
    return True
