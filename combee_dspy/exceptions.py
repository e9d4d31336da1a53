"""Every error that combee_dspy raises on purpose, in one tree.

    CombeeError
    ├── ArgumentError                 an argument cannot be used: it, its value and the remedy
    │   ├── ArgumentTypeError         … also a TypeError
    │   └── ArgumentValueError        … also a ValueError
    │       ├── EmptyTrainsetError    there is nothing to learn from
    │       ├── UnknownStrategyError  no strategy of that kind and name is installed
    │       ├── SplitOverlapError     two splits that must be disjoint share rows
    │       └── HeldoutMovedError     the held-out rows have changed since they were pinned or read
    ├── PluginError                   an entry point is there but cannot be loaded
    ├── MissingDistributionError      what was asked for lives in a distribution that is missing
    ├── JournalError                  a journal cannot be used
    │   ├── JournalMismatchError      it belongs to another run: lists what differs
    │   ├── JournalDamagedError       it is not as it was written: says what can be recovered
    │   ├── JournalEmptyError         its run was stopped before it began
    │   └── JournalHeldError          another process is writing to it: says which
    ├── ServiceError                  an LM service cannot be used
    │   ├── LMUnreachableError        the probe at the run's beginning failed
    │   └── InfrastructureError       rollouts kept failing for reasons that are not the program's
    ├── EvaluationError               a figure cannot be had, or cannot be trusted
    │   ├── CalibrationFailedError    two ways of judging do not agree: the run ends
    │   ├── TooManyFailuresError      nearly everything of one kind fails: the run ends
    │   └── JudgeVerdictError         a judge LM gave no verdict that can be read
    ├── TaskCancelledError            one of several tasks was not finished, by no fault of its own
    ├── RefusedError                  a choice or a claim that would not be honest: says why
    ├── NotPlainFileError             a link or a pipe lies where a plain file belongs
    ├── DataSourceError               a benchmark's rows cannot be read from the source named
    ├── TraceSourceError              recorded rollouts cannot be read where they lie
    │   └── TraceFieldError           a record is no trace by the mapping: shows it and the field
    └── LocalModelError               the embedded model cannot be started

Catch ``CombeeError`` for all of them. Errors of user code (a metric or a
program that raises) are never wrapped: they become feedback of the rollout.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from combee_dspy.records import CallUsage

_SHOWN = 200
_PART, _SHORT = 3, 6  # letters


def did_you_mean(wrong: str, names: Iterable[str]) -> str:
    """Return a question that names the nearest of some names, and a space; empty for none.

    Near is a name that differs by a slip or two in many letters, else one that holds the wrong
    name, else one that is held by it, else one that differs by a slip of the keyboard. Words that
    merely share letters, such as ``train`` and ``metric``, are not.
    """
    candidates = list(names)
    for near, cutoff in (
        (candidates, 0.9),
        ([name for name in candidates if _is_part(wrong, name)], 0.0),
        ([name for name in candidates if _is_part(name, wrong)], 0.0),
        (candidates, 0.7 if len(wrong) <= _SHORT else 0.75),
    ):
        if close := difflib.get_close_matches(wrong, near, n=1, cutoff=cutoff):
            return f"Did you mean {close[0]!r}? "
    return ""


def _is_part(part: str, whole: str) -> bool:
    return len(part) >= _PART and part in whole


class CombeeError(Exception):
    """Root of all errors raised by this package.

    Attributes:
        program: The best program so far, where the error has ended a run whose student was
            validated.
    """

    program: Any = None

    _says: ClassVar[str]
    """The message of an error that has fields, which keep what it is about."""

    def __post_init__(self) -> None:
        super().__init__(self._says.format(**vars(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception's own would call the class with the message, where these want their fields.
        return type(self).__new__, (type(self), *self.args), vars(self)


def attach(error: BaseException, **results: object) -> None:
    """Give an error of any class what a run has so far, as attributes.

    They are ``program``, the best one, and ``results`` of several tasks.
    """
    for name, value in results.items():
        with suppress(AttributeError):  # one that takes no attribute ends the run as it is
            setattr(error, name, value)


def copy_attached(source: BaseException | None, target: BaseException) -> None:
    """Copy to an error what another one carries: its program and its results."""
    carried = {name: getattr(source, name, None) for name in ("program", "results")}
    attach(target, **{name: value for name, value in carried.items() if value is not None})


@dataclass(eq=False, repr=False)
class ArgumentError(CombeeError):
    """An argument cannot be used as it was given.

    Attributes:
        argument: Name of the argument as the user wrote it, for example ``"trainset"``.
        value: The value that was refused. Its ``repr`` is shown, cut to 200 characters.
        problem: What is wrong, as the rest of a sentence that starts with the argument.
        remedy: What to do, as a sentence.
    """

    argument: str
    value: object
    problem: str
    remedy: str

    def __post_init__(self) -> None:
        shown = repr(self.value)
        if len(shown) > _SHOWN:
            shown = shown[:_SHOWN] + "…"
        Exception.__init__(self, f"{self.argument} {self.problem} (got {shown}). {self.remedy}")


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument has a type that cannot be used."""


