"""Turns a run file's mapping into the objects of a run. Nothing is bought here."""

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
from combee_dspy.cli._data import read_data
from combee_dspy.cli._lms import Benchmarks, check_lm, locate, make_lm
from combee_dspy.cli._reading import add_module_folders, checked, load_object
from combee_dspy.combee import Combee
from combee_dspy.exceptions import ArgumentError, ArgumentTypeError, ArgumentValueError
from combee_dspy.files import file_name
from combee_dspy.lms import ChoiceAdapter, ConstrainedJSONAdapter
from combee_dspy.many import Task

_ADAPTERS = {
    "chat": dspy.ChatAdapter,
    "json": dspy.JSONAdapter,
    "xml": dspy.XMLAdapter,
    "choice": ChoiceAdapter,
    "constrained-json": ConstrainedJSONAdapter,
}


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """One program to compile.

    Attributes:
        task: What is compiled; its LM and adapter are missing.
        lm: The task LM.
        adapter: DSPy's adapter by name; ``None`` for the LM's usual one.
        benchmarks: The benchmark that the examples come from, if any.
        output: File for the program's state, if any.
    """

    task: Task
    lm: LMConfig
    adapter: str | None
    benchmarks: Benchmarks
    output: Path | None

    def settings(self) -> dict[str, Any]:
        """Return DSPy's setting of the adapter, empty for DSPy's own choice."""
        # The embedded model needs an adapter that constrains its answers.
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
        """Give what makes LMs: one for all places with the same settings.

        A simulated service ends with the context.
        """
        benchmarks = [pair for task in self.tasks for pair in task.benchmarks]
        lms: dict[str, dspy.LM] = {}
        with ExitStack() as stack:

            def lm_of(config: LMConfig) -> dspy.LM:
                settings = config.model_dump_json()
                if settings not in lms:
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
                arguments[name] = _build(name.removesuffix("s"), chosen)
        if config.tracker is not None:
            arguments["tracker"] = _build("tracker", config.tracker)
        rules = [*filter(None, [config.budget]), *arguments.pop("stopping")]
        budget = reduce(operator.or_, rules) if rules else None
        # Each task brings its own metric when it is compiled.
        metric: Any = self.tasks[0].task.metric
        return Combee(metric, reflection_lm=proposer, budget=budget, **arguments)


def plan_run(data: Mapping[str, Any], folder: Path) -> Plan:
    """Load, read and check everything that a run needs.

    Args:
        data: The file's mapping.
        folder: Where paths start; modules are looked for there as well.

    Raises:
        ArgumentError: Something in it cannot be used.
        DataSourceError: Its data cannot be read.
    """
    add_module_folders(folder)
    config = checked(data)
    tasks = tuple(_named_task(name, config, folder) for name in config.tasks)
    tasks = tasks or (_task("main", config, folder),)
    outputs = [task.output for task in tasks if task.output is not None]
    if len(set(outputs)) < len(outputs):
        remedy = "Put {name} into it."
        raise ArgumentValueError("output", str(outputs[0]), "is written by two tasks", remedy)
    proposer = tasks[0].lm
    if config.lms is not None and config.lms.proposer is not None:
        proposer = locate(config.lms.proposer, folder)
    simulated = any(task.benchmarks for task in tasks)
    for task in tasks:
        check_lm("lms.task", task.lm, simulated=simulated)
    check_lm("lms.proposer", proposer, simulated=simulated)
    return Plan(config, folder, tasks, proposer)


def _named_task(name: str, config: RunConfig, folder: Path) -> TaskPlan:
    try:
        return _task(name, config.of_task(name), folder)
    except ArgumentError as error:
        place = f"tasks.{name}: {error.argument}"
        raise ArgumentValueError(place, error.value, error.problem, error.remedy) from error


def _task(name: str, config: RunConfig, folder: Path) -> TaskPlan:
    if config.lms is None or (config.data is None and config.traces is None):
        missing, example = "data", "{benchmark: {name: formula-mini}}"
        if config.lms is None:
            missing, example = "lms", "{task: {model: openai/NAME, api_key_env: OPENAI_API_KEY}}"
        remedy = f"Add a line such as {missing}: {example}. See combee run --help."
        raise ArgumentValueError(missing, None, "is missing", remedy)
    data = read_data(config, folder)
    benchmark = data.benchmark
    program = _load(config, "program", benchmark.program if benchmark else None)
    task = Task(
        name,
        _program(program, config.program),
        data.train,
        data.validation,
        data.heldout,
        metric=_load(config, "metric", benchmark.metric if benchmark else None),
        seed=config.seed,
        traces=data.traces,
        selection=None if config.traces is None else config.traces.selection,
    )
    benchmarks = [] if benchmark is None else [(benchmark, data.params)]
    output = _output(config.output, name, folder)
    return TaskPlan(task, locate(config.lms.task, folder), config.adapter, benchmarks, output)


def _load(config: RunConfig, key: str, usual: Any) -> Any:
    """Return the object that a file names under a key, the benchmark's own where it names none."""
    target = getattr(config, key)
    loaded = usual if target is None else load_object(key, target)
    if loaded is None:
        remedy = f"Add {key}: module:object, since only a benchmark brings its own."
        raise ArgumentValueError(key, None, "is missing", remedy)
    return loaded


def _program(program: Any, target: str | None) -> dspy.Module:
    """Return a program: the object, or what its class or function returns without arguments."""
    if not isinstance(program, dspy.Module):
        try:
            program = program()
        except Exception as error:
            problem = f"cannot be made without arguments: {type(error).__name__}: {error}"
            remedy = "Name an object, or a class or function that needs no arguments."
            raise ArgumentValueError("program", target, problem, remedy) from error
    if not isinstance(program, dspy.Module):
        problem = f"is no DSPy program but {type(program).__name__}"
        remedy = "Name a dspy.Module, its class, or a function that makes one."
        raise ArgumentTypeError("program", target, problem, remedy)
    return program


def _build(kind: str, chosen: StrategyConfig | list[StrategyConfig]) -> Any:
    """Return a strategy, or all of a list."""
    if isinstance(chosen, list):
        return [_build(kind, part) for part in chosen]
    return registry.build(kind, chosen.name, chosen.params)


def _output(path: str | None, name: str, folder: Path) -> Path | None:
    if path is None:
        return None
    target = folder / path.replace("{name}", file_name(name))
    if target.suffix != ".json" or target.is_dir():
        problem = "is no file that ends in .json"
        raise ArgumentValueError("output", path, problem, "The state is saved as JSON.")
    return target
