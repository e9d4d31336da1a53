"""Runs a command so that nothing of it outlives whoever started it.

A script of its own, for a bare interpreter: ``python -I -S _guardian.py FOLDER COMMAND…``.
It leads a process group and ends, with the group and every descendant, when its
standard input closes (the parent ended, however) or when the command ends. ``FOLDER``,
unless empty, is removed at the end.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys

_SUBREAPER = 36
_CHILDREN = f"/proc/{os.getpid()}/task/{os.getpid()}/children"


def _adopt() -> None:
    """Become the parent of orphaned descendants, where the system can (Linux)."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)


def _children() -> list[int]:
    """Return the direct children of this process, where the system says (Linux)."""
    try:
        with open(_CHILDREN, encoding="ascii") as listed:  # noqa: PTH123 - a bare interpreter starts faster without pathlib
            return [int(one) for one in listed.read().split()]
    except (OSError, ValueError):
        return []


def _end_all() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Those that left the group were adopted once their parents died: several rounds may be needed.
    for _ in range(100):
        children = _children()
        if not children:
            return
        for one in children:
            with contextlib.suppress(OSError):
                os.kill(one, signal.SIGKILL)
        for one in children:
            with contextlib.suppress(OSError):
                os.waitpid(one, 0)


def main() -> int:
    """Run the command, and end it all."""
    folder, command = sys.argv[1], sys.argv[2:]
    child = None
    _adopt()
    woken, wake = os.pipe()

    def note(number: int, _frame: object) -> None:
        os.write(wake, bytes([number]))

    signal.signal(signal.SIGCHLD, note)
    signal.signal(signal.SIGTERM, note)
    code = 1
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - it is what this script is for
        while child.poll() is None:
            ready, _, _ = select.select([0, woken], [], [])
            # Standard input carries nothing: that it can be read means it was closed.
            if 0 in ready or (woken in ready and signal.SIGTERM in os.read(woken, 64)):
                break
        code = child.poll() or 0
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        code = 127
    finally:
        if child is not None and child.returncode is None:
            child.kill()
        _end_all()
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
    return code


if __name__ == "__main__":
    code = main()
    if not os.path.exists(_CHILDREN):  # noqa: PTH110 - a bare interpreter starts faster without pathlib
        # Where descendants cannot be listed, the group is what can be ended.
        os.killpg(0, signal.SIGKILL)
    sys.exit(code)
