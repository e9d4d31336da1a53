"""Remembers which large journals were checked, so that to read one again takes a digest of it."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from combee_dspy.exceptions import NotPlainFileError
from combee_dspy.files import cache_dir, check_plain, make_folder, read_plain, write_plain
from combee_dspy.journal._integrity import check

_LARGE = 16 << 20  # bytes: the rows of a smaller journal are checked within half a second
_CHECKS = b"2\n"  # another one where :func:`check` looks at more, so that no earlier note counts
_NO_CACHE = (OSError, RuntimeError, NotPlainFileError)  # where nothing can be noted


def check_once(connection: sqlite3.Connection, path: Path, counts: Sequence[int]) -> None:
    """Check a journal, unless these very bytes were checked before by this user.

    What was checked is noted in the user's cache, never beside the journal: a folder that somebody
    else has written cannot vouch for itself. A note holds the SHA-256 of the whole file, so one
    changed bit has every row checked again.

    Args:
        connection: May read it.
        path: The file.
        counts: How many rows of each counted table it must hold at least.

    Raises:
        JournalDamagedError: Something was changed or is missing.
        JournalError: It cannot be opened.
    """
    changed = _changed_at(path)
    digest = _digest_of(path, counts)
    if digest is None or _read_note(path) != digest:
        check(connection, path, counts)
        # Whoever has written to it meanwhile has changed what was checked.
        if digest is not None and changed == _changed_at(path):
            _write_note(path, digest)


def _changed_at(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return 0


def is_remembered(path: Path) -> bool:
    """Return whether a journal is large, and SQLite keeps nothing of it beside the file."""
    logs = (path.with_name(f"{path.name}{ending}") for ending in ("-wal", "-journal"))
    return path.stat().st_size >= _LARGE and not any(
        log.exists() and log.stat().st_size for log in logs
    )


def _digest_of(path: Path, counts: Sequence[int]) -> bytes | None:
    """Return the SHA-256 of a journal and of what it must hold; ``None`` where none is
    remembered.
    """
    digest = hashlib.sha256(_CHECKS + f"{list(counts)}\n".encode())
    try:
        if not is_remembered(path):
            return None
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError:
        return None  # whoever reads its rows says why
    return digest.hexdigest().encode()


def _note_of(path: Path) -> Path:
    return cache_dir() / "checked" / hashlib.sha256(bytes(path.resolve())).hexdigest()[:32]


def _read_note(path: Path) -> bytes:
    with suppress(*_NO_CACHE):
        note = _note_of(path)
        if check_plain(note) is not None:
            return read_plain(note)
    return b""


def _write_note(path: Path, digest: bytes) -> None:
    with suppress(*_NO_CACHE):
        note = _note_of(path)
        make_folder(note.parent)
        write_plain(note, digest)
