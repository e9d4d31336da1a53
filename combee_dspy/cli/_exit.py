"""Exit codes of ``combee``, and how an error is said on one line."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable
from enum import IntEnum
from typing import Annotated, ParamSpec

import typer

from combee_dspy.exceptions import (
    ArgumentError,
    DataSourceError,
    EvaluationError,
    LocalModelError,
    PluginError,
    ServiceError,
    TaskCancelledError,
)
from combee_dspy.tracking import Redactor

__all__ = ["EXIT_CODES", "Debug", "ExitCode", "exit_code_of", "guarded", "report"]

P = ParamSpec("P")

_LINE = 2_000


class ExitCode(IntEnum):
    """What ``combee`` returns to the shell."""

    DONE = 0
    UNEXPECTED = 1
    BAD_INPUT = 2
    SERVICE = 3
    DATA_SOURCE = 4
    LOCAL_MODEL = 5
    EVALUATION = 6
    INTERRUPTED = 130


_MEANING = {
    ExitCode.DONE: "done",
    ExitCode.UNEXPECTED: "unexpected error: a fault in your program, in a plugin or in combee",
    ExitCode.BAD_INPUT: "bad input: an option, a configuration, a plugin or a program that cannot be used",
    ExitCode.SERVICE: "an LM service does not answer, or kept failing",
    ExitCode.DATA_SOURCE: "data cannot be read from the source that was named",
    ExitCode.LOCAL_MODEL: "the embedded model cannot be started",
    ExitCode.EVALUATION: "the run's scores cannot be trusted: a judge, a proxy or a receipt of the held-out set",
    ExitCode.INTERRUPTED: "interrupted",
}

EXIT_CODES = "\b\nExit codes:\n" + "\n".join(f"  {code.value:3}  {meaning}" for code, meaning in _MEANING.items())
"""The codes, one a line, for ``--help``; the first character keeps the lines apart there."""

_CODES = (
    ((ArgumentError, PluginError), ExitCode.BAD_INPUT),
    (ServiceError, ExitCode.SERVICE),
    (DataSourceError, ExitCode.DATA_SOURCE),
    (LocalModelError, ExitCode.LOCAL_MODEL),
    (EvaluationError, ExitCode.EVALUATION),
    ((KeyboardInterrupt, TaskCancelledError), ExitCode.INTERRUPTED),
)

Debug = Annotated[bool, typer.Option("--debug", help="Show the whole traceback of an error.")]


def exit_code_of(error: BaseException) -> ExitCode:
    """Return the exit code of an error."""
    for kinds, code in _CODES:
        if isinstance(error, kinds):
            return code
    return ExitCode.UNEXPECTED


def report(error: BaseException, *, debug: bool = False) -> ExitCode:
    """Say an error on standard error, without keys, and return its exit code.

    Args:
        error: What was raised.
        debug: Whether to show the traceback instead of one line.
    """
    code = exit_code_of(error)
    redactor = Redactor()
    if debug:
        sys.stderr.write(redactor.text("".join(traceback.format_exception(error))))
    elif code is ExitCode.INTERRUPTED:
        sys.stderr.write("interrupted\n")
    else:
        name = f"{type(error).__name__}: " if code is ExitCode.UNEXPECTED else ""
        hint = " Run it again with --debug for the traceback." if code is ExitCode.UNEXPECTED else ""
        sys.stderr.write(f"error: {redactor.line(name + str(error), _LINE)}{hint}\n")
    return code


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """Make a command end with an error's line and exit code instead of its traceback."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except typer.Exit:
            raise
        except (Exception, KeyboardInterrupt) as error:
            raise typer.Exit(report(error, debug=bool(kwargs.get("debug")))) from error

    return run
