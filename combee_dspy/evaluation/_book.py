"""The book of a study: an append-only file of what was pinned and what was read."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from combee_dspy.evaluation._receipts import Receipt, strict_json
from combee_dspy.exceptions import ReceiptError
from combee_dspy.hashing import canonical_json

__all__ = ["BookEntries", "ReceiptBook"]

FILE_NAME = "heldout_receipts.jsonl"
_START = "0" * 64
_KINDS = frozenset({"rows", "pinned", "begun", "read"})
_locks: dict[str, threading.Lock] = {}
_locks_guard = threading.Lock()


class ReceiptBook:
    """What one study has pinned and read of its held-out set, over all its runs.

    One JSON object a line, each with the hash of the line before and its own;
    ``<path>.head`` holds the number of lines and the last hash. An edited,
    dropped, reordered or added line is found, and so is a book cut short or
    taken away while its head stays. Someone who recomputes every hash, or who
    removes both files, is not found: the book keeps honest people honest.

    A line is on disk before the call returns, and a write that was cut off is
    mended by the next one. Safe for several threads and processes on one
    machine: a lock file beside the book is held for each check and write.

    Args:
        path: The file; its folder is made with the first line.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @classmethod
    def at(cls, where: ReceiptBook | str | os.PathLike[str] | None, log_dir: object = None) -> ReceiptBook | None:
        """Return the book that a run writes to.

        Args:
            where: A book, a file, or ``None`` for ``heldout_receipts.jsonl`` in ``log_dir``.
            log_dir: The run's directory, if it has one.

        Returns:
            The book; ``None`` where there is neither, and then nobody knows of earlier looks.
        """
        if isinstance(where, ReceiptBook):
            return where
        if where is not None:
            return cls(where)
        return cls(Path(str(log_dir)) / FILE_NAME) if log_dir is not None else None

    @contextmanager
    def opened(self) -> Iterator[BookEntries]:
        """Hold the book, with its entries read and checked, so that a check and a write are one step.

        Raises:
            ReceiptError: The book is not as it was written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _held(self.path):
            yield BookEntries(self, *self._read())

    def receipts(self) -> tuple[Receipt, ...]:
        """Return every receipt, oldest first.

        Raises:
            ReceiptError: The book is not as it was written.
        """
        if not self.path.exists() and not self._head.exists():
            return ()
        with self.opened() as entries:
            return entries.receipts()

    @property
    def _head(self) -> Path:
        return self.path.with_name(self.path.name + ".head")

    def _read(self) -> tuple[list[dict[str, Any]], str]:
        raw = self.path.read_bytes() if self.path.exists() else b""
        whole, newline, torn = raw.rpartition(b"\n")
        lines = (whole + newline).split(b"\n")[:-1]
        entries: list[dict[str, Any]] = []
        last = _START
        for number, line in enumerate(lines, start=1):
            entry = _entry(self.path, number, line, last)
            last = entry["hash"]
            entries.append(entry)
        self._check_head(entries)
        if torn:
            self._mend(len(raw) - len(torn))
        return entries, last

    def _check_head(self, entries: Sequence[Mapping[str, Any]]) -> None:
        if not self._head.exists():
            # The first line is written before its head: one without is a write that was cut off.
            if len(entries) > 1:
                raise ReceiptError(str(self.path), f"{self._head.name} is missing")
            return
        count, _, digest = self._head.read_text(encoding="utf-8").strip().partition(" ")
        if not count.isdecimal() or not digest:
            raise ReceiptError(str(self._head), "it is no count and hash")
        known = int(count)
        # One line more than the head says is a write that was cut off between the two.
        if not known <= len(entries) <= known + 1:
            raise ReceiptError(str(self.path), f"it has {len(entries)} lines where {known} were written")
        if known and entries[known - 1]["hash"] != digest:
            raise ReceiptError(str(self.path), f"line {known} is not the one that was written")

    def _mend(self, size: int) -> None:
        # What follows the last line's end was never finished, so nobody was told that it is there.
        with self.path.open("r+b") as file:
            file.truncate(size)
            _sync(file)

    def write(self, entry: Mapping[str, Any], count: int, last: str) -> dict[str, Any]:
        """Append a line, on disk when this returns. For :class:`BookEntries`, which holds the lock."""
        content = {**entry, "previous": last}
        line = {**content, "hash": hashlib.sha256(canonical_json(content).encode()).hexdigest()}
        with self.path.open("ab") as file:
            file.write(canonical_json(line).encode() + b"\n")
            _sync(file)
        partial = self._head.with_name(self._head.name + ".tmp")
        with partial.open("wb") as file:
            file.write(f"{count + 1} {line['hash']}\n".encode())
            _sync(file)
        partial.replace(self._head)
        _sync_names(self.path.parent)
        return line


class BookEntries:
    """A book's lines while it is held.

    Args:
        book: The book.
        lines: Its lines, oldest first.
        last: The last line's hash.
    """

    def __init__(self, book: ReceiptBook, lines: list[dict[str, Any]], last: str) -> None:
        self._book = book
        self._lines = lines
        self._last = last

    def of(self, kind: str, **values: str) -> list[dict[str, Any]]:
        """Return the lines of a kind with these values, oldest first."""
        return [
            line
            for line in self._lines
            if line["kind"] == kind and all(line.get(name) == value for name, value in values.items())
        ]

    def receipts(self) -> tuple[Receipt, ...]:
        """Return every receipt, oldest first.

        Raises:
            ReceiptError: One of them does not parse.
        """
        return tuple(Receipt.from_dict(line.get("receipt")) for line in self.of("read"))

    def rows(self, content: str) -> frozenset[str]:
        """Return the row hashes of a split that the book knows."""
        return frozenset(row for line in self.of("rows", content=content)[:1] for row in line["rows"])

    def append(self, kind: str, **values: Any) -> None:
        """Write a line."""
        line = self._book.write({"kind": kind, **values}, len(self._lines), self._last)
        self._lines.append(line)
        self._last = line["hash"]

    def note_rows(self, content: str, rows: Sequence[str]) -> None:
        """Write a split's row hashes, once."""
        if not self.of("rows", content=content):
            self.append("rows", content=content, rows=sorted(rows))


