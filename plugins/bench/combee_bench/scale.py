"""A scan alone, from ten reflections to ten thousand.

A service on this machine knows one planted fact a reflection. Each scan runs in
a process of its own, so its memory is its own, with the service outside it.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from rich.table import Table

from combee_bench.options import ScaleOptions
from combee_bench.pictures import figure
from combee_bench.planted import INSTRUCTION, plant, planted_record, planted_task
from combee_bench.surroundings import LABEL, in_own_process, peak_mib
from combee_bench.tables import by_rows
from combee_dspy.streams import derive_seed
from combee_simulator import SimulatedConfig, SimulatedService

__all__ = ["ScaleRow", "draw", "exponents", "line", "passed", "run", "summary", "table"]

MEMORY_LIMIT_MIB = 1024.0
"""The most memory that a scan of 10,000 reflections may take, DSPy's import included."""

_FEWEST = 3


@dataclass(frozen=True, slots=True)
class ScaleRow:
    """One scan.

    Attributes:
        aggregator: Its name.
        reflections: n.
        levels: Nodes of each level, lowest first; those that code joined count too.
        calls: LM calls.
        simulated_seconds: From the scan's first request to its last answer, on the service's clock;
            ``None`` where nothing waits.
        seconds: Wall seconds of the scan.
        cpu_seconds: CPU seconds of the client meanwhile.
        kept_cpu_seconds: CPU seconds to measure what was kept.
        prompt_tokens: Prompt tokens of the scan.
        completion_tokens: Completion tokens of the scan.
        peak_mib: The most memory that the process held, the measuring of what was kept and the edit
            included.
        lessons: Lessons of the result.
        covered: Share of the reflections that the result covers, as measured from texts.
        failed: Nodes that failed.
        refused: Why the edit was refused; ``None`` where it was made.
    """

    aggregator: str
    reflections: int
    levels: tuple[int, ...]
    calls: int
    simulated_seconds: float | None
    seconds: float
    cpu_seconds: float
    kept_cpu_seconds: float
    prompt_tokens: int
    completion_tokens: int
    peak_mib: float
    lessons: int
    covered: float | None
    failed: int
    refused: str | None

    @property
    def holds(self) -> bool:
        """Whether memory and outcome are as they should be."""
        return self.peak_mib < MEMORY_LIMIT_MIB and not self.failed and self.refused is None


def run(options: ScaleOptions) -> Iterator[ScaleRow]:
    """Scan, one setting after the other; the rows come one at a time.

    Raises:
        UnknownStrategyError: An aggregator is not installed.
        ServiceError: A scan's process failed.
    """
    from combee_dspy import registry

    for name in options.aggregators:
        registry.find("aggregator", name)
    return (_row(name, size, options) for name in options.aggregators for size in options.sizes)


def _row(aggregator: str, size: int, options: ScaleOptions) -> ScaleRow:
    seed = derive_seed(options.seed, "bench scale", size) % 2**31
    config = SimulatedConfig(seed=seed, time_scale=options.time_scale, slots=options.slots)
    with SimulatedService(config, planted_task(plant(size, seed))) as service:
        job = {"aggregator": aggregator, "reflections": size, "seed": seed, "slots": options.slots}
        found = in_own_process(__name__, json.dumps({**job, "url": service.url}))
    return ScaleRow(
        aggregator=aggregator, reflections=size, levels=tuple(found.pop("levels")), **found
    )


async def scanned(job: dict[str, Any]) -> dict[str, Any]:
    """Scan, measure what was kept, and edit the instruction.

    Args:
        job: ``aggregator``, ``reflections``, ``seed``, ``slots`` and ``url``, where the service is.

    Returns:
        Plain JSON data; see :class:`ScaleRow`.
    """
    import dspy

    from combee_bench.asking import asker, there
    from combee_dspy import registry
    from combee_dspy.aggregators import measure_retention
    from combee_dspy.operators import Insert, OperatorInput
    from combee_dspy.records import Refusal
    from combee_dspy.strategies import StrategyContext

    aggregator: Any = registry.build("aggregator", job["aggregator"])
    facts = plant(job["reflections"], job["seed"])
    reflections = [planted_record(fact, index) for index, fact in enumerate(facts)]
    lm = dspy.LM("openai/simulated", api_base=f"{job['url']}/v1", api_key="simulated", cache=False)
    async with asker(lm, job["slots"], dspy.JSONAdapter()) as ask:
        context = StrategyContext(
            "code", INSTRUCTION, ask, lambda kind, **data: None, seed=job["seed"]
        )
        since, spent = time.monotonic(), time.process_time()
        lessons = await aggregator.aggregate(there(reflections), context)
        seconds, cpu = time.monotonic() - since, time.process_time() - spent
        # Now, because the edit may make a call of its own.
        served = json.loads(urlopen(f"{job['url']}/stats").read())  # noqa: S310 - a service of this machine
        total, spent = ask.costs().total, time.process_time()
        retained = measure_retention(lessons, reflections) if lessons.rewrite is None else ()
        kept_cpu = time.process_time() - spent
        given = OperatorInput(
            instruction=INSTRUCTION, demonstrations=(), signature=None, lessons=lessons
        )
        edit = await Insert().apply(given, context)
    nodes = Counter(node.level for node in lessons.nodes)
    return {
        "levels": [nodes[level] for level in sorted(nodes)],
        "calls": total.calls,
        "simulated_seconds": served["clock_seconds"],
        "seconds": seconds,
        "cpu_seconds": cpu,
        "kept_cpu_seconds": kept_cpu,
        "prompt_tokens": total.prompt_tokens,
        "completion_tokens": total.completion_tokens,
        "peak_mib": peak_mib(),
        "lessons": len(lessons.lessons),
        "covered": sum(one.covered for one in retained) / len(retained) if retained else None,
        "failed": sum(node.failed is not None for node in lessons.nodes),
        "refused": edit.reason if isinstance(edit, Refusal) else None,
    }


