"""From a file's mapping to the objects of a run. Nothing is bought here."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, Protocol, cast

import dspy

from combee_dspy import registry
from combee_dspy.benchmarks import LoadedBenchmark
from combee_dspy.cli._config import LMConfig, RunConfig, StrategiesConfig, StrategyConfig
from combee_dspy.cli._data import check_params, read_data
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
    MissingDistributionError,
)
from combee_dspy.files import file_name
from combee_dspy.lms import ChoiceAdapter, ConstrainedJSONAdapter, embedded
from combee_dspy.many import Task

__all__ = ["Known", "LMMaker", "Plan", "ServiceMaker", "TaskPlan", "plan_run"]

_ADAPTERS = {
    "chat": dspy.ChatAdapter,
    "json": dspy.JSONAdapter,
    "xml": dspy.XMLAdapter,
    "choice": ChoiceAdapter,
    "constrained-json": ConstrainedJSONAdapter,
}

Known = Sequence[tuple[LoadedBenchmark, Mapping[str, Any]]]
"""Benchmarks that a simulated model knows, each with the parameters that it was read with."""


class LMMaker(Protocol):
    """Makes an LM of a service that runs, from arguments of ``dspy.LM`` beside its address."""

    def __call__(self, **options: Any) -> dspy.LM:
        """Return a new LM."""


class ServiceMaker(Protocol):
    """An entry point of ``combee_dspy.services``: starts a service, which runs while its context
    does.
    """

    def __call__(
        self, benchmarks: Known, *, seed: int, slots: int | None, time_scale: float | None
    ) -> AbstractContextManager[LMMaker]:
        """Return the service, which knows what these benchmarks ask; ``None`` for its own
        default.
        """


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """One program to compile, with the benchmark that its examples come from, and the file for its
    state, if any.
    """

    task: Task
    lm: LMConfig
    adapter: str | None
    known: Known
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
        known, made = [one for plan in self.tasks for one in plan.known], {}
        with ExitStack() as stack:

            def lm_of(config: LMConfig) -> dspy.LM:
                settings = config.model_dump_json()
                if settings not in made:
                    made[settings] = make_lm(
                        _located(config, self.folder), known, self.config.seed or 0, stack
                    )
                return made[settings]

            yield lm_of

    def combee(self, proposer: dspy.BaseLM) -> Combee:
        """Return the optimizer."""
        config, given = self.config, self.config.arguments()
        for name in ("log_dir", "cache"):
            if given.get(name):
                given[name] = self.folder / given[name]
        if (search := given.get("search")) is not None and search.replay is not None:
            given["search"] = replace(search, replay=str(self.folder / search.replay))
        for name in ("instruction_proposer", "code_proposer"):
            if (target := getattr(config, name)) is not None:
                given[name] = load_object(name, target)
        for name in StrategiesConfig.model_fields:
            if (chosen := getattr(config.strategies, name)) is not None:
                given[name] = _built(name.removesuffix("s"), f"strategies.{name}", chosen)
        if config.tracker is not None:
            given["tracker"] = _built("tracker", "tracker", config.tracker)
        rules = [*filter(None, [config.budget]), *given.pop("stopping")]
        budget = reduce(operator.or_, rules) if rules else None
        metric: Any = self.tasks[
            0
        ].task.metric  # each task's own is in its place when it is compiled
        return Combee(metric, reflection_lm=proposer, budget=budget, **given)


def plan_run(data: Mapping[str, Any], folder: Path) -> Plan:
    """Load, read and check everything that a run needs, paths and modules from the file's folder as
    well.
    """
    add_module_folders(folder)
    config = checked(data, folder)
    if config.tasks:
        tasks = tuple(_one_of_several(name, config.of_task(name), folder) for name in config.tasks)
    else:
        tasks = (_task("main", config, folder),)
    outputs = [task.output for task in tasks if task.output is not None]
    if len(set(outputs)) < len(outputs):
        raise ArgumentValueError(
            "output", str(outputs[0]), "is written by two tasks", "Put {name} into it."
        )
    plan = Plan(config, folder, tasks, (config.lms and config.lms.proposer) or tasks[0].lm)
    for place, lm in (*(("lms.task", task.lm) for task in tasks), ("lms.proposer", plan.proposer)):
        check_lm(place, _located(lm, folder), known=any(task.known for task in tasks))
    return plan


def check_lm(place: str, config: LMConfig, *, known: bool) -> None:
    """Refuse an LM whose key is not set, or whose service cannot be simulated, without making
    it.
    """
    if config.model == "simulated":
        _simulator()
        if not known:
            raise ArgumentValueError(
                place, "simulated", "simulates only benchmarks", "Give data.benchmark."
            )
    for file in config.parts:
        if not Path(file).is_file():
            raise ArgumentValueError(
                f"{place}.file", file, "is no file", "Give the path of a GGUF file."
            )
    if config.api_key_env is not None and not os.environ.get(config.api_key_env):
        remedy = f"Set it, for example: export {config.api_key_env}=…"
        raise ArgumentValueError(
            f"{place}.api_key_env", config.api_key_env, "is not set in the environment", remedy
        )


def _located(config: LMConfig, folder: Path) -> LMConfig:
    return config.model_copy(update={"file": tuple(str(folder / part) for part in config.parts)})


def _simulator() -> ServiceMaker:
    service = cast("ServiceMaker | None", registry.extension("services", "simulated"))
    if service is None:
        raise MissingDistributionError("the model 'simulated'", "combee-dspy[all]")
    return service


def make_lm(config: LMConfig, known: Known, seed: int, stack: ExitStack) -> dspy.LM:
    """Return an LM; a simulated service of its runs until the stack is closed."""
    given = config.model_dump(
        exclude={"model", "api_key_env", "options", "time_scale"}, exclude_none=True
    )
    given |= config.options
    if config.model == "simulated":
        given = {name: value for name, value in given.items() if name not in ("slots", "file")}
        service = _simulator()(known, seed=seed, slots=config.slots, time_scale=config.time_scale)
        lm = stack.enter_context(service)(**given)
        # Its port is another each time, and says nothing of what it answers: a run that goes on is
        # the same.
        lm.cache_identity = f"simulated with seed {seed}"
        return lm
    if config.model == "embedded":
        return embedded(**given)
    given.pop("file", None)
    if config.api_key_env:
        given["api_key"] = os.environ[config.api_key_env]
    return dspy.LM(config.model, **given)


def _one_of_several(name: str, config: RunConfig, folder: Path) -> TaskPlan:
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
    own: dict[str, Any] = {}
    known: Known = []
    if data.benchmark is not None:
        known = [(data.benchmark, data.params)]
        own = {"program": data.benchmark.program, "metric": data.benchmark.metric}
    for key in ("program", "metric"):
        if (target := getattr(config, key)) is not None:
            own[key] = load_object(key, target)
        if key not in own:
            remedy = f"Add {key}: module:object, since only a benchmark brings its own."
            raise ArgumentValueError(key, None, "is missing", remedy)
    task = Task(
        name,
        _program(own["program"], config.program),
        data.train,
        data.validation,
        data.heldout,
        metric=own["metric"],
        seed=config.seed,
        traces=data.traces,
        selection=None if config.traces is None else config.traces.selection,
    )
    return TaskPlan(
        task, config.lms.task, config.adapter, known, _output(config.output, name, folder)
    )


def _program(found: Any, target: str | None) -> dspy.Module:
    """Return the program: the object itself, or what its class or function returns without
    arguments.
    """
    if not isinstance(found, dspy.Module):
        try:
            found = found()
        except Exception as error:
            problem = f"cannot be made without arguments: {type(error).__name__}: {error}"
            remedy = "Name an object, or a class or function that needs no arguments."
            raise ArgumentValueError("program", target, problem, remedy) from error
    if not isinstance(found, dspy.Module):
        remedy = "Name a dspy.Module, its class, or a function that makes one."
        raise ArgumentTypeError(
            "program", target, f"is no DSPy program but {type(found).__name__}", remedy
        )
    return found


def _built(kind: str, place: str, chosen: StrategyConfig | list[StrategyConfig]) -> Any:
    """Return a strategy, or all of a list."""
    if isinstance(chosen, list):
        return [_built(kind, f"{place}.{number}", one) for number, one in enumerate(chosen)]
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
