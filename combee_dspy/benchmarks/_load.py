"""Benchmarks by name."""

from __future__ import annotations

import logging
from typing import Any, cast

from combee_dspy import registry
from combee_dspy.benchmarks._base import Benchmark, LoadedBenchmark

__all__ = ["benchmark_names", "load_benchmark"]

_logger = logging.getLogger(__name__)


def benchmark_names() -> tuple[str, ...]:
    """Return the names of all benchmarks, built in or installed, sorted."""
    return registry.names("benchmark")


def load_benchmark(name: str, **params: Any) -> LoadedBenchmark:
    """Read a benchmark by name. The source that was read, rows and digests are logged.

    Args:
        name: One of :func:`benchmark_names`.
        **params: Parameters of the benchmark's class.

    Raises:
        UnknownStrategyError: No benchmark has this name.
        PluginError: It is installed but cannot be loaded.
        ArgumentTypeError: ``params`` do not fit its constructor.
        ArgumentValueError: A parameter cannot be used.
        DataSourceError: The rows cannot be read, or are not those pinned.
    """
    loaded = cast("Benchmark", registry.build("benchmark", name, params)).load()
    rows = ", ".join(f"{split.name} {len(split)} ({split.digest[:12]})" for split in loaded.splits)
    _logger.info("benchmark %s: %s from %s", loaded.name, rows, loaded.source)
    return loaded
