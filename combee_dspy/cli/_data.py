"""What a task of a file learns from and is compared on: rows of files, a benchmark, traces."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import dspy

from combee_dspy import registry
from combee_dspy.benchmarks import LoadedBenchmark, load_benchmark
from combee_dspy.cli._config import DataConfig, RunConfig, StrategyConfig, TracesConfig
from combee_dspy.cli._reading import nearest, read_examples
from combee_dspy.evaluation import Heldout
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.traces import Traces, TraceSource, hold_out_newest

__all__ = ["TaskData", "check_params", "read_data"]

_Rows = list[dspy.Example] | None


@dataclass(frozen=True, slots=True, eq=False)
class TaskData:
    """The data of one task, and the benchmark that it comes from with its parameters, if any."""

    train: Sequence[dspy.Example] | None = None
    validation: Sequence[dspy.Example] | None = None
    heldout: Heldout | None = None
    traces: Traces | None = None
    benchmark: LoadedBenchmark | None = None
    params: dict[str, Any] = field(default_factory=dict)


def read_data(config: RunConfig, folder: Path) -> TaskData:
    """Read the data that a file names; relative paths start from ``folder``.

    Raises:
        ArgumentError: Something in it cannot be used.
        DataSourceError: A file cannot be read.
        TraceSourceError: The traces cannot be read.
    """
    benchmark, params = _benchmark(config.data, folder)
    if benchmark is None:
        train, validation, heldout = _files(config.data, folder)
    else:
        train, validation, heldout = (list(split.examples) for split in benchmark.splits)
    traces: Traces | None = None
    if config.traces is not None:
        traces = _source(config.traces, folder)
        if config.traces.heldout_days:
            if heldout:
                remedy = "Leave one of them out."
                problem = "are held out, and so are rows of data.heldout"
                days = config.traces.heldout_days
                raise ArgumentValueError("traces.heldout_days", days, problem, remedy)
            traces, heldout = hold_out_newest(traces, config.traces.heldout_days)
    elif train is None:
        remedy = "Name a file of examples to learn from, or give traces."
        raise ArgumentValueError("data.train", None, "is missing", remedy)
    if not heldout and (claimed := config.heldout.model_dump(exclude_unset=True)):
        remedy = "Name data.heldout, a benchmark or traces.heldout_days, or leave it out."
        raise ArgumentValueError("heldout", claimed, "sets terms, but no rows are held out", remedy)
    terms: dict[str, Any] = config.heldout.model_dump()
    if isinstance(terms["baseline"], Path):
        terms["baseline"] = folder / terms["baseline"]
    held = Heldout(heldout, **terms) if heldout else None
    return TaskData(train, validation, held, traces, benchmark, params)


def _benchmark(
    data: DataConfig | None, folder: Path
) -> tuple[LoadedBenchmark | None, dict[str, Any]]:
    if data is None or data.benchmark is None:
        return None, {}
    check_params("benchmark", "data.benchmark", data.benchmark)
    params = _located(data.benchmark, folder)
    return load_benchmark(data.benchmark.name, **params), params


def _files(data: DataConfig | None, folder: Path) -> tuple[_Rows, _Rows, _Rows]:
    if data is None:
        return None, None, None

    def read(name: str, file: str | None) -> _Rows:
        return None if file is None else read_examples(f"data.{name}", folder / file, data.inputs)

    return (
        read("train", data.train),
        read("validation", data.validation),
        read("heldout", data.heldout),
    )


def _source(config: TracesConfig, folder: Path) -> TraceSource:
    check_params("source", "traces", config)
    source = registry.build("source", config.name, _located(config, folder))
    return cast("TraceSource", source)


def _located(config: StrategyConfig, folder: Path) -> dict[str, Any]:
    """Return parameters with a path, or the files of a builder, that start from a folder.

    An address or a hub id stays as it is, and so does a path that is not there: whoever reads it
    refuses it.
    """
    params = dict(config.params)
    path, files = params.get("path"), params.get("files")
    if isinstance(files, list) and "/" not in str(path):  # the path is a builder's name
        names = map(str, files)
        params["files"] = [name if "://" in name else str(folder / name) for name in names]
    elif isinstance(path, str) and (folder / path).exists():
        params["path"] = str((folder / path).resolve())
    return params


def check_params(kind: str, place: str, chosen: StrategyConfig) -> None:
    """Refuse a parameter that a strategy does not have.

    Raises:
        ArgumentValueError: There is any.
    """
    names = inspect.signature(registry.find(kind, chosen.name)).parameters
    for key, value in chosen.params.items():
        if key not in names:
            problem = f"is no parameter of {kind} {chosen.name!r}"
            raise ArgumentValueError(f"{place}.params.{key}", value, problem, nearest(key, names))
