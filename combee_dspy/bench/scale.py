"""A scan alone, from ten reflections to ten thousand: seconds, calls, tokens, depth, CPU and memory.

    combee bench scale --json scale.json --svg scale.svg

No language model is involved: a service on this machine knows one planted fact
a reflection. Each scan runs in a process of its own, so its memory is its own,
with the service outside it. Beside what was measured stands what the plan says:
its levels, and the seconds that so many calls take on so many slots by the
service's latency law. What the calls write is taken from the run, all else is not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from combee_dspy import registry
from combee_dspy.bench.record import environment
from combee_dspy.bench.scale_picture import scale_svg
from combee_dspy.bench.scale_rows import MEMORY_LIMIT_MIB, ScaleRow, Slope, predicted_seconds, slope_of, steps_of
from combee_dspy.exceptions import ArgumentValueError, CombeeError
from combee_dspy.lms import SimulatedConfig, SimulatedQuestion, SimulatedService, SimulatedTask
from combee_dspy.retention import plant
from combee_dspy.streams import derive_seed

__all__ = ["LABEL", "SIZES", "ScaleOptions", "main", "run_scale", "scale_code", "scale_record", "slopes", "table"]

SIZES = (10, 30, 100, 300, 1_000, 3_000, 10_000)
"""Reflections of each scan."""

LABEL = "simulated service, no language model"


@dataclass(frozen=True, slots=True)
class ScaleOptions:
    """What is measured.

    Attributes:
        sizes: Reflections of each scan, each at least 1.
        aggregators: Names, each with its default settings.
        slots: Calls that the service serves at once, and threads of the client.
        time_scale: Wall seconds for one simulated second; 0 answers at once and says nothing about seconds.
        seed: Where everything random comes from.
    """

    sizes: tuple[int, ...] = SIZES
    aggregators: tuple[str, ...] = ("union", "parallel-scan")
    slots: int = 64
    time_scale: float = 1.0
    seed: int = 0


def run_scale(options: ScaleOptions | None = None) -> Iterator[ScaleRow]:
    """Scan, one setting after the other; the rows come one at a time.

    Args:
        options: What to measure; the defaults where ``None``.

    Raises:
        ArgumentValueError: A size or an aggregator cannot be used.
        CombeeError: A scan's process failed.
    """
    options = options or ScaleOptions()
    if not options.sizes or min(options.sizes) < 1:
        raise ArgumentValueError("sizes", options.sizes, "holds no size, or one below 1", "Give 10,100,1000.")
    for name in options.aggregators:
        registry.resolve("aggregator", name)
    return (_row(name, size, options) for name in options.aggregators for size in options.sizes)


def _row(aggregator: str, size: int, options: ScaleOptions) -> ScaleRow:
    seed = derive_seed(options.seed, "bench scale", size) % 2**31
    facts = plant(size, seed)
    questions = tuple(SimulatedQuestion(one.question, one.code, one.wrong, one.code, one.lesson) for one in facts)
    config = SimulatedConfig(seed=seed, time_scale=options.time_scale, slots=options.slots, log_calls=True)
    with SimulatedService(config, SimulatedTask(questions, ("code",), base_rate=0.0)) as service:
        job = {"aggregator": aggregator, "reflections": size, "api_base": service.api_base}
        found = _in_own_process({**job, "slots": options.slots, "seed": seed})
        calls = service.calls()
    steps, own = steps_of(found["batches"], calls)
    served = sorted(calls, key=lambda call: call.arrived)[:own]
    timed = options.time_scale > 0 and bool(served)
    return ScaleRow(
        aggregator=aggregator,
        reflections=size,
        planned=tuple(found["planned"]),
        steps=steps,
        simulated_seconds=max(call.ended for call in served) - served[0].arrived if timed else None,
        predicted_seconds=predicted_seconds(steps, options.slots, config.latency, seed) if timed else None,
        tokens={"proposer": (sum(c.prompt_tokens for c in served), sum(c.completion_tokens for c in served))},
        notes=tuple(found["notes"]),
        **{name: found[name] for name in _FOUND},
    )


_FOUND = (
    "seconds",
    "cpu_seconds",
    "retention_seconds",
    "retention_cpu_seconds",
    "base_mib",
    "peak_mib",
    "lessons",
    "covered",
    "failed",
    "refused",
)


def _in_own_process(job: dict[str, Any]) -> dict[str, Any]:
    environ = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    command = [sys.executable, "-m", "combee_dspy.bench.scale_one", json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)  # noqa: S603 - this package
    if done.returncode:
        raise CombeeError(
            f"the scan of {job['reflections']:,} reflections by {job['aggregator']} failed: {done.stderr}"
        )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def slopes(rows: Sequence[ScaleRow]) -> dict[str, dict[str, Slope | None]]:
    """Return how seconds, the plan's seconds, calls, tokens and CPU grow with n, by aggregator."""
    found: dict[str, dict[str, Slope | None]] = {}
    for name in dict.fromkeys(row.aggregator for row in rows):
        own = [row for row in rows if row.aggregator == name]
        found[name] = {
            "seconds": slope_of((row.reflections, row.simulated_seconds) for row in own),
            "plan's seconds": slope_of((row.reflections, row.predicted_seconds) for row in own),
            "wall seconds": slope_of((row.reflections, row.seconds) for row in own),
            "calls": slope_of((row.reflections, float(row.calls)) for row in own),
            "tokens": slope_of((row.reflections, float(sum(map(sum, row.tokens.values())))) for row in own),
            "CPU seconds": slope_of((row.reflections, row.cpu_seconds + row.retention_cpu_seconds) for row in own),
        }
    return found


