"""Refuses or warns of a wide search before serial search has converged, and of waste."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from combee_dspy.exceptions import ArgumentValueError, RefusedError
from combee_dspy.registry import extension
from combee_dspy.settings import Settings

logger = logging.getLogger("combee_dspy")

_WIDE = 8  # times the one rollout in flight of serial search


@dataclass(frozen=True, slots=True)
class SerialVerdict:
    """The diagnosis of a serial search: ``"converged"`` or another verdict, and what to do."""

    verdict: str
    advice: str


DiagnosisReader = Callable[[Path], SerialVerdict | None]
"""The entry point ``serial`` of ``combee_dspy.diagnoses``: returns the verdict on the serial search
in a folder; ``None`` where there is no diagnosis. Raises ``ArgumentValueError`` for one that cannot
be read.
"""


def check_diagnosed(settings: Settings) -> None:
    """Warn once of a serial search that has not converged; refuse a wide one where it must have.

    The diagnosis is made again from the journal of the serial search, in ``log_dir`` with
    ``-serial`` added; the file beside it does not count. Who never searched serially has done
    nothing to warn of, and a search with a few workers is too small for it.

    Raises:
        RefusedError: It is required, and serial search has not converged.
    """
    required, threads = settings.search.require_diagnosis, settings.num_threads
    wide = threads is None or threads >= _WIDE
    searched = settings.log_dir is not None and Path(f"{settings.log_dir}-serial").is_dir()
    if threads == 1 or not (required or (wide and searched)):
        return
    try:
        check_verdict(*_serial_verdict(settings.log_dir))
    except RefusedError as error:
        if required:
            raise
        _note(str(settings.log_dir), error.reason)


def _serial_verdict(log_dir: str | None) -> tuple[str | None, str]:
    folder = Path(f"{log_dir}-serial")
    reader = cast("DiagnosisReader | None", extension("diagnoses", "serial"))
    if reader is not None and log_dir is not None and folder.is_dir():
        try:
            if (verdict := reader(folder)) is not None:
                return verdict.verdict, verdict.advice
        except ArgumentValueError as error:
            reason = f"what is in {folder} cannot be read"
            raise RefusedError(
                "parallelism without a diagnosis", reason, "Diagnose again."
            ) from error
    return (
        None,
        (
            "Run combee diagnose on a serial search of this task; its diagnosis.json belongs into"
            f" {folder}."
        ),
    )


def check_verdict(verdict: str | None, remedy: str) -> None:
    """Refuse parallelism before convergence.

    Raises:
        RefusedError: There is no verdict, or it is no go.
    """
    if verdict is None:
        reason = "nobody knows whether serial search has converged"
        raise RefusedError("parallelism without a diagnosis", reason, remedy)
    if verdict != "converged":
        raise RefusedError(
            "parallelism before convergence", f"the diagnosis is {verdict!r}", remedy
        )


@functools.cache
def _note(log_dir: str, reason: str) -> None:
    logger.warning(
        "%s (%s): the run goes on; combee diagnose --help says how to find out", reason, log_dir
    )


def warn_of_waste(settings: Settings) -> None:
    """Warn of settings that let a run collapse, or pay twice."""
    if settings.diversity.embedder is None and settings.num_threads is None:
        logger.warning(
            "diversity is off beside as many workers as the service takes: what they learn is"
            " likely to be alike"
        )
    if settings.cache is False:
        logger.warning("cache is off: a rollout that was bought already is bought again")
