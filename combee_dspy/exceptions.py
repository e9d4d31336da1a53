"""Every error that combee_dspy raises on purpose, in one tree.

    CombeeError
    ├── ArgumentError               an argument cannot be used: names it, its value and the remedy
    │   ├── ArgumentTypeError       … also a TypeError
    │   └── ArgumentValueError      … also a ValueError
    │       ├── UnknownStrategyError    no strategy of that kind and name is installed
    │       ├── SplitOverlapError       two splits that must be disjoint share rows
    │       └── HeldoutMovedError       the held-out set or how it is scored has changed since it was pinned or read
    ├── PluginError                 an entry point is there but cannot be loaded
    ├── MissingDistributionError    a command or benchmark lives in a distribution that is not installed
    ├── JournalError                a journal cannot be used
    │   ├── JournalMismatchError        it belongs to another program, data, metric or settings: lists what differs
    │   ├── JournalDamagedError         it is not as it was written: says what can be recovered
    │   └── JournalHeldError            another process is writing to it: says which
    ├── ServiceError                an LM service cannot be used
    │   ├── LMUnreachableError          the probe before the run failed: nothing was spent
    │   └── InfrastructureError         rollouts kept failing for reasons that are not the program's
    ├── EvaluationError             a figure cannot be had, or cannot be trusted
    │   ├── HeldoutReadError            the held-out set has been read before, or may not be read now
    │   ├── CalibrationFailedError      two ways of judging do not agree: the run ends
    │   └── JudgeVerdictError           a judge LM gave no verdict that can be read
    ├── TaskCancelledError          one of several tasks was not finished, for a reason outside of it
    ├── DataSourceError             a benchmark's rows cannot be read from the source named
    └── LocalModelError             the embedded model cannot be started

Catch ``CombeeError`` for all of them. Errors of user code (a metric or a
program that raises) are never wrapped: they become feedback of the rollout.
"""

from __future__ import annotations

from collections.abc import Iterable

from combee_dspy.records import CallUsage

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "ArgumentValueError",
    "CalibrationFailedError",
    "CombeeError",
    "DataSourceError",
    "EvaluationError",
    "HeldoutMovedError",
    "HeldoutReadError",
    "InfrastructureError",
    "JournalDamagedError",
    "JournalError",
    "JournalHeldError",
    "JournalMismatchError",
    "JudgeVerdictError",
    "LMUnreachableError",
    "LocalModelError",
    "MissingDistributionError",
    "PluginError",
    "ServiceError",
    "SplitOverlapError",
    "TaskCancelledError",
    "UnknownStrategyError",
]

_SHOWN = 200


class CombeeError(Exception):
    """Root of all errors raised by this package."""


class ArgumentError(CombeeError):
    """An argument cannot be used as it was given.

    Args:
        argument: Name of the argument as the user wrote it, for example ``"trainset"``.
        value: The value that was refused. Its ``repr`` is shown, cut to 200 characters.
        problem: What is wrong, as the rest of a sentence that starts with the argument.
        remedy: What to do, as a sentence.
    """

    def __init__(self, argument: str, value: object, problem: str, remedy: str) -> None:
        self.argument = argument
        self.value = value
        self.problem = problem
        self.remedy = remedy
        shown = repr(value)
        if len(shown) > _SHOWN:
            shown = shown[:_SHOWN] + "…"
        super().__init__(f"{argument} {problem} (got {shown}). {remedy}")


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument has a type that cannot be used."""


class ArgumentValueError(ArgumentError, ValueError):
    """An argument has the right type and a value that cannot be used."""


class UnknownStrategyError(ArgumentValueError):
    """No strategy of this kind is installed under this name.

    Args:
        kind: The strategy kind, for example ``"aggregator"``.
        name: The name that was asked for.
        installed: The names that exist.
    """

    def __init__(self, kind: str, name: str, installed: Iterable[str]) -> None:
        self.kind = kind
        self.name = name
        self.installed = tuple(sorted(installed))
        super().__init__(
            kind,
            name,
            "names no installed strategy",
            f"Installed: {', '.join(self.installed) or 'none'}. "
            "Run `combee plugins` to see what is installed and what failed to load.",
        )


class SplitOverlapError(ArgumentValueError):
    """Two splits that must be disjoint share rows.

    Args:
        argument: The split that must not overlap, for example ``"heldout"``.
        other: The split it overlaps.
        shared: How many distinct rows they share.
    """

    def __init__(self, argument: str, other: str, shared: int) -> None:
        self.other = other
        self.shared = shared
        super().__init__(
            argument,
            f"{shared} shared rows",
            f"shares {shared} rows with {other}",
            f"Remove them from one of the two: a score on rows seen in {other} proves nothing.",
        )


class HeldoutMovedError(ArgumentValueError):
    """The held-out set, or how it is scored, is not what was pinned or read.

    Args:
        change: What is different, as the rest of a sentence that starts with the argument.
        value: The figures or hashes that show it.
        remedy: What to do, as a sentence.
        argument: What was changed: ``"heldout"``, ``"trainset"``, ``"valset"`` or ``"metric"``.
    """

    def __init__(self, change: str, value: object, remedy: str, *, argument: str = "heldout") -> None:
        self.change = change
        super().__init__(argument, value, change, remedy)


class PluginError(CombeeError):
    """An entry point exists but its object cannot be used.

    Args:
        kind: The strategy kind.
        name: The entry point's name.
        distribution: The distribution that declares it.
        reason: Why it cannot be used.
    """

    def __init__(self, kind: str, name: str, distribution: str, reason: str) -> None:
        self.kind = kind
        self.name = name
        self.distribution = distribution
        self.reason = reason
        super().__init__(f"{kind} {name!r} from distribution {distribution!r} cannot be used: {reason}")


class MissingDistributionError(CombeeError):
    """Something lives in a distribution that is not installed.

    Args:
        what: What was asked for, for example ``"combee bench"``.
        distribution: The distribution to install, for example ``"combee-bench"``.
    """

    def __init__(self, what: str, distribution: str) -> None:
        self.what = what
        self.distribution = distribution
        super().__init__(f"{what} lives in the distribution {distribution!r}. Install it: pip install {distribution}")


class JournalError(CombeeError):
    """A journal cannot be used."""


class JournalMismatchError(JournalError):
    """A journal belongs to another run than the one that would go on with it.

    Args:
        path: The journal's file.
        differs: What differs, one sentence each.
    """

    def __init__(self, path: str, differs: Iterable[str]) -> None:
        self.path = path
        self.differs = tuple(differs)
        super().__init__(
            f"{path} was written by another run: {'; '.join(self.differs)}. "
            "Give another log_dir, or compile again with what it was written with."
        )


class JournalDamagedError(JournalError):
    """A journal is not as it was written.

    Args:
        path: The journal's file, which is left as it is.
        reason: What is wrong, and what can be recovered.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path} cannot be trusted: {reason}. It was not changed.")