def exponents(rows: Sequence[ScaleRow]) -> dict[str, dict[str, float | None]]:
    """Return how figures grow with n, by aggregator: 1 where in proportion, 0 where not at all.

    By least squares on the logarithms; ``None`` where fewer than three points are known.
    """
    found: dict[str, dict[str, float | None]] = {}
    for name in dict.fromkeys(row.aggregator for row in rows):
        own = [row for row in rows if row.aggregator == name]
        found[name] = {
            "simulated seconds": _exponent(
                [(row.reflections, row.simulated_seconds) for row in own]
            ),
            "calls": _exponent([(row.reflections, row.calls) for row in own]),
            "tokens": _exponent(
                [(row.reflections, row.prompt_tokens + row.completion_tokens) for row in own]
            ),
            "CPU seconds": _exponent(
                [(row.reflections, row.cpu_seconds + row.kept_cpu_seconds) for row in own]
            ),
        }
    return found


def _exponent(points: Sequence[tuple[float, float | None]]) -> float | None:
    from statistics import linear_regression

    known = [(math.log(n), math.log(y)) for n, y in points if y]
    if len({n for n, _ in known}) < _FEWEST:
        return None
    return linear_regression(*zip(*known, strict=True)).slope


def summary(options: ScaleOptions, rows: Sequence[ScaleRow]) -> dict[str, Any]:
    """Return how figures grow, as plain JSON data."""
    return {
        "memory_limit_mib": MEMORY_LIMIT_MIB,
        "exponents": exponents(rows),
        "holds": [row.holds for row in rows],
    }


def passed(options: ScaleOptions, rows: Sequence[ScaleRow]) -> bool:
    """Whether no scan failed, took too much memory or ended in no edit."""
    return all(row.holds for row in rows)


def line(options: ScaleOptions, row: ScaleRow) -> str:
    """Return what is said of one row when it is there."""
    return f"{row.aggregator}, {row.reflections:,} reflections: {row.seconds:.0f} s"


def table(options: ScaleOptions, rows: Sequence[ScaleRow]) -> Table:
    """Return the rows, and how they grow."""
    notes = [
        f"{name}:"
        f" {', '.join(f'{what} ∝ n^{value:.2f}' for what, value in grown.items() if value is not None)}"
        for name, grown in exponents(rows).items()
    ]
    heads = (
        "<aggregator,n,nodes,calls,simulated s,wall s,CPU s,kept CPU s,peak"
        " MiB,tokens,lessons,covered,<edit"
    )
    shown = (
        (
            row.aggregator,
            f"{row.reflections:,}",
            "+".join(map(str, row.levels)),
            str(row.calls),
            "n/a" if row.simulated_seconds is None else f"{row.simulated_seconds:.1f}",
            *(f"{value:.1f}" for value in (row.seconds, row.cpu_seconds, row.kept_cpu_seconds)),
            f"{row.peak_mib:,.0f}",
            f"{row.prompt_tokens + row.completion_tokens:,}",
            f"{row.lessons:,}",
            "" if row.covered is None else f"{row.covered:.1%}",
            row.refused or "made",
        )
        for row in rows
    )
    return by_rows(f"{LABEL}; {options.slots} slots", heads.split(","), shown, notes)


def draw(options: ScaleOptions, rows: Sequence[ScaleRow], path: Path) -> None:
    """Draw seconds and peak memory against the number of reflections, both axes logarithmic."""
    with figure(path, f"A scan alone, by its number of reflections: {LABEL}", 2) as (
        seconds,
        memory,
    ):
        for name in dict.fromkeys(row.aggregator for row in rows):
            own = [row for row in rows if row.aggregator == name]
            sizes = [row.reflections for row in own]
            seconds.plot(
                sizes, [row.simulated_seconds or row.seconds for row in own], "o-", label=name
            )
            memory.plot(sizes, [row.peak_mib for row in own], "o-", label=name)
        memory.axhline(MEMORY_LIMIT_MIB, color="#222222", linestyle="--", linewidth=0.8)
        for axes, what in (
            (seconds, "seconds of the scan"),
            (memory, "peak memory of the process, MiB"),
        ):
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xlabel("reflections")
            axes.set_title(what, fontsize=9)
        seconds.legend(fontsize=8)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(scanned(json.loads(sys.argv[1])))) + "\n")