def scale_code(rows: Iterable[ScaleRow]) -> int:
    """Return 1 where a scan was deeper than planned, took too much memory, failed or ended in no edit; else 0."""
    return int(not all(row.holds for row in rows))


def scale_record(options: ScaleOptions, rows: Sequence[ScaleRow]) -> dict[str, Any]:
    """Return the measurement as plain JSON data."""
    machine, versions = environment()
    grown = slopes(rows)
    return {
        "label": LABEL,
        "simulated": True,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "versions": versions,
        "options": asdict(options),
        "memory_limit_mib": MEMORY_LIMIT_MIB,
        "slopes": {name: {what: one and asdict(one) for what, one in own.items()} for name, own in grown.items()},
        "rows": [
            {**asdict(row), "depth": row.depth, "planned_depth": row.planned_depth, "holds": row.holds} for row in rows
        ],
    }


def table(rows: Sequence[ScaleRow]) -> str:
    """Return a Markdown table of the rows, and one of the slopes."""
    head = "aggregator | n | calls | depth (plan) | seconds | plan says | wall s | CPU s | retention CPU s | peak MiB"
    lines = [f"| {head} | prompt tokens | completion tokens | lessons | edit |"]
    lines.append("| --- " + "| ---: " * 12 + "| --- |")
    for row in rows:
        prompt, completion = row.tokens["proposer"]
        shape = "+".join(str(step.calls) for step in row.steps)
        lines.append(
            f"| {row.aggregator} | {row.reflections:,} | {shape} | {row.depth} ({row.planned_depth}) "
            f"| {_said(row.simulated_seconds)} | {_said(row.predicted_seconds)} | {row.seconds:.1f} "
            f"| {row.cpu_seconds:.1f} | {row.retention_cpu_seconds:.1f} | {row.peak_mib:,.0f} "
            f"| {prompt:,} | {completion:,} | {row.lessons:,} | {'made' if row.refused is None else row.refused} |"
        )
    lines += ["", "| aggregator | grows with n | exponent | 95 % interval |", "| --- | --- | ---: | --- |"]
    for name, own in slopes(rows).items():
        lines += [
            f"| {name} | {what} | {one.value:.2f} | {one.low:.2f} to {one.high:.2f} |"
            for what, one in own.items()
            if one is not None
        ]
    return "\n".join(lines)


def _said(seconds: float | None) -> str:
    return "—" if seconds is None else f"{seconds:.1f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for and print the table.

    Returns:
        The exit code (:func:`scale_code`).
    """
    parser = argparse.ArgumentParser(prog="combee bench scale", description=__doc__.partition("\n")[0])
    defaults = ScaleOptions()
    parser.add_argument("--sizes", default=",".join(map(str, defaults.sizes)), help="reflections, by comma")
    parser.add_argument("--aggregators", default=",".join(defaults.aggregators), help="names, by comma")
    parser.add_argument("--slots", type=int, default=defaults.slots, help="calls served at once")
    parser.add_argument("--time-scale", type=float, default=defaults.time_scale, help="wall seconds of a simulated one")
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--json", type=Path, help="write figures, machine and versions here")
    parser.add_argument("--svg", type=Path, help="write a picture here")
    given = parser.parse_args(arguments)
    options = ScaleOptions(
        sizes=tuple(int(size) for size in given.sizes.split(",")),
        aggregators=tuple(given.aggregators.split(",")),
        slots=given.slots,
        time_scale=given.time_scale,
        seed=given.seed,
    )
    rows: list[ScaleRow] = []
    try:
        for row in run_scale(options):
            rows.append(row)
            sys.stderr.write(f"{row.aggregator}, {row.reflections:,} reflections: {row.seconds:.0f} s\n")
    finally:
        # Minutes were spent on each row: one that fails must not take the others with it.
        if rows:
            _told(options, rows, given.json, given.svg)
    return scale_code(rows)


def _told(options: ScaleOptions, rows: Sequence[ScaleRow], record: Path | None, picture: Path | None) -> None:
    label = f"{LABEL}; {options.slots} slots"
    sys.stdout.write(f"{label}\n\n{table(rows)}\n")
    if record is not None:
        record.write_text(json.dumps(scale_record(options, rows), indent=2) + "\n", encoding="utf-8")
    if picture is not None:
        picture.write_text(scale_svg(rows, label), encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
