"""Several methods on one benchmark and one endpoint: the same rows, budget and seeds for each."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import dspy

from combee_dspy import registry
from combee_dspy.baselines import Baseline, BaselineResult, BaselineTask
from combee_dspy.bench.record import LABEL, environment
from combee_dspy.bench.side_statistics import MethodSummary, RunFigures
from combee_dspy.bench.speed import quietly
from combee_dspy.benchmarks import Benchmark, Split, load_benchmark
from combee_dspy.costs import Price
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.rollouts import EvaluationCache
from combee_dspy.tracking import MLflowTracker

__all__ = ["CompareOptions", "compare_record", "figures_of", "run_compare"]

_MADE_TO_SIZE = ("formula-mini",)


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """What is compared.

    Attributes:
        methods: Baselines by name, in the order in which they run; the first is the reference.
        seeds: Seeds, each of the service and of every method. The rows are the same for all.
        budget: Rollouts that each method may buy.
        train: Training examples.
        validation: Validation examples.
        heldout: Held-out examples, read once before and once after each run.
        benchmark: A benchmark's name.
        params: Its parameters, without the sizes.
        lm: ``None`` for the simulated service, ``"embedded"``, or a model by DSPy's name.
        reflection_lm: Another model for writing, at the same address; ``None`` for the same.
        api_base: Address of an OpenAI-compatible service.
        api_key_env: Environment variable that holds its key.
        threads: Rollouts and calls at once; on the simulated service also its slots.
        time_scale: Wall seconds for one simulated second, above 0.
        prices: Dollars per million prompt and completion tokens of the models; ``None`` for list prices.
        mlflow: Whether each run is recorded in MLflow.
        journals: Folder in which each run keeps its journal; ``None`` for none.
    """

    methods: tuple[str, ...] = ("gepa", "mipro", "combee")
    seeds: tuple[int, ...] = (0,)
    budget: int = 600
    train: int = 168
    validation: int = 48
    heldout: int = 100
    benchmark: str = "formula-mini"
    params: Mapping[str, Any] = field(default_factory=lambda: {"task": "compute"})
    lm: str | None = None
    reflection_lm: str | None = None
    api_base: str | None = None
    api_key_env: str | None = None
    threads: int = 32
    time_scale: float = 0.2
    prices: tuple[float, float] | None = None
    mlflow: bool = False
    journals: Path | None = None

    @property
    def label(self) -> str:
        """What is said wherever the figures are shown."""
        return LABEL if self.lm is None else f"model {self.lm}"


@dataclass(frozen=True, slots=True)
class _Endpoint:
    task_lm: Any
    reflection_lm: Any
    adapter: Any = None
    clock: Callable[[], float] = time.monotonic


def run_compare(options: CompareOptions) -> Iterator[BaselineResult]:
    """Run every method on every seed; results come one run at a time, seed by seed.

    Options and data are checked at once, before the first method runs.

    Args:
        options: What to compare.

    Raises:
        ArgumentValueError: An option cannot be used.
        UnknownStrategyError: A method is not installed.
        PluginError: A method is installed and cannot be loaded.
        DataSourceError: The benchmark cannot be read.
    """
    _check(options)
    methods = [cast("Baseline", registry.build("baseline", name)) for name in options.methods]
    for method in methods:
        method.validate()
        method.prepare()
    return _results(options, methods, _benchmark(options))


def _results(options: CompareOptions, methods: Sequence[Baseline], benchmark: Benchmark) -> Iterator[BaselineResult]:
    for seed in options.seeds:
        # The readings of the held-out set are in no method's price: the student is read once for all of them.
        read = EvaluationCache()
        for method in methods:
            with _endpoint(options, benchmark, seed) as endpoint, quietly():
                task = _task(options, benchmark, endpoint, method.name, seed)
                result = method.run(replace(task, heldout_cache=read))
            yield result


def _task(options: CompareOptions, benchmark: Benchmark, endpoint: _Endpoint, method: str, seed: int) -> BaselineTask:
    models = {str(lm.model) for lm in (endpoint.task_lm, endpoint.reflection_lm)}
    return BaselineTask(
        program=benchmark.program(),
        metric=benchmark.metric,
        train=benchmark.train.examples,
        validation=benchmark.validation.examples,
        heldout=benchmark.heldout.examples,
        task_lm=endpoint.task_lm,
        reflection_lm=endpoint.reflection_lm,
        budget=options.budget,
        seed=seed,
        threads=options.threads,
        adapter=endpoint.adapter,
        clock=endpoint.clock,
        tracker=MLflowTracker(experiment="combee compare") if options.mlflow else None,
        journal=None if options.journals is None else options.journals / f"{method}-seed-{seed}",
        prices={} if options.prices is None else {model: Price(*options.prices) for model in models},
        name=f"{method} on {benchmark.name} seed {seed}",
    )


def _check(options: CompareOptions) -> None:
    for name in ("methods", "seeds"):
        values: tuple[Any, ...] = getattr(options, name)
        if not values:
            raise ArgumentValueError(name, values, "is empty", f"Methods: {', '.join(registry.names('baseline'))}.")
        if len(set(values)) < len(values):
            raise ArgumentValueError(name, values, "names one twice", "Name each once.")
    if options.time_scale <= 0:
        raise ArgumentValueError("time_scale", options.time_scale, "is not above 0", "Nothing would be measured.")
    if options.budget < options.validation:
        remedy = f"Give at least {options.validation}, better ten times as many."
        raise ArgumentValueError("budget", options.budget, "does not pay for one validation", remedy)
    if options.lm is None and (options.api_base or options.api_key_env or options.reflection_lm):
        given = options.api_base or options.api_key_env or options.reflection_lm
        raise ArgumentValueError("lm", given, "is not named, though something of a model is", "Name the model.")
    if options.api_key_env is not None:
        _key(options.api_key_env)
    if options.prices is not None:
        Price(*options.prices)


def _benchmark(options: CompareOptions) -> Benchmark:
    sizes = {"train": options.train, "validation": options.validation, "heldout": options.heldout}
    made = sizes if options.benchmark in _MADE_TO_SIZE else {}
    loaded = load_benchmark(options.benchmark, **{**options.params, **made})
    train, validation, heldout = (_first(split, sizes[split.name]) for split in loaded.splits)
    return replace(loaded, train=train, validation=validation, heldout=heldout)


def _first(split: Split, size: int) -> Split:
    if not 1 <= size <= len(split):
        problem = f"cannot be taken from {len(split)} rows"
        raise ArgumentValueError(split.name, size, problem, f"Give 1 to {len(split)}.")
    return Split(split.name, split.examples[:size], split.row_hashes[:size])


@contextmanager
def _endpoint(options: CompareOptions, benchmark: Benchmark, seed: int) -> Iterator[_Endpoint]:
    with ExitStack() as stack:
        if options.lm is None:
            from combee_dspy.lms import SimulatedConfig, SimulatedService, SimulatedTask

            task = SimulatedTask.from_benchmark(benchmark, seed, params=options.params)
            config = SimulatedConfig(seed=seed, slots=options.threads, time_scale=options.time_scale)
            lm = stack.enter_context(SimulatedService(config, task)).lm()
            yield _Endpoint(lm, lm, clock=lambda: time.monotonic() / options.time_scale)
        elif options.lm == "embedded":
            from combee_dspy.lms import ChoiceAdapter, embedded_lm

            # One that chooses among labels where the task is a choice, and answers in JSON elsewhere.
            lm = embedded_lm(slots=options.threads)
            yield _Endpoint(lm, lm, adapter=ChoiceAdapter())
        else:
            writer = options.reflection_lm or options.lm
            lm = _remote(options, options.lm)
            yield _Endpoint(lm, lm if writer == options.lm else _remote(options, writer))


def _remote(options: CompareOptions, model: str) -> dspy.LM:
    # A call that DSPy answers from its cache costs nothing and takes no time: it would flatter whoever runs later.
    settings: dict[str, Any] = {"cache": False}
    if options.api_base is not None:
        settings["api_base"] = options.api_base
    if options.api_key_env is not None:
        settings["api_key"] = _key(options.api_key_env)
    return dspy.LM(model, **settings)


def _key(variable: str) -> str:
    key = os.environ.get(variable)
    if not key:
        remedy = f"Run: export {variable}=…"
        raise ArgumentValueError("api_key_env", variable, "is not set in the environment", remedy)
    return key


def figures_of(result: BaselineResult) -> RunFigures:
    """Return what is compared of a result.

    Raises:
        ArgumentValueError: It was run without a held-out set.
    """
    if result.receipt is None:
        raise ArgumentValueError("result", result.method, "has no held-out scores", "Run it with a held-out set.")
    return RunFigures(
        method=result.method,
        seed=result.seed,
        before=result.receipt.before,
        after=result.receipt.after,
        seconds=result.seconds,
        tokens=result.tokens,
        dollars=result.dollars,
        rollouts=result.rollouts,
        validation=result.validation,
    )


def compare_record(
    options: CompareOptions, results: Sequence[BaselineResult], summaries: Sequence[MethodSummary], command: str
) -> dict[str, Any]:
    """Return a comparison as plain JSON data, with machine, versions and command.

    Args:
        options: What was compared.
        results: Every run.
        summaries: The methods side by side.
        command: The command that repeats it.
    """
    versions = {name: version for result in results for name, version in result.versions.items()}
    machine, own = environment()
    return {
        "label": options.label,
        "simulated": options.lm is None,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "machine": machine,
        "versions": {**own, **versions},
        "options": {**asdict(options), "journals": None if options.journals is None else str(options.journals)},
        "summary": [asdict(summary) for summary in summaries],
        "runs": [result.to_dict() for result in results],
    }
