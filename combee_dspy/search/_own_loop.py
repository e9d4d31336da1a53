"""An event loop of a search's own, in a thread of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import TypeVar

from combee_dspy.rollouts import run_on_own_loop
from combee_dspy.tracking import note_caller

_logger = logging.getLogger(__name__)

T = TypeVar("T")

_GONE = 1.8  # seconds that the work has to end after an interrupt


def in_own_loop(work: Callable[[], Coroutine[object, object, T]], advice: str = "") -> T:
    """Run a coroutine to its end on an event loop of its own, in a thread of its own.

    So a caller may have a running loop (a notebook) or none. The thread sees the caller's context
    variables, DSPy's settings among them. An interrupt of the caller cancels the work and is raised
    within two seconds, with what the work attached to its own end; a second one is raised at once.
    ``advice`` says what an interrupt leaves, in sentences.
    """

    def interrupted() -> None:
        sentences = ("Interrupted.", advice, "Interrupt again to end at once.")
        _logger.warning("%s", " ".join(filter(None, sentences)))

    def run() -> T:
        note_caller()
        return run_on_own_loop(work, interrupted, _GONE)

    return copy_context().run(run)


def how_to_go_on(log_dir: str | None) -> str:
    """Return what is left of a compilation that was interrupted."""
    if log_dir is None:
        return "Without a log_dir nothing stays on disk; the error has the best program so far."
    return (
        f"What was paid for is kept in {log_dir}: compile again with this log_dir to go on, or take"
        f" the best so far, load_candidate(program, {log_dir!r}, 'best'), which the error has as"
        " well."
    )
