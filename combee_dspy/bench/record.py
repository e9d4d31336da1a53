"""A measurement with what a reader needs to judge it: machine, date, versions, command."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from combee_dspy.bench.compare import MARGIN
from combee_dspy.bench.speed import SpeedRun
from combee_dspy.bench.speed_options import LABEL, SpeedOptions
from combee_dspy.bench.speed_quality import MethodResult

__all__ = ["LABEL", "environment", "speed_record"]

_DISTRIBUTIONS = ("combee-dspy", "dspy", "gepa", "litellm")


def speed_record(
    options: SpeedOptions,
    results: Sequence[MethodResult],
    runs: Sequence[SpeedRun],
    command: str,
    *,
    source: str | None = None,
) -> dict[str, Any]:
    """Return a run of :func:`combee_dspy.bench.run_speed` as plain JSON data.

    Args:
        options: What was measured.
        results: What it came to, by method.
        runs: Every run.
        command: The command that repeats it.
        source: Where the rows come from.
    """
    machine, versions = environment()
    return {
        "label": options.label,
        "simulated": options.simulated,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "machine": machine,
        "versions": versions,
        "source": source,
        "service": options.law,
        "margin": MARGIN,
        "options": asdict(options),
        "results": [result.to_dict() for result in results],
        "runs": [run.to_dict() for run in runs],
    }


def environment() -> tuple[dict[str, Any], dict[str, str]]:
    """Return the machine, and the versions of Python and of what is measured, as plain JSON data."""
    return _machine(), {"python": platform.python_version(), **{name: version(name) for name in _DISTRIBUTIONS}}


def _machine() -> dict[str, Any]:
    # The client's own work counts in the seconds, so a busy machine must show.
    load = [round(value, 2) for value in os.getloadavg()] if hasattr(os, "getloadavg") else None
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_average": load,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")