class ArgumentValueError(ArgumentError, ValueError):
    """An argument has the right type and a value that cannot be used."""


class EmptyTrainsetError(ArgumentValueError, AssertionError):
    """There is nothing to learn from. An ``AssertionError`` too, as ``dspy.GEPA`` raises one
    here.
    """

    def __init__(self, trainset: object) -> None:
        super().__init__(
            "trainset", trainset, "is empty", "Give at least one example to learn from."
        )


class UnknownStrategyError(ArgumentValueError):
    """No strategy of this kind is installed under this name: ``installed`` are the names that
    exist.
    """

    def __init__(self, kind: str, name: str, installed: Iterable[str]) -> None:
        self.kind, self.name, self.installed = kind, name, tuple(sorted(installed))
        remedy = (
            f"{did_you_mean(name, self.installed)}"
            f"Installed: {', '.join(self.installed) or 'none'}. "
            "Run `combee plugins` to see what is installed and what failed to load, or give an"
            " object of a class of your own."
        )
        super().__init__(kind, name, "names no installed strategy", remedy)


class SplitOverlapError(ArgumentValueError):
    """Two splits that must be disjoint share rows.

    Args:
        argument: The split that must not overlap, for example ``"heldout"``.
        other: The split it overlaps.
        shared: How many distinct rows they share.
    """

    def __init__(self, argument: str, other: str, shared: int) -> None:
        self.other, self.shared = other, shared
        remedy = f"Remove them from one of the two: a score on rows seen in {other} proves nothing."
        super().__init__(
            argument, f"{shared} shared rows", f"shares {shared} rows with {other}", remedy
        )


class HeldoutMovedError(ArgumentValueError):
    """The held-out rows are not those that were pinned or read.

    Args:
        change: What is different, as the rest of a sentence that starts with the argument.
        value: The figures or hashes that show it.
        remedy: What to do, as a sentence.
        argument: What was changed: ``"heldout"``, ``"trainset"`` or ``"valset"``.
    """

    def __init__(
        self, change: str, value: object, remedy: str, *, argument: str = "heldout"
    ) -> None:
        self.change = change
        super().__init__(argument, value, change, remedy)


@dataclass(eq=False, repr=False)
class PluginError(CombeeError):
    """An entry point of a ``distribution`` is there, but its object cannot be used."""

    kind: str
    name: str
    distribution: str
    reason: str
    _says = "{kind} {name!r} from distribution {distribution!r} cannot be used: {reason}"


# Of a checkout: no package index has ours yet, and whoever took a name there could bring anything.
_ALL = (".", "./plugins/simulator", "'./plugins/strategist[mlflow]'", "./plugins/bench")


def how_to_install(distribution: str) -> str:
    """Return the sentence that says how to install a distribution, such as ``combee-dspy[mlflow]``.

    Ours are installed from a checkout.
    """
    name, bracket, extras = distribution.partition("[")
    if not name.startswith("combee-"):
        return f"Install it: pip install '{distribution}'"
    folder = "." if name == "combee-dspy" else f"./plugins/{name.removeprefix('combee-')}"
    words = f"'{folder}[{extras}'" if bracket else folder
    if distribution == "combee-dspy[all]":
        words = " ".join(_ALL)
    return f"Install it from the root of a checkout: pip install {words}"


@dataclass(eq=False, repr=False)
class MissingDistributionError(CombeeError):
    """``what`` was asked for, such as ``"combee bench"``, is not installed; ``distribution`` brings
    it.
    """

    what: str
    distribution: str

    def __post_init__(self) -> None:
        super(CombeeError, self).__init__(
            f"{self.what} needs {self.distribution}, which is not installed."
            f" {how_to_install(self.distribution)}"
        )


class JournalError(CombeeError):
    """A journal cannot be used."""


class JournalMismatchError(JournalError):
    """A journal belongs to another run than the one that would go on with it: ``differs`` says each
    difference.
    """

    def __init__(self, path: str, differs: Iterable[str]) -> None:
        self.path, self.differs = path, tuple(differs)
        why = ""
        if any(difference.startswith("metric was ") for difference in self.differs):
            why = "Scores and feedback of one metric's code are not mixed with those of another's. "
        super().__init__(
            f"{path} was written by another run: {'; '.join(self.differs)}. {why}"
            "Compile with what it was written with to go on: anything else is another run."
        )


@dataclass(eq=False, repr=False)
class JournalDamagedError(JournalError):
    """A journal is not as it was written: ``reason`` says what is wrong, and what can be
    recovered.
    """

    path: str
    reason: str
    _says = "{path} cannot be trusted: {reason}. It was not changed."


@dataclass(eq=False, repr=False)
class JournalEmptyError(JournalError):
    """A journal's run was stopped before it began."""

    path: str
    _says = (
        "{path} holds no run: it was stopped before it began. Begin it again with the same log_dir,"
        " or remove the folder."
    )


@dataclass(eq=False, repr=False)
class JournalHeldError(JournalError):
    """Another process is writing to a journal: ``holder`` says which, as far as that is known."""

    path: str
    holder: str
    _says = "{path} is held by {holder}. Wait for it, or stop it."


