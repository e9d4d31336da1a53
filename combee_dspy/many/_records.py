"""A task, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from combee_dspy.checks import check_metric
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError

if TYPE_CHECKING:
    import dspy

    from combee_dspy.report import CombeeReport

__all__ = ["Task", "TaskResult", "checked_tasks"]


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """One program to compile.

    Attributes:
        name: Unique among the tasks; folders, receipts and runs are named after it.
        student: The program. Not changed.
        trainset: Examples to learn from.
        valset: Examples to compare candidates on; the trainset by default.
        heldout: Examples for the final figure: this task's own study, with a receipt of its own.
        metric: The score; ``None`` takes the optimizer's.
        seed: The seed; ``None`` takes the optimizer's.
        context: DSPy settings of this task alone, such as ``lm`` or ``adapter``, as for ``dspy.context``.
    """

    name: str
    student: dspy.Module
    trainset: Sequence[dspy.Example]
    valset: Sequence[dspy.Example] | None = None
    heldout: Sequence[dspy.Example] | None = None
    metric: Callable[..., Any] | None = None
    seed: int | None = None
    context: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class TaskResult:
    """What became of a task: a program, or the error that it ended with.

    Attributes:
        name: The task's name.
        program: The compiled program; ``None`` where there is an error.
        error: What ended it: :class:`~combee_dspy.exceptions.TaskCancelledError` where that was not its own doing.
        report: What the run has to say, its held-out receipt and its costs among it; ``None`` where there is an error.
    """

    name: str
    program: dspy.Module | None
    error: Exception | None
    report: CombeeReport | None


def checked_tasks(tasks: Sequence[Task]) -> tuple[Task, ...]:
    """Return the tasks as a tuple.

    Raises:
        ArgumentTypeError: One is no task, or its metric cannot be called.
        ArgumentValueError: A name is empty or given twice, or a seed is negative.
    """
    seen: set[str] = set()
    found = tuple(tasks)
    for task in found:
        if not isinstance(task, Task):
            raise ArgumentTypeError("tasks", task, "is no task", "Give combee_dspy.Task(name, student, trainset, …).")
        if not isinstance(task.name, str) or not task.name.strip():
            raise ArgumentValueError("name", task.name, "is no name", "Name each task.")
        if task.name in seen:
            raise ArgumentValueError("name", task.name, "is given to two tasks", "Name each task differently.")
        seen.add(task.name)
        if task.metric is not None:
            check_metric(task.metric)
        seed: object = task.seed
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or seed < 0):
            raise ArgumentValueError("seed", seed, "is no whole number from 0", "Give one, or None.")
    return found
