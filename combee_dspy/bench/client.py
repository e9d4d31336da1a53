"""How many rollouts a second one process sustains, and what each costs it, on a service that answers at once.

No waiting hides here what a client costs: every row asks the same service, in a
process of its own, and is itself measured in a fresh process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from combee_dspy.bench.client_rows import ROWS, Measured
from combee_dspy.bench.client_service import instant_service
from combee_dspy.bench.record import environment
from combee_dspy.exceptions import ArgumentValueError, ServiceError

__all__ = ["BASELINE", "ClientOptions", "ClientRow", "client_record", "main", "run_client", "table"]

BASELINE = "evaluate-plain"
"""What others are compared with: ``dspy.Evaluate`` with a ``dspy.LM`` as DSPy makes it."""

_WHAT = {
    "client": "the pooled client alone",
    "evaluate-plain": "dspy.Evaluate, dspy.LM",
    "evaluate-pooled": "dspy.Evaluate, pooled",
    "threads-plain": "Combee, threads, dspy.LM",
    "threads-pooled": "Combee, threads, pooled",
    "asyncio-pooled": "Combee, asyncio, pooled",
}

# DSPy keeps the last 10,000 calls, of every LM and every program: memory grows until then, whoever calls.
_HISTORY = 10_000


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """What is measured.

    Attributes:
        rows: Names of :data:`combee_dspy.bench.client_rows.ROWS`, in the order in which they run.
        rollouts: Rollouts of one measurement: one call of two messages each.
        workers: Rollouts at once.
        times: Measurements of each row; the median counts.
        memory: Rollouts over which memory is watched, for the last row; 0 for none.
    """

    rows: tuple[str, ...] = tuple(ROWS)
    rollouts: int = 2_000
    workers: int = 64
    times: int = 3
    memory: int = 0

    def __post_init__(self) -> None:
        for name in self.rows:
            if name not in ROWS:
                raise ArgumentValueError("rows", name, "is no row", f"Give some of {', '.join(ROWS)}.")
        for name, least in (("rollouts", 1), ("workers", 1), ("times", 1), ("memory", 0)):
            if getattr(self, name) < least:
                raise ArgumentValueError(name, getattr(self, name), f"is below {least}", f"Give {least} or more.")


@dataclass(frozen=True, slots=True)
class ClientRow:
    """One row: the median of its measurements, by rollouts a second.

    Attributes:
        name: The row's name.
        rate: Rollouts a second.
        cpu_ms: CPU milliseconds a rollout.
        lowest: The lowest rate measured.
        highest: The highest.
        memory: Pairs of rollouts done and bytes resident, of the longest measurement.
    """

    name: str
    rate: float
    cpu_ms: float
    lowest: float
    highest: float
    memory: tuple[tuple[int, int], ...] = ()

    @property
    def growth(self) -> float | None:
        """Bytes a rollout that memory grew by, once DSPy's history was full; ``None`` where that was not watched."""
        late = [sample for sample in self.memory if sample[0] >= _HISTORY * 1.2]
        if len(late) < 3:
            return None
        return statistics.linear_regression(*zip(*late, strict=True)).slope


def run_client(options: ClientOptions) -> Iterator[ClientRow]:
    """Measure row by row.

    Args:
        options: What is measured.

    Raises:
        ServiceError: The service, or a measurement, did not run.
    """
    with instant_service() as api_base:
        for name in options.rows:
            found = [_measured(name, api_base, options.rollouts, options.workers) for _ in range(options.times)]
            yield _row(name, found)
        if options.memory:
            name = options.rows[-1]
            yield _row(
                f"{name}, {options.memory:,} rollouts", [_measured(name, api_base, options.memory, options.workers)]
            )


def _row(name: str, found: Sequence[Measured]) -> ClientRow:
    ordered = sorted(found, key=lambda one: one.rate)
    middle, rates = ordered[(len(ordered) - 1) // 2], [one.rate for one in ordered]
    return ClientRow(name, middle.rate, middle.cpu_ms, rates[0], rates[-1], middle.memory)


def _measured(name: str, api_base: str, rollouts: int, workers: int) -> Measured:
    command = [sys.executable, "-m", "combee_dspy.bench.client_rows", name, api_base, str(rollouts), str(workers)]
    environ = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)  # noqa: S603 - our own module
    if done.returncode != 0:
        raise ServiceError(f"{name} could not be measured: {done.stderr.strip()[-800:]}")
    count, seconds, cpu_seconds, memory = json.loads(done.stdout.strip().splitlines()[-1])
    return Measured(count, seconds, cpu_seconds, tuple((at, size) for at, size in memory))


def table(rows: Sequence[ClientRow]) -> str:
    """Return a Markdown table."""
    base = next((row.rate for row in rows if row.name == BASELINE), None)
    lines = ["| | rollouts a second | lowest to highest | CPU ms a rollout | of dspy.Evaluate |"]
    lines.append("| --- | ---: | ---: | ---: | ---: |")
    for row in rows:
        times = "" if base is None else f"{row.rate / base:.2f} ×"
        lines.append(
            f"| {_WHAT.get(row.name, row.name)} | {row.rate:,.0f} | {row.lowest:,.0f} to {row.highest:,.0f} "
            f"| {row.cpu_ms:.2f} | {times} |"
        )
    for row in rows:
        if row.growth is not None:
            first, last = row.memory[0][1] / 2**20, row.memory[-1][1] / 2**20
            lines += ["", f"{row.name}: {first:,.0f} MiB before, {last:,.0f} MiB after."]
            lines[-1] += f" Past {_HISTORY:,} rollouts, which DSPy's history keeps: {row.growth:+,.0f} bytes a rollout."
    return "\n".join(lines)


def client_record(options: ClientOptions, rows: Sequence[ClientRow], command: str) -> dict[str, Any]:
    """Return a measurement as plain JSON data.

    Args:
        options: What was measured.
        rows: What it came to.
        command: The command that repeats it.
    """
    machine, versions = environment()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "machine": machine,
        "versions": versions,
        "rollouts": options.rollouts,
        "workers": options.workers,
        "times": options.times,
        "rows": [
            {
                "name": row.name,
                "what": _WHAT.get(row.name, row.name),
                "rollouts_per_second": row.rate,
                "lowest": row.lowest,
                "highest": row.highest,
                "cpu_ms": row.cpu_ms,
                "resident_bytes": [list(sample) for sample in row.memory],
                "growth_bytes": row.growth,
            }
            for row in rows
        ],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line asks for and print the table."""
    parser = argparse.ArgumentParser(prog="combee bench client", description=__doc__)
    parser.add_argument("--rows", default=",".join(ROWS), help="names, by comma")
    parser.add_argument("--rollouts", type=int, default=2_000)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--memory", type=int, default=0, help="watch memory over so many rollouts of the last row")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args(arguments)
    names = tuple(name.strip() for name in given.rows.split(",") if name.strip())
    options = ClientOptions(names, given.rollouts, given.workers, given.times, given.memory)
    rows = []
    for row in run_client(options):
        rows.append(row)
        sys.stderr.write(f"{row.name}: {row.rate:,.0f} rollouts a second\n")
    sys.stdout.write(table(rows) + "\n")
    if given.json is not None:
        command = f"combee bench client --rows {','.join(names)} --rollouts {options.rollouts}"
        command += f" --workers {options.workers} --times {options.times} --memory {options.memory}"
        given.json.write_text(json.dumps(client_record(options, rows, command), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
