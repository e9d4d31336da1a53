"""From a checked configuration to the objects of a run. Nothing is bought here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from combee_dspy import registry
from combee_dspy.cli._config import RunConfig, StrategyConfig
from combee_dspy.cli._data import read_examples, rooted
from combee_dspy.cli._lms import check_lm
from combee_dspy.cli._objects import load_metric, load_program, look_in
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.tracking import RememberingTracker, Tracker

if TYPE_CHECKING:
    from combee_dspy.benchmarks import Benchmark
    from combee_dspy.combee import Combee
    from combee_dspy.stopping import StoppingRule

__all__ = ["Plan", "plan_run", "saved"]


@dataclass(frozen=True, slots=True)
class Plan:
    """A run that is ready to start.

    Attributes:
        config: What the user wrote.
        folder: The folder that relative paths start from.
        program: The student.
        metric: The score.
        train: Examples to learn from.
        validation: Examples to compare candidates on, or ``None``.
        heldout: Examples for the final figure, or ``None``.
        benchmark: Where the examples come from, if from a benchmark.
        tracker: Where the run is recorded.
        output: File for the program's state.
    """

    config: RunConfig
    folder: Path
    program: Any
    metric: Callable[..., Any]
    train: list[Any]
    validation: list[Any] | None
    heldout: list[Any] | None
    benchmark: Benchmark | None
    tracker: RememberingTracker | None
    output: Path | None

    def combee(self, proposer: Any = None) -> Combee:
        """Return the optimizer.

        Args:
            proposer: The proposer's LM; ``None`` puts a dummy in its place, enough to look at the optimizer.

        Raises:
            ArgumentError: A strategy or a limit cannot be used.
        """
        from dspy.utils import DummyLM

        from combee_dspy import Budget, Combee, Price
        from combee_dspy.diversity import Diversity

        config = self.config
        chosen = {kind: value for kind, value in config.strategies if value is not None}
        # Neither is an argument of its own: one is a part of the budget, the other of the diversity.
        budget: StoppingRule = Budget(**config.budget.model_dump())
        for rule in chosen.pop("stopping", []):
            budget = budget | cast("StoppingRule", registry.resolve("stopping", rule.model_dump()))
        embedder = chosen.pop("embedder", None)
        log_dir = None if config.log_dir is None else str(self.folder / config.log_dir)
        return Combee(
            self.metric,
            reflection_lm=proposer or DummyLM([]),
            num_threads=config.threads,
            log_dir=log_dir,
            seed=config.seed,
            budget=budget,
            diversity=True if embedder is None else Diversity(embedder=embedder.model_dump()),
            tracker=self.tracker,
            prices={model: Price(**price.model_dump()) for model, price in config.prices.items()},
            probe=config.probe,
            progress=True,
            **{kind: _strategies(kind, value) for kind, value in chosen.items()},
        )


def plan_run(config: RunConfig, folder: Path) -> Plan:
    """Load, read and check everything that a run needs.

    Args:
        config: The configuration.
        folder: The folder of its file: relative paths start there, and modules
            are looked for there after the working directory.

    Raises:
        ArgumentError: Something in it cannot be used.
        PluginError: A strategy's distribution cannot be loaded.
        DataSourceError: Examples cannot be read.
    """
    from combee_dspy.checks import check_metric, check_splits, check_student

    look_in(Path.cwd(), folder)
    config = _at_home(config, folder)
    benchmark, splits = _examples(config, folder)
    train, validation, heldout = splits
    for role, lm in config.lms:
        if lm is not None:
            check_lm(role, lm, benchmark)
    metric, program = _own(config, benchmark)
    check_metric(metric)
    check_student(program, has_code=True)
    check_splits(train, validation, heldout)
    plan = Plan(
        config=config,
        folder=folder,
        program=program,
        metric=metric,
        train=train or [],
        validation=validation,
        heldout=heldout,
        benchmark=benchmark,
        tracker=_tracker(config.tracker),
        output=_output(config.output, folder),
    )
    # The optimizer's own checks: a wrong strategy is found without an LM.
    plan.combee()
    return plan


def _at_home(config: RunConfig, folder: Path) -> RunConfig:
    """Return the configuration with its benchmark's path made absolute."""
    chosen = config.data.benchmark
    if chosen is None:
        return config
    chosen = chosen.model_copy(update={"params": rooted(chosen.params, folder)})
    return config.model_copy(update={"data": config.data.model_copy(update={"benchmark": chosen})})


def _examples(config: RunConfig, folder: Path) -> tuple[Benchmark | None, tuple[list[Any] | None, ...]]:
    data = config.data
    if data.benchmark is not None:
        from combee_dspy import load_benchmark

        benchmark = load_benchmark(data.benchmark.name, **data.benchmark.params)
        return benchmark, tuple(list(split.examples) for split in benchmark.splits)
    files = {"train": data.train, "validation": data.validation, "heldout": data.heldout}
    return None, tuple(
        None if path is None else read_examples(split, folder / path, data.inputs) for split, path in files.items()
    )


def _own(config: RunConfig, benchmark: Benchmark | None) -> tuple[Callable[..., Any], Any]:
    """Return metric and program: what the user named, else the benchmark's own."""
    metric = load_metric(config.metric) if config.metric is not None else getattr(benchmark, "metric", None)
    program = load_program(config.program) if config.program is not None else getattr(benchmark, "program", None)
    if metric is None or program is None:
        # The configuration's own check asks for both where there is no benchmark.
        raise ArgumentValueError("program", config.program, "is missing", "Name program and metric.")
    return metric, program if config.program is not None else program()


def _strategies(kind: str, value: StrategyConfig | list[StrategyConfig]) -> Any:
    if isinstance(value, list):
        return [registry.resolve("operator", one.model_dump()) for one in value]
    return registry.resolve(kind, value.model_dump())


def _tracker(config: StrategyConfig | None) -> RememberingTracker | None:
    if config is None:
        return None
    return RememberingTracker(cast("Tracker", registry.resolve("tracker", config.model_dump())))


def _output(path: str | None, folder: Path) -> Path | None:
    if path is None:
        return None
    target = folder / path
    if target.suffix != ".json":
        raise ArgumentValueError("output", path, "does not end in .json", "The program's state is saved as JSON.")
    if target.is_dir():
        raise ArgumentValueError("output", path, "is a folder", "Name a file.")
    return target


def saved(program: Any, output: Path | None) -> None:
    """Save a program's state, where there is a program and a file is wanted."""
    if output is None or program is None:
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    # A reader sees the old file or the whole new one.
    part = output.with_name(f".{output.stem}.part.json")
    try:
        program.save(str(part), save_program=False)
        part.replace(output)
    finally:
        part.unlink(missing_ok=True)
