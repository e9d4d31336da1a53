"""Writes files, and reads files of folders that strangers may have filled.

Such a folder may hold a link in the place of a file, or a pipe that never ends. So no link is
followed for writing: a new file gets a random name beside its place and is moved there, and
anything but a plain file is refused. Every other module writes through this one.

Two gaps remain. Folders on the way to a file may be links, since a home or ``/tmp`` often is. And a
process that writes to the folder at the same time can swap a SQLite file between our check and
SQLite's own opening.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

from combee_dspy.exceptions import NotPlainFileError

__all__ = [
    "append_plain",
    "cache_dir",
    "check_database",
    "check_folder",
    "check_plain",
    "delete_plain",
    "file_name",
    "make_folder",
    "make_private",
    "open_in_place",
    "open_lock",
    "read_plain",
    "replace_file",
    "take_lock",
    "write_plain",
]

# Windows lacks all three, and opens neither pipes nor devices by a path in a folder.
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)
_BINARY = getattr(os, "O_BINARY", 0)
_DATABASE = ("", "-wal", "-shm", "-journal")
_KINDS = (
    (stat.S_ISLNK, "a link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
# What a run holds is its owner's: nobody else of the machine reads it.
_PRIVATE, _PRIVATE_FOLDER = 0o600, 0o700
_REMEDY = "Move it away, or name another place."


def check_plain(path: Path, *, in_place: bool = False) -> os.stat_result | None:
    """Refuse a path where something other than a plain file lies; return what is known of it, if it
    is there.

    Args:
        path: The file.
        in_place: Whether it will be changed where it lies, so that a second name of the same file
            is refused too.

    Raises:
        NotPlainFileError: It is a link, a folder, a pipe, a socket or a device, or has a second
            name.
    """
    try:
        facts = path.lstat()
    except (
        FileNotFoundError,
        NotADirectoryError,
        ValueError,
    ):  # no file has a name with a null byte
        return None
    _refuse_special(path, facts, in_place=in_place)
    return facts


def _refuse_special(path: Path, facts: os.stat_result, *, in_place: bool) -> None:
    if not stat.S_ISREG(facts.st_mode):
        kind = next((name for test, name in _KINDS if test(facts.st_mode)), "a special file")
        raise NotPlainFileError(str(path), f"is {kind}, not a plain file", _REMEDY)
    if in_place and facts.st_nlink > 1:
        remedy = "Copy the folder and use the copy: a copy has files of its own."
        raise NotPlainFileError(str(path), "is a hard link: the file has another name", remedy)


def check_database(path: Path, *, in_place: bool = True) -> None:
    """Refuse a SQLite file that is not plain, or has something beside it that is not plain where
    SQLite writes.

    Args:
        path: The file.
        in_place: As for :func:`check_plain`; false where it is only read.

    Raises:
        NotPlainFileError: As for :func:`check_plain`.
    """
    for ending in _DATABASE:
        check_plain(path.with_name(path.name + ending), in_place=in_place)


def check_folder(path: Path) -> None:
    """Refuse a link in the place of a folder whose name the package chose.

    Raises:
        NotPlainFileError: It is a link.
    """
    if path.is_symlink():
        raise NotPlainFileError(str(path), "is a link, not a folder", _REMEDY)


def make_folder(path: Path) -> None:
    """Make a folder, and those that it lies in, where they are missing: each is its owner's alone.

    Raises:
        OSError: It cannot be made.
    """
    if not path.is_dir():
        if not path.parent.is_dir():
            make_folder(path.parent)
        path.mkdir(exist_ok=True, mode=_PRIVATE_FOLDER)


def make_private(path: Path) -> None:
    """Make an empty file that is its owner's alone, where there is none: SQLite would let others
    read its files.

    Raises:
        OSError: It cannot be made.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, _PRIVATE))