class JournalHeldError(JournalError):
    """Another process is writing to a journal.

    Args:
        path: The journal's file.
        holder: Who holds it, as far as that is known.
    """

    def __init__(self, path: str, holder: str) -> None:
        self.path = path
        self.holder = holder
        super().__init__(f"{path} is held by {holder}. Wait for it, stop it, or give another log_dir.")


class ServiceError(CombeeError):
    """An LM service cannot be used."""


class LMUnreachableError(ServiceError):
    """The probe call that comes before a run failed.

    Args:
        role: The model role that was probed, for example ``"task"``.
        model: The model's name.
        reason: The service's own words, without credentials.
    """

    def __init__(self, role: str, model: str, reason: str) -> None:
        self.role = role
        self.model = model
        self.reason = reason
        super().__init__(
            f"the {role} LM {model!r} did not answer a one-token probe: {reason}. Nothing was spent. "
            "Check the key, the model's name and api_base, or give Validation(probe=False) to skip this check."
        )


class InfrastructureError(ServiceError):
    """Rollouts kept failing for reasons that say nothing about the program.

    Args:
        failed: How many rollouts failed.
        attempts: How often each was tried.
        reason: The last failure.
        usage: What the attempts have cost.
    """

    def __init__(self, failed: int, attempts: int, reason: str, usage: tuple[CallUsage, ...] = ()) -> None:
        self.failed = failed
        self.attempts = attempts
        self.reason = reason
        self.usage = usage
        super().__init__(
            f"{failed} rollouts failed {attempts} times each for reasons outside the program, last: {reason}. "
            "They were not scored, since an outage is not a wrong answer. "
            "Compile again with the same log_dir to go on: what was paid for is not bought again."
        )


class EvaluationError(CombeeError):
    """A figure cannot be had, or cannot be trusted."""


class HeldoutReadError(EvaluationError):
    """The held-out set has been read before, or may not be read now.

    Args:
        reason: What happened before, in one sentence.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the held-out set is read once: {reason}")


class CalibrationFailedError(EvaluationError):
    """Two ways of judging do not agree well enough: going on would optimize the wrong thing.

    Args:
        subject: ``"judge"`` or ``"proxy"``.
        reason: The figures, in one sentence.
        result: The calibration, with its pairs; ``None`` where there was nothing to compare.
    """

    def __init__(self, subject: str, reason: str, result: object = None) -> None:
        self.subject = subject
        self.reason = reason
        self.result = result
        super().__init__(f"the {subject} is not fit to score this run: {reason}")


class JudgeVerdictError(EvaluationError):
    """A judge LM gave no verdict that can be read.

    Args:
        attempts: How often it was asked.
        reason: What was wrong with the last answer.
    """

    def __init__(self, attempts: int, reason: str) -> None:
        self.attempts = attempts
        self.reason = reason
        super().__init__(f"the judge gave no readable verdict in {attempts} attempts: {reason}")


class TaskCancelledError(CombeeError):
    """One of several tasks was not finished, for a reason that lies outside of it.

    Args:
        task: The task's name.
        reason: What happened, as a sentence.
    """

    def __init__(self, task: str, reason: str = "The job was stopped.") -> None:
        self.task = task
        self.reason = reason
        super().__init__(f"task {task!r} was cancelled. {reason}")


class DataSourceError(CombeeError):
    """A benchmark's rows cannot be read from the source that was named.

    Args:
        benchmark: The benchmark's name.
        source: The source that was tried.
        reason: Why it cannot be read.
        remedy: What to do.
    """

    def __init__(self, benchmark: str, source: str, reason: str, remedy: str) -> None:
        self.benchmark = benchmark
        self.source = source
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"benchmark {benchmark!r} cannot be read from {source!r}: {reason}. {remedy}")


class LocalModelError(CombeeError):
    """The embedded model cannot be started."""