def _entry(path: Path, number: int, line: bytes, previous: str) -> dict[str, Any]:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ReceiptError(str(path), f"line {number} is no UTF-8") from error
    entry = strict_json(text, f"{path}:{number}")
    if not isinstance(entry, dict) or entry.get("kind") not in _KINDS:
        raise ReceiptError(str(path), f"line {number} is no entry")
    content = {name: value for name, value in entry.items() if name != "hash"}
    if entry.get("hash") != hashlib.sha256(canonical_json(content).encode()).hexdigest():
        raise ReceiptError(str(path), f"line {number} has been edited")
    if entry.get("previous") != previous:
        raise ReceiptError(str(path), f"line {number} does not follow the line before it")
    if entry["kind"] == "rows" and not _all_text(entry.get("rows")):
        raise ReceiptError(str(path), f"line {number} holds no row hashes")
    return entry


def _all_text(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_names(folder: Path) -> None:
    """Make new and renamed files of a folder last; Windows has no such call, and needs none."""
    if sys.platform != "win32":
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """Hold a lock among threads, then among processes: file locks know no threads on every system."""
    with _locks_guard:
        within = _locks.setdefault(str(path.resolve()), threading.Lock())
    with within, path.with_name(path.name + ".lock").open("a+b") as file:
        _lock(file)
        try:
            yield
        finally:
            _unlock(file)


if sys.platform == "win32":
    import msvcrt

    def _lock(file: IO[bytes]) -> None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)

    def _unlock(file: IO[bytes]) -> None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)
else:
    import fcntl

    def _lock(file: IO[bytes]) -> None:
        fcntl.flock(file, fcntl.LOCK_EX)

    def _unlock(file: IO[bytes]) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)