def cache_dir() -> Path:
    """Return where this package keeps what it can make anew: ``$COMBEE_CACHE``, or ``combee_dspy``
    in the user's cache.

    Raises:
        RuntimeError: The user has no home.
    """
    if chosen := os.environ.get("COMBEE_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "combee_dspy"


def file_name(name: str) -> str:
    """Return a name that leads into no other folder, the same for the same name: that name where
    it is plain.
    """
    plain = re.sub(r"[^\w.-]", "_", name)[:100].lstrip(".") or "_"
    if plain == name:
        return name
    return f"{plain}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def open_in_place(path: Path) -> BinaryIO:
    """Open a plain file that is there, to read and change it where it lies; without a buffer.

    Raises:
        NotPlainFileError: As for :func:`check_plain`.
        OSError: It cannot be opened.
    """
    check_plain(path, in_place=True)
    descriptor = os.open(path, os.O_RDWR | _NO_LINK | _NO_WAIT | _BINARY)
    try:
        _refuse_special(path, os.fstat(descriptor), in_place=True)
        return os.fdopen(descriptor, "r+b", buffering=0)
    except BaseException:
        os.close(descriptor)
        raise


def read_plain(path: Path, *, follow: bool = False) -> bytes:
    """Return what a plain file holds. A pipe or a device is refused, so nothing waits for it.

    Args:
        path: The file.
        follow: Whether a link may stand in its place: for what the user named, not for what a
            folder holds.

    Raises:
        NotPlainFileError: It is no plain file.
        OSError: It cannot be read.
    """
    if not follow:
        check_plain(path)
    # Asked before it is opened as well: opening some devices does something.
    _refuse_special(path, path.stat(), in_place=False)
    descriptor = os.open(path, os.O_RDONLY | _NO_WAIT | _BINARY | (0 if follow else _NO_LINK))
    with os.fdopen(descriptor, "rb") as file:
        _refuse_special(path, os.fstat(descriptor), in_place=False)
        return file.read()


@contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO]:
    """Open a new file beside a path, and move it there when the block ends; where the block raises,
    nothing changes.

    A new file is its owner's alone; one that is there keeps its permissions. Its other names, if it
    has any, keep what it held.

    Raises:
        NotPlainFileError: As for :func:`check_plain`.
        OSError: It cannot be written.
    """
    before = check_plain(path)
    draft = path.with_name(f".combee-{secrets.token_hex(8)}.part")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINK | _BINARY
    descriptor = os.open(draft, flags, _PRIVATE)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield file
        if before is not None:
            draft.chmod(stat.S_IMODE(before.st_mode))
        check_plain(path)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def write_plain(path: Path, data: bytes | str) -> None:
    """Write a whole file, as :func:`replace_file` does; text as UTF-8, with its line ends as they
    are.

    Raises:
        NotPlainFileError: As for :func:`check_plain`.
        OSError: It cannot be written.
    """
    with replace_file(path) as file:
        file.write(data.encode("utf-8") if isinstance(data, str) else data)


def delete_plain(path: Path) -> None:
    """Delete a plain file, where it is there.

    Raises:
        NotPlainFileError: As for :func:`check_plain`.
        OSError: It cannot be deleted.
    """
    if check_plain(path) is not None:
        path.unlink(missing_ok=True)


def append_plain(path: Path, data: bytes) -> None:
    """Append to a plain file by one write, so that lines of several processes stay whole; make it
    where it is missing.

    Raises:
        NotPlainFileError: As for :func:`check_plain`.
        OSError: It cannot be written.
    """
    check_plain(path, in_place=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | _NO_LINK | _NO_WAIT | _BINARY
    descriptor = os.open(path, flags, _PRIVATE)
    with os.fdopen(descriptor, "ab", buffering=0) as file:
        _refuse_special(path, os.fstat(descriptor), in_place=True)
        file.write(data)


def open_lock(path: Path, *, blocking: bool = True, timeout: float = -1) -> FileLock:
    """Return a lock that other processes see, not yet taken. Taking it empties its file.

    Raises:
        NotPlainFileError: As for :func:`check_plain`.
    """
    check_plain(path, in_place=True)
    return FileLock(path, blocking=blocking, timeout=timeout, mode=_PRIVATE)


def take_lock(path: Path) -> Callable[[], None] | None:
    """Take a lock that other processes see; return what lets go of it, or ``None`` where somebody
    has it.

    Raises:
        NotPlainFileError: As for :func:`check_plain`.
    """
    lock = open_lock(path, blocking=False)
    try:
        lock.acquire()
    except Timeout:
        return None
    return lock.release
