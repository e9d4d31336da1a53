"""Reads what a task of a run file learns from and is compared on: files, a benchmark, traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast

import dspy

from combee_dspy import registry
from combee_dspy.benchmarks import LoadedBenchmark, load_benchmark
from combee_dspy.cli._config import DataConfig, RunConfig, StrategyConfig, TracesConfig
from combee_dspy.cli._reading import read_examples
from combee_dspy.evaluation import Heldout
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.traces import Traces, TraceSource, hold_out_newest

_Rows: TypeAlias = Sequence[dspy.Example] | None


@dataclass(frozen=True, slots=True, eq=False)
class TaskData:
    """The data of one task, and the benchmark that it comes from with its parameters, if any."""

    train: _Rows = None
    validation: _Rows = None
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
    data = config.data or DataConfig.model_construct()
    benchmark, params = None, {}
    if data.benchmark is not None:
        params = _located(data.benchmark, folder)
        benchmark = load_benchmark(data.benchmark.name, **params)
    rows: list[_Rows] = [_read(data, name, folder) for name in ("train", "validation", "heldout")]
    if benchmark is not None:
        rows = [list(split.examples) for split in benchmark.splits]
    train, validation, heldout = rows
    traces: Traces | None = None
    if config.traces is not None:
        traces, heldout = _read_traces(config.traces, heldout, folder)
    elif train is None:
        remedy = "Name a file of examples to learn from, or give traces."
        raise ArgumentValueError("data.train", None, "is missing", remedy)
    held = _to_heldout(config, heldout, folder)
    return TaskData(train, validation, held, traces, benchmark, params)


def _read(data: DataConfig, name: str, folder: Path) -> list[dspy.Example] | None:
    file: str | None = getattr(data, name)
    return None if file is None else read_examples(f"data.{name}", folder / file, data.inputs)


def _read_traces(
    config: TracesConfig, heldout: _Rows, folder: Path
) -> tuple[Traces, Sequence[dspy.Example] | None]:
    """Return the traces to learn from, and the held-out rows: the newest ones where asked for."""
    source = registry.build("source", config.name, _located(config, folder))
    traces = cast("TraceSource", source)
    if not config.heldout_days:
        return traces, heldout
    if heldout:
        problem = "are held out, and so are rows of data.heldout"
        remedy = "Leave one of them out."
        raise ArgumentValueError("traces.heldout_days", config.heldout_days, problem, remedy)
    return hold_out_newest(traces, config.heldout_days)


def _to_heldout(config: RunConfig, rows: _Rows, folder: Path) -> Heldout | None:
    terms = config.heldout.model_dump(exclude_unset=True)
    if not rows and terms:
        remedy = "Name data.heldout, a benchmark or traces.heldout_days, or leave it out."
        raise ArgumentValueError("heldout", terms, "sets terms, but no rows are held out", remedy)
    if isinstance(terms.get("baseline"), Path):
        terms["baseline"] = folder / terms["baseline"]
    return Heldout(rows, **terms) if rows else None


def _located(config: StrategyConfig, folder: Path) -> dict[str, Any]:
    """Return parameters whose path, or files of a builder, start from a folder.

    An address, a hub id and a path that is not there stay as they are: their reader refuses them.
    """
    params = dict(config.params)
    path, files = params.get("path"), params.get("files")
    if isinstance(files, list) and "/" not in str(path):  # the path is a builder's name
        names = map(str, files)
        params["files"] = [name if "://" in name else str(folder / name) for name in names]
    elif isinstance(path, str) and (folder / path).exists():
        params["path"] = str((folder / path).resolve())
    return params
