"""A measurement with what a reader needs to judge it: machine, date, versions, command."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from combee_dspy.bench.speed import MethodResult, SpeedOptions

__all__ = ["LABEL", "environment", "speed_record"]

LABEL = "simulated service, no language model"
"""What is said wherever these figures are shown."""

_DISTRIBUTIONS = ("combee-dspy", "dspy", "gepa", "litellm")


def speed_record(options: SpeedOptions, results: Iterable[MethodResult], command: str) -> dict[str, Any]:
    """Return a run of :func:`combee_dspy.bench.run_speed` as plain JSON data.

    Args:
        options: What was measured.
        results: What came of it.
        command: The command that repeats it.
    """
    machine, versions = environment()
    return {
        "label": LABEL,
        "simulated": True,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "machine": machine,
        "versions": versions,
        "options": asdict(options),
        "results": [result.to_dict() for result in results],
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
