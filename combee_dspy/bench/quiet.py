"""Keeps DSPy's bars and log lines out of what a benchmark prints."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator

__all__ = ["quietly"]


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Keep DSPy's progress bars and log lines out of the table."""
    names = ("dspy", "gepa", "combee_dspy")
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
