"""Who holds a journal: a process of some machine."""

from __future__ import annotations

import errno
import os
import socket
import time

from combee_dspy.journal._integrity import Mark

# How often whoever is refused looks for the holder's name, and seconds between.
_LOOKS, _LOOK = 10, 0.1


def own_name() -> str:
    """Return this process's name as a holder."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def name_holder(mark: Mark) -> str:
    """Return who holds a journal, as its mark says. Waits for a second where nobody says so yet."""
    for _ in range(_LOOKS):
        holder, _ = mark.read()
        number, _, host = holder.removeprefix("process ").partition(" on ")
        if number.isdecimal() and (host != socket.gethostname() or _lives(int(number))):
            return holder
        time.sleep(_LOOK)
    return "another process"


def _lives(process: int) -> bool:
    if os.name != "posix":
        return True  # elsewhere signal 0 is no question
    try:
        os.kill(process, 0)
    except OSError as error:
        return error.errno == errno.EPERM
    return True
