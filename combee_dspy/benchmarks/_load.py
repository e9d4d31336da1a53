"""Benchmarks by name."""

from __future__ import annotations

from typing import Any, cast

from combee_dspy import registry
from combee_dspy.benchmarks._base import BaseBenchmark, Benchmark

__all__ = ["benchmark_names", "load_benchmark"]


def benchmark_names() -> tuple[str, ...]:
    """Return the names of all benchmarks, built in or installed, sorted."""
    return registry.names("benchmark")


def load_benchmark(name: str, **params: Any) -> Benchmark:
    """Read a benchmark by name.

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
    return cast("BaseBenchmark", registry.build("benchmark", name, params)).load()
