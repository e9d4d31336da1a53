"""A scan of many reflections stays in its memory, loses no node, and ends in an edit."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import dspy
import pytest

from combee_bench.asking import asker, there
from combee_bench.planted import INSTRUCTION, plant, planted_record, planted_task
from combee_bench.surroundings import peak_mib
from combee_dspy import registry
from combee_dspy.aggregators import measure_retention
from combee_dspy.operators import Insert, OperatorInput
from combee_dspy.records import Refusal
from combee_dspy.strategies import StrategyContext
from combee_dspy.streams import derive_seed
from combee_simulator import SimulatedConfig, SimulatedService

MEMORY_LIMIT_MIB = 1024.0
SLOTS = 64


@pytest.mark.slow
@pytest.mark.parametrize("aggregator", ["union", "parallel-scan"])
def test_a_scan_of_many_reflections_stays_in_its_memory(aggregator: str) -> None:
    from plugins.bench.tests.sizes import show, size

    n = size("reflections", 300)
    seed = derive_seed(size("seed", 0), "bench scale", n) % 2**31
    config = SimulatedConfig(seed=seed, time_scale=size("time_scale", 0), slots=SLOTS)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with SimulatedService(config, planted_task(plant(n, seed))) as service:
        job = {"aggregator": aggregator, "n": n, "seed": seed, "api_base": service.api_base}
        # A process of its own, so that its memory is its own.
        process = subprocess.run(  # noqa: S603 - this file
            [sys.executable, __file__, json.dumps(job)],
            env=environ,
            capture_output=True,
            text=True,
            check=True,
        )
    figures = json.loads(process.stdout.splitlines()[-1])
    show({"aggregator": aggregator, "reflections": n, **figures})
    assert figures["peak_mib"] < MEMORY_LIMIT_MIB
    assert (figures["failed"], figures["refused"]) == (0, None)
    assert figures["lessons"]
    if aggregator == "union":
        # Nearly equal facts are joined: 94.3 % of 300 when this was first measured.
        assert figures["covered"] >= 0.9


async def scan(job: dict[str, Any]) -> dict[str, Any]:
    """Scan, measure what the lessons cover, and edit the instruction."""
    aggregator: Any = registry.build("aggregator", job["aggregator"])
    facts = plant(job["n"], job["seed"])
    reflections = [planted_record(fact, index) for index, fact in enumerate(facts)]
    lm = dspy.LM("openai/simulated", api_base=job["api_base"], api_key="simulated", cache=False)
    async with asker(lm, SLOTS, dspy.JSONAdapter()) as ask:
        context = StrategyContext("code", INSTRUCTION, ask, lambda event: None, seed=job["seed"])
        started, cpu = time.monotonic(), time.process_time()
        lessons = await aggregator.aggregate(there(reflections), context)
        seconds, cpu_seconds = time.monotonic() - started, time.process_time() - cpu
        total = ask.costs().total
        fates = measure_retention(lessons, reflections)
        edit = await Insert().apply(OperatorInput(INSTRUCTION, (), None, lessons), context)
    nodes = Counter(node.level for node in lessons.nodes)
    return {
        "levels": [nodes[level] for level in sorted(nodes)],
        "calls": total.calls,
        "tokens": total.tokens,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "peak_mib": round(peak_mib()),
        "lessons": len(lessons.lessons),
        "covered": sum(fate.covered for fate in fates) / len(fates),
        "failed": sum(node.failed is not None for node in lessons.nodes),
        "refused": edit.reason if isinstance(edit, Refusal) else None,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(scan(json.loads(sys.argv[1])))) + "\n")
