"""From a file's mapping to the objects of a run. Nothing is bought here."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import dspy

from combee_dspy import registry
from combee_dspy.cli._config import LMConfig, RunConfig, StrategiesConfig, StrategyConfig
from combee_dspy.cli._data import check_params, read_data
from combee_dspy.cli._lms import Benchmarks, check_lm, locate, make_lm
from combee_dspy.cli._reading import (
    add_module_folders,
    checked,
    load_object,
)
from combee_dspy.combee import Combee
from combee_dspy.exceptions import (
    ArgumentError,
    ArgumentTypeError,
    ArgumentValueError,
)
from combee_dspy.files import file_name
from combee_dspy.lms import ChoiceAdapter, ConstrainedJSONAdapter
from combee_dspy.many import Task

__all__ = ["Plan", "TaskPlan", "plan_run"]

_ADAPTERS = {
    "chat": dspy.ChatAdapter,
    "json": dspy.JSONAdapter,
    "xml": dspy.XMLAdapter,
    "choice": ChoiceAdapter,
    "constrained-json": ConstrainedJSONAdapter,
}


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """One program to compile, with the benchmark that its examples come from, and the file for its
    state, if any.
    """

    task: Task
    lm: LMConfig
    adapter: str | None
    benchmarks: Benchmarks
    output: Path | None

    def settings(self) -> dict[str, Any]:
        """Return DSPy's setting of the adapter, empty for DSPy's own choice.

        The embedded model gets one that constrains its answers unless another is named: no other
        works for it.
        """
        name = self.adapter or ("choice" if self.lm.model == "embedded" else None)
        return {} if name is None else {"adapter": _ADAPTERS[name]()}


@dataclass(frozen=True, slots=True)
class Plan:
    """A run that is ready to start; relative paths in its configuration start from ``folder``."""

    config: RunConfig
    folder: Path
    tasks: tuple[TaskPlan, ...]
    proposer: LMConfig

    @contextmanager
    def lms(self) -> Iterator[Callable[[LMConfig], dspy.LM]]:
        """Give what makes LMs, one for all places with the same settings; a simulated service ends
        with the context.
        """
        benchmarks = [pair for task in self.tasks for pair in task.benchmarks]
        lms: dict[str, dspy.LM] = {}
        with ExitStack() as stack:

            def lm_of(config: LMConfig) -> dspy.LM:
                settings = config.model_dump_json()
                if settings not in lms:
                    config = locate(config, self.folder)
                    lms[settings] = make_lm(config, benchmarks, self.config.seed or 0, stack)
                return lms[settings]

            yield lm_of

    def combee(self, proposer: dspy.BaseLM) -> Combee:
        """Return the optimizer."""
        config, arguments = self.config, self.config.arguments()
        for name in ("log_dir", "cache"):
            if arguments.get(name):
                arguments[name] = self.folder / arguments[name]
        if (search := arguments.get("search")) is not None and search.replay is not None:
            arguments["search"] = replace(search, replay=str(self.folder / search.replay))
        for name in ("instruction_proposer", "code_proposer"):
            if (target := getattr(config, name)) is not None:
                arguments[name] = load_object(name, target)
        for name in StrategiesConfig.model_fields:
            if (chosen := getattr(config.strategies, name)) is not None:
                arguments[name] = _built(name.removesuffix("s"), f"strategies.{name}", chosen)
        if config.tracker is not None:
            arguments["tracker"] = _built("tracker", "tracker", config.tracker)
        rules = [*filter(None, [config.budget]), *arguments.pop("stopping")]
        budget = reduce(operator.or_, rules) if rules else None
        # Each task's own is in its place when it is compiled.
        metric: Any = self.tasks[0].task.metric
        return Combee(metric, reflection_lm=proposer, budget=budget, **arguments)


def plan_run(data: Mapping[str, Any], folder: Path) -> Plan:
    """Load, read and check everything that a run needs, paths and modules from the file's folder as
    well.
    """
    add_module_folders(folder)
    config = checked(data)
    if config.tasks:
        tasks = tuple(_named_task(name, config.of_task(name), folder) for name in config.tasks)
    else:
        tasks = (_task("main", config, folder),)
    outputs = [task.output for task in tasks if task.output is not None]
    if len(set(outputs)) < len(outputs):
        raise ArgumentValueError(
            "output", str(outputs[0]), "is written by two tasks", "Put {name} into it."
        )
    plan = Plan(config, folder, tasks, (config.lms and config.lms.proposer) or tasks[0].lm)
    for place, lm in (*(("lms.task", task.lm) for task in tasks), ("lms.proposer", plan.proposer)):
        check_lm(place, locate(lm, folder), simulated=any(task.benchmarks for task in tasks))
    return plan


def _named_task(name: str, config: RunConfig, folder: Path) -> TaskPlan:
    try:
        return _task(name, config, folder)
    except ArgumentError as error:
        place = f"tasks.{name}: {error.argument}"
        raise ArgumentValueError(place, error.value, error.problem, error.remedy) from error


def _task(name: str, config: RunConfig, folder: Path) -> TaskPlan:
    if config.lms is None or (config.data is None and config.traces is None):
        missing = "lms" if config.lms is None else "data"
        raise ArgumentValueError(missing, None, "is missing", "See combee run --help.")
    data = read_data(config, folder)
    parts: dict[str, Any] = {}
    benchmarks: Benchmarks = []
    if data.benchmark is not None:
        benchmarks = [(data.benchmark, data.params)]
        parts = {"program": data.benchmark.program, "metric": data.benchmark.metric}
    for key in ("program", "metric"):
        if (target := getattr(config, key)) is not None:
            parts[key] = load_object(key, target)
        if key not in parts:
            remedy = f"Add {key}: module:object, since only a benchmark brings its own."
            raise ArgumentValueError(key, None, "is missing", remedy)
    task = Task(
        name,
        _program(parts["program"], config.program),
        data.train,
        data.validation,
        data.heldout,
        metric=parts["metric"],
        seed=config.seed,
        traces=data.traces,
        selection=None if config.traces is None else config.traces.selection,
    )
    output = _output(config.output, name, folder)
    return TaskPlan(task, config.lms.task, config.adapter, benchmarks, output)


def _program(program: Any, target: str | None) -> dspy.Module:
    """Return the program: the object itself, or what its class or function returns without
    arguments.
    """
    if not isinstance(program, dspy.Module):
        try:
            program = program()
        except Exception as error:
            problem = f"cannot be made without arguments: {type(error).__name__}: {error}"
            remedy = "Name an object, or a class or function that needs no arguments."
            raise ArgumentValueError("program", target, problem, remedy) from error
    if not isinstance(program, dspy.Module):
        remedy = "Name a dspy.Module, its class, or a function that makes one."
        raise ArgumentTypeError(
            "program", target, f"is no DSPy program but {type(program).__name__}", remedy
        )
    return program


def _built(kind: str, place: str, chosen: StrategyConfig | list[StrategyConfig]) -> Any:
    """Return a strategy, or all of a list."""
    if isinstance(chosen, list):
        return [_built(kind, f"{place}.{number}", part) for number, part in enumerate(chosen)]
    check_params(kind, place, chosen)
    return registry.build(kind, chosen.name, chosen.params)


def _output(path: str | None, name: str, folder: Path) -> Path | None:
    if path is None:
        return None
    target = folder / path.replace("{name}", file_name(name))
    if target.suffix != ".json" or target.is_dir():
        raise ArgumentValueError(
            "output", path, "is no file that ends in .json", "The state is saved as JSON."
        )
    return target
