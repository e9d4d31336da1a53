"""What a measurement stands on: machine and versions, the rows, and quiet while it runs."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from combee_dspy.exceptions import ArgumentValueError, ServiceError

if TYPE_CHECKING:
    from combee_dspy.benchmarks import LoadedBenchmark, Split

__all__ = [
    "LABEL",
    "environment",
    "first_rows",
    "in_own_process",
    "load_rows",
    "own_module",
    "peak_mib",
    "quietly",
    "versions_of",
]

LABEL = "simulated service, no language model"
"""What is said wherever figures of the simulated service are shown."""

_DISTRIBUTIONS = ("combee-dspy", "combee-bench", "dspy", "gepa")
# Benchmarks that make as many rows as they are asked for. Others are cut.
_MADE_TO_SIZE = ("formula-mini",)


def environment() -> dict[str, Any]:
    """Return date, machine and versions: what a reader needs to judge a figure."""
    # The client's own work counts in the seconds, so a busy machine must show.
    load = [round(value, 2) for value in os.getloadavg()] if hasattr(os, "getloadavg") else None
    machine = {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_average": load,
    }
    versions = {"python": platform.python_version(), **versions_of(_DISTRIBUTIONS)}
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "versions": versions,
    }


def versions_of(distributions: tuple[str, ...]) -> dict[str, str]:
    """Return the version of each distribution that is installed."""
    versions = {}
    for name in distributions:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")


def load_rows(benchmark: str, params: Mapping[str, Any], **sizes: int) -> LoadedBenchmark:
    """Return a benchmark whose splits are cut to sizes.

    Args:
        benchmark: Its name.
        params: Its parameters, without the sizes.
        **sizes: Rows of ``train``, ``validation`` and ``heldout``.

    Raises:
        ArgumentValueError: It has fewer rows than asked for.
        DataSourceError: It cannot be read.
    """
    from combee_dspy.benchmarks import load_benchmark

    loaded = load_benchmark(
        benchmark, **{**params, **(sizes if benchmark in _MADE_TO_SIZE else {})}
    )
    train, validation, heldout = (first_rows(split, sizes[split.name]) for split in loaded.splits)
    return replace(loaded, train=train, validation=validation, heldout=heldout)


def first_rows(split: Split, size: int) -> Split:
    """Return a split cut to its first rows.

    Raises:
        ArgumentValueError: It has fewer.
    """
    if size > len(split):
        problem, remedy = f"cannot be taken from {len(split)} rows", f"Give 1 to {len(split)}."
        raise ArgumentValueError(split.name, size, problem, remedy)
    return replace(split, examples=split.examples[:size], row_hashes=split.row_hashes[:size])


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Keep progress bars and log lines of what is measured out of what is printed."""
    names = ("dspy", "gepa", "combee_dspy", "optuna")
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def own_module(name: str, *arguments: str) -> dict[str, Any]:
    """Return what starts a module in a process of its own, as arguments of ``subprocess``."""
    environ = {
        **os.environ,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    return {"args": [sys.executable, "-m", name, *arguments], "env": environ}


def in_own_process(name: str, *arguments: str) -> dict[str, Any]:
    """Run a module in a process of its own, and return the JSON that it writes last.

    Raises:
        ServiceError: It failed.
    """
    done = subprocess.run(
        **own_module(name, *arguments), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ServiceError(f"{name} {' '.join(arguments)} failed: {done.stderr.strip()[-800:]}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def peak_mib() -> float:
    """Return the most memory that this process has held, in MiB; 0 where that is unknown."""
    status = Path("/proc/self/status")
    if status.exists():
        # Not ru_maxrss: it begins with what the process that started this one held.
        peak = next(
            (line for line in status.read_text().splitlines() if line.startswith("VmHWM:")),
            "VmHWM: 0 kB",
        )
        return int(peak.split()[1]) / 2**10
    try:
        import resource
    except ImportError:  # Windows has no such module.
        return 0.0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts in bytes, others in KiB.
    return most / 2**20 if sys.platform == "darwin" else most / 2**10