class ServiceError(CombeeError):
    """An LM service cannot be used."""


@dataclass(eq=False, repr=False)
class LMUnreachableError(ServiceError):
    """The probe call at a run's beginning failed. A few rollouts may have been bought beside it.

    Attributes:
        role: The model role that was probed, for example ``"task"``.
        model: The model's name.
        reason: The service's own words, without credentials.
        remedy: What to look at.
    """

    role: str
    model: str
    reason: str
    remedy: str = "Check the key, the model's name and api_base"
    _says = (
        "the {role} LM {model!r} did not answer a one-token probe: {reason}. No more was bought"
        " than the first rows that ran beside the probe. {remedy}, or give Validation(probe=False)"
        " to skip this check."
    )


@dataclass(eq=False, repr=False)
class InfrastructureError(ServiceError):
    """Rollouts kept failing for reasons that say nothing about the program.

    Attributes:
        failed: How many rollouts failed.
        attempts: How often each was tried.
        reason: The last failure.
        usage: What the attempts have cost.
    """

    failed: int
    attempts: int
    reason: str
    usage: tuple[CallUsage, ...] = ()
    _says = (
        "Rollouts failed for reasons outside the program ({failed} given up; attempts: {attempts}),"
        " last: {reason}. They were not scored, since an outage is not a wrong answer. With a"
        " log_dir, compile again with the same one to go on: what was paid for is not bought again."
        " Without one it is lost. This error's program is the best so far; before the student is"
        " validated it is None: go on with your student, which is unchanged."
    )


class EvaluationError(CombeeError):
    """A figure cannot be had, or cannot be trusted."""


@dataclass(eq=False, repr=False)
class CalibrationFailedError(EvaluationError):
    """Two ways of judging do not agree well enough: going on would optimize the wrong thing.

    Attributes:
        reason: The figures, in one sentence.
        result: The calibration, with its pairs; ``None`` where there was nothing to compare.
    """

    reason: str
    result: object = None
    _says = "the judge is not fit to score this run: {reason}"


@dataclass(eq=False, repr=False)
class TooManyFailuresError(EvaluationError):
    """Nearly everything of one kind failed, so that nothing can be learned from it.

    Attributes:
        failures: How much failed, by cause.
        error: What one of them failed with.
        remedy: What to look at.
    """

    failures: str
    error: str
    remedy: str
    _says = (
        "{failures}: nothing can be learned from that. For example: {error}. {remedy}. "
        "Validation(stop_failures=…) sets the share at which a run ends so."
    )


@dataclass(eq=False, repr=False)
class JudgeVerdictError(EvaluationError):
    """A judge LM gave no verdict that can be read: ``reason`` says what was wrong with the last
    answer.
    """

    attempts: int
    reason: str
    _says = "the judge gave no readable verdict in {attempts} attempts: {reason}"


@dataclass(eq=False, repr=False)
class TaskCancelledError(CombeeError):
    """One of several tasks was not finished, for a reason that lies outside of it."""

    task: str
    reason: str = "The job was stopped."
    _says = "task {task!r} was cancelled. {reason}"


@dataclass(eq=False, repr=False)
class DataSourceError(CombeeError):
    """A benchmark's rows cannot be read from the source that was named."""

    benchmark: str
    source: str
    reason: str
    remedy: str
    _says = "benchmark {benchmark!r} cannot be read from {source!r}: {reason}. {remedy}"


@dataclass(eq=False, repr=False)
class TraceSourceError(CombeeError):
    """Recorded rollouts cannot be read where they lie.

    Attributes:
        source: What was read, such as a file and its line.
        problem: What is wrong.
        remedy: What to do, as a sentence.
    """

    source: str
    problem: str
    remedy: str
    _says = "no traces can be read from {source}: {problem}. {remedy}"


@dataclass(eq=False, repr=False)
class TraceFieldError(TraceSourceError):
    """A record cannot be read as a trace: the mapping is wrong, or the record is.

    Attributes:
        field: What of a trace is looked for, and where.
        record: The record without keys, cut to 400 characters.
    """

    field: str
    record: str
    _says = "{source}: {field} {problem}. {remedy} The record: {record}"


@dataclass(eq=False, repr=False)
class NotPlainFileError(CombeeError):
    """Something other than a plain file lies where one is read or written.

    Attributes:
        path: Where it lies.
        problem: What is wrong, as the rest of a sentence that starts with the path. The remedy is a
            sentence.
    """

    path: str
    problem: str
    remedy: str
    _says = "{path} {problem}. {remedy}"


class LocalModelError(CombeeError):
    """The embedded model cannot be started."""


@dataclass(eq=False, repr=False)
class RefusedError(CombeeError):
    """A choice or a claim that would not be honest.

    Attributes:
        choice: What is refused.
        reason: Why, as a clause.
        remedy: The way out, as a sentence.
    """

    choice: str
    reason: str
    remedy: str
    _says = "{choice} is refused: {reason}. {remedy}"
