"""Compiles several programs over the same service and into one journal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import dspy

from combee_dspy.arguments import check_metric
from combee_dspy.combee import Combee
from combee_dspy.evaluation import Heldout
from combee_dspy.exceptions import (
    ArgumentTypeError,
    ArgumentValueError,
    TaskCancelledError,
    attach,
)
from combee_dspy.options import positive
from combee_dspy.report import CombeeReport
from combee_dspy.search import (
    Data,
    SharedParts,
    compile_task,
    how_to_go_on,
    in_own_loop,
    make_compilation,
    open_shared,
)
from combee_dspy.settings import Settings
from combee_dspy.traces import Selection, Traces

__all__ = ["Task", "TaskResult", "compile_many"]


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """One program to compile.

    Attributes:
        name: Unique among the tasks: the run's name in the journal.
        student: The program. Not changed.
        trainset: Examples to learn from; ``None`` where all is learned from traces.
        valset: Examples to compare candidates on; the trainset by default.
        heldout: Examples for the final figure: with a receipt of their own.
        traces: Recorded rollouts, as for :meth:`Combee.compile`.
        selection: Which of them are read.
        metric: The score; ``None`` takes the optimizer's.
        seed: The seed; ``None`` takes the optimizer's.
        context: DSPy settings of this task alone, such as ``lm`` or ``adapter``, as for
            ``dspy.context``.
    """

    name: str
    student: dspy.Module
    trainset: Sequence[dspy.Example] | None = None
    valset: Sequence[dspy.Example] | None = None
    heldout: Sequence[dspy.Example] | Heldout | None = None
    metric: Callable[..., Any] | None = None
    seed: int | None = None
    context: Mapping[str, Any] = field(default_factory=dict)
    traces: Traces | None = None
    selection: Selection | None = None

    @property
    def data(self) -> Data:
        """What is learned from and compared on."""
        return Data(self.trainset, self.valset, self.heldout, self.traces, self.selection)


@dataclass(frozen=True, slots=True, eq=False)
class TaskResult:
    """What became of a task: a program, or the error that it ended with.

    Attributes:
        name: The task's name.
        program: The compiled program; ``None`` where there is an error.
        error: What ended it: :class:`~combee_dspy.exceptions.TaskCancelledError` where that was not
            its own doing. Its ``program`` is the best so far, where there is one.
        report: What the run says of itself; ``None`` where there is an error.
    """

    name: str
    program: dspy.Module | None = None
    error: Exception | None = None
    report: CombeeReport | None = None


def compile_many(
    tasks: Sequence[Task], *, combee: Combee, at_once: int | None = None
) -> list[TaskResult]:
    """Compile several programs over the slots of one service.

    All of them share one journal, which is one held-out study; each has a search, a budget and
    books of its own. The most urgent effect of any of them goes first. With a fixed size, or with
    replayed decisions, each learns what it would learn alone with the same seed. A task that fails
    leaves the others alone.

    Args:
        tasks: With distinct names.
        combee: The optimizer, with a ``log_dir`` or none for all of them.
        at_once: Searches under way at a time; ``None`` for all. 1 compiles one after the other.

    Returns:
        One result a task, in their order.

    Raises:
        ArgumentError: An argument cannot be used.
        JournalError: The journal in ``log_dir`` cannot be used.
        KeyboardInterrupt: As from :meth:`Combee.compile`; its ``results`` are those of all tasks.
    """
    tasks = tuple(tasks)
    _check(tasks)
    turns = positive("at_once", at_once) or max(1, len(tasks))
    settings = combee.settings
    advice = how_to_go_on(settings.log_dir)
    return in_own_loop(lambda: _compile_all(tasks, settings, turns), advice)


async def _compile_all(tasks: Sequence[Task], settings: Settings, at_once: int) -> list[TaskResult]:
    turns = asyncio.Semaphore(at_once)

    async def compile_one(number: int, task: Task) -> TaskResult:
        try:
            async with turns:
                return await _compile(task, number, settings, shared)
        except asyncio.CancelledError as cancelled:
            interrupted = TaskCancelledError(task.name)
            interrupted.program = getattr(cancelled, "program", None)
            return TaskResult(task.name, error=interrupted)
        except Exception as error:  # noqa: BLE001 - a task's error is its result; the others go on
            return TaskResult(task.name, error=error)

    async with open_shared(settings) as shared:
        running = [asyncio.ensure_future(compile_one(*pair)) for pair in enumerate(tasks)]
        try:
            return list(await asyncio.gather(*running))
        except asyncio.CancelledError as error:
            attach(error, results=[task.result() for task in running])
            raise


async def _compile(task: Task, number: int, settings: Settings, shared: SharedParts) -> TaskResult:
    seed = settings.seed if task.seed is None else task.seed
    settings = replace(settings, metric=task.metric or settings.metric, seed=seed)
    with dspy.context(**task.context):
        compilation = make_compilation(
            settings, task.student, task.data, name=task.name, number=number
        )
        program = await compile_task(compilation, shared)
    return TaskResult(task.name, program, report=program.combee_report)


def _check(tasks: Sequence[Task]) -> None:
    names: set[str] = set()
    for task in tasks:
        entry: object = task
        if not isinstance(entry, Task):
            remedy = "Give combee_dspy.Task(name, student, trainset, …)."
            raise ArgumentTypeError("tasks", entry, "is no task", remedy)
        if not isinstance(task.name, str) or not task.name.strip():
            raise ArgumentValueError("name", task.name, "is no name", "Name each task.")
        if task.name in names:
            remedy = "Name each task differently."
            raise ArgumentValueError("name", task.name, "is given to two tasks", remedy)
        names.add(task.name)
        if task.metric is not None:
            check_metric(task.metric)
