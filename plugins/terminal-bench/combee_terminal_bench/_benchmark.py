"""The benchmark."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import dspy
from combee_agents import SessionAgent, SessionLimits, SessionMetric, SessionPool
from combee_dspy.benchmarks import Availability, Benchmark, Card, LoadedBenchmark, Split, check_pins
from combee_dspy.exceptions import ArgumentValueError, DataSourceError
from combee_dspy.hashing import digest_of, row_hash
from combee_dspy.strategies import parameters
from pydantic import Field

from combee_terminal_bench._environment import HarborEnvironment, Where
from combee_terminal_bench._setup import docker_here, harbor_python
from combee_terminal_bench._tasks import Task, read_tasks

__all__ = ["TerminalBench", "WorkInTerminal"]

logger = logging.getLogger("combee_dspy")

_LICENCE = "Apache-2.0 (Terminal-Bench 2.0)"
_CITATION = "Terminal-Bench 2.0, the Terminal-Bench team, 2025, https://www.tbench.ai"
_SPLITS = ("train", "validation", "heldout")
_STAND_IN = (
    "Linux namespaces with this machine's own programs stood in for the tasks' images. "
    "This tests the harness; it is no result on Terminal-Bench."
)
Count = Annotated[int, Field(ge=1, strict=True)]
Seconds = Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False)]
_SHELL = (
    "Run a shell command (bash) in the task's container, and return what it printed. Files stay"
    " between calls; the working directory and variables do not."
)


class WorkInTerminal(dspy.Signature):
    """Carry out the task in the container by running shell commands. A hidden test decides whether
    it was done.
    """

    instruction: str = dspy.InputField(desc="The task.")
    summary: str = dspy.OutputField(desc="What was done, in one sentence.")


@parameters
class TerminalBench(Benchmark):
    """Terminal-Bench 2.0 tasks, or any others in Harbor's layout, worked on by a DSPy agent through
    Harbor.

    The score is the verifier's reward, and its output is the feedback. A failed
    environment is never a score: the attempt is made again, and a run ends where
    that does not help. The official set has no splits: tasks are dealt out by the
    hash of their files, so each keeps its split when others come and go, as long
    as no names are given. Compare with nobody's figure on all 89 tasks: what was
    learned from is not held out.

    The tasks' instructions and tests are other people's programs. ``"docker"``
    runs them in their images under Harbor's rules.

    Args:
        tasks: Folder of the tasks, such as ``harbor download`` leaves.
        train: Names of tasks to learn from. Give all three, or none: a third each.
        validation: Names of tasks to select on.
        heldout: Names of tasks that are read once at the end.
        environment: ``"docker"``, or ``"namespace"``: Linux namespaces for tests of the harness.
        workers: Tasks at once, at least 1.
        agent: ``"react"`` or ``"code"`` (see :class:`combee_agents.SessionAgent`).
        max_iters: The most steps of an agent.
        command_timeout: Seconds after which an agent's command is stopped.
        open_timeout: Seconds until a task's environment must be up, its image's build included.
        evaluate_timeout: Seconds until its verifier must have ended.
        session_timeout: Seconds for an attempt as a whole. After any of these three an attempt
            is stopped and counted as a failed environment.
        python: The Python that has Harbor; by default what ``combee terminal-bench setup`` built.
        pin: Split name to required digest.
    """

    name: ClassVar[str] = "terminal-bench"
    card: ClassVar[Card | None] = Card(
        task="Carry out a task in a container by running shell commands.",
        licence=_LICENCE,
        citation=_CITATION,
        size="89 tasks in the official set, without splits",
        sources=(
            "path tasks=FOLDER (one folder a task, with task.toml and instruction.md)",
            "url harbor download terminal-bench@2.0 (Harbor's registry, to be fetched by hand)",
        ),
        scoring="The reward that the task's own verifier writes.",
    )

    tasks: str | None = None
    train: tuple[str, ...] | None = None
    validation: tuple[str, ...] | None = None
    heldout: tuple[str, ...] | None = None
    environment: Where = "docker"
    workers: Count = 4
    agent: Literal["react", "code"] = "react"
    max_iters: Count = 40
    command_timeout: Count = 180
    open_timeout: Seconds = 1_800.0
    evaluate_timeout: Seconds = 1_800.0
    session_timeout: Seconds = 10_800.0
    python: str | None = None
    pin: Mapping[str, str] | None = None

    def availability(self) -> Availability:
        """Tell whether tasks were named and Harbor's Python is there."""
        if self.tasks is None:
            return Availability(False, "no folder of tasks was named")
        if not Path(self.tasks).expanduser().is_dir():
            return Availability(False, f"{self.tasks} is no folder")
        try:
            harbor_python(self.python)
        except ArgumentValueError as error:
            return Availability(False, str(error))
        return Availability(True, str(Path(self.tasks).expanduser()))

    def load(self) -> LoadedBenchmark:
        """Read the tasks; no environment is started yet.

        Raises:
            ArgumentValueError: A parameter is out of its range, or Harbor's Python or Docker is not
                there.
            DataSourceError: The tasks cannot be read, or differ from what ``pin`` requires.
        """
        if self.tasks is None:
            remedy = "Give tasks='FOLDER'; `harbor download terminal-bench@2.0 -o FOLDER` fills it."
            raise DataSourceError(self.name, "(none)", "no folder of tasks was named", remedy)
        python = harbor_python(self.python)
        if self.environment == "docker" and not docker_here():
            remedy = "Start Docker. environment='namespace' is for tests of the harness, with tasks that need no image."
            raise ArgumentValueError("environment", "docker", "has no Docker engine that answers", remedy)
        tasks = read_tasks(self.tasks)
        dealt = self._dealt(tasks)
        splits = {name: _split(name, dealt[name]) for name in _SPLITS}
        check_pins(self.name, str(self.tasks), splits, self.pin)
        pool = self._pool(tasks, python)
        notes = (_STAND_IN,) if self.environment == "namespace" else ()
        for note in notes:
            logger.warning(note)
        source = f"path {Path(self.tasks).expanduser().resolve()} ({len(tasks)} tasks)"
        logger.info("terminal-bench reads %s", source)
        return LoadedBenchmark(
            name=self.name,
            task=self.name,
            source=source,
            licence=_LICENCE,
            citation=_CITATION,
            train=splits["train"],
            validation=splits["validation"],
            heldout=splits["heldout"],
            signature=WorkInTerminal,
            program=lambda: SessionAgent(
                pool, WorkInTerminal, agent=self.agent, max_iters=self.max_iters, description=_SHELL
            ),
            metric=SessionMetric(),
            notes=notes,
        )

    def _pool(self, tasks: Sequence[Task], python: str) -> SessionPool:
        folders = {task.name: str(task.folder) for task in tasks}
        limits = SessionLimits(
            open=float(self.open_timeout),
            # The environment stops a command itself, and says so; this is for where it does not.
            exec=self.command_timeout + 60.0,
            evaluate=float(self.evaluate_timeout),
            close=300.0,
            session=float(self.session_timeout),
            wait=float(self.session_timeout) * 4,
        )
        files = digest_of(task.digest for task in tasks)
        return SessionPool(
            functools.partial(HarborEnvironment, folders, self.environment, python, self.command_timeout),
            self.workers,
            limits=limits,
            identity=f"terminal-bench {self.environment} {self.command_timeout} {files}",
        )

    def _dealt(self, tasks: Sequence[Task]) -> dict[str, list[Task]]:
        wanted = {name: getattr(self, name) for name in _SPLITS}
        given = [name for name, names in wanted.items() if names is not None]
        by_name = {task.name: task for task in tasks}
        if not given:
            dealt: dict[str, list[Task]] = {name: [] for name in _SPLITS}
            for task in sorted(tasks, key=lambda task: row_hash(task.row)):
                dealt[_SPLITS[int(row_hash(task.row)[:8], 16) % 3]].append(task)
            return dealt
        if len(given) < len(_SPLITS):
            missing = next(name for name in _SPLITS if name not in given)
            raise ArgumentValueError(missing, None, "is missing", "Name the tasks of all three splits, or of none.")
        seen: set[str] = set()
        for name in _SPLITS:
            for one in wanted[name]:
                if one not in by_name:
                    raise ArgumentValueError(name, one, "is no task here", f"There are: {', '.join(by_name)}.")
                if one in seen:
                    raise ArgumentValueError(name, one, "is named twice", "A task belongs to one split.")
                seen.add(one)
        return {name: [by_name[one] for one in wanted[name]] for name in _SPLITS}


def _split(name: str, tasks: Sequence[Task]) -> Split:
    examples = tuple(
        dspy.Example(task_id=task.name, instruction=task.instruction).with_inputs("task_id", "instruction")
        for task in tasks
    )
    return Split(name, examples, tuple(row_hash(task.row) for task in tasks))
