"""One scan in a process of its own, so that its memory is its own. Reads a job from its argument, writes JSON.

The service runs elsewhere: what is measured here is the client alone, DSPy's import included.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

__all__ = ["peak_mib", "run_one"]


class _Counted:
    """A way to the LM that notes each batch of calls."""

    def __init__(self, predict: Any) -> None:
        self._predict = predict
        self.batches: list[tuple[str, int]] = []

    def __call__(self, signature: Any, inputs: Sequence[dict[str, Any]], *, role: Any = "proposer") -> Sequence[Any]:
        self.batches.append((signature.__name__, len(inputs)))
        answers: Sequence[Any] = self._predict(signature, inputs, role=role)
        return answers


def peak_mib() -> float:
    """Return the most memory that this process has held, in MiB; 0 where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows has no such module.
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def run_one(job: dict[str, Any]) -> dict[str, Any]:
    """Scan, measure what was kept, and edit the instruction.

    Args:
        job: ``aggregator``, ``reflections``, ``api_base``, ``slots`` and ``seed``.

    Returns:
        Plain JSON data; see :class:`combee_dspy.bench.scale_rows.ScaleRow`.
    """
    import dspy

    from combee_dspy import registry
    from combee_dspy.events import ErrorRaised, Event, ScanStarted
    from combee_dspy.lms import LMPort
    from combee_dspy.operators import Insert, OperatorInput
    from combee_dspy.records import Refusal
    from combee_dspy.retention import INSTRUCTION, measure_retention, plant, planted_record
    from combee_dspy.rollouts import Threads, rarely_collected
    from combee_dspy.strategies import StrategyContext

    aggregator: Any = registry.resolve("aggregator", job["aggregator"])
    seed = int(job["seed"])
    facts = plant(int(job["reflections"]), seed)
    reflections = [planted_record(fact, index) for index, fact in enumerate(facts)]
    events: list[Event] = []
    lm = dspy.LM("openai/simulated", api_base=job["api_base"], api_key="simulated", cache=False)
    base = peak_mib()
    with rarely_collected(), closing(Threads().start(int(job["slots"]))) as session:
        counted = _Counted(LMPort(session, {"proposer": lm}, dspy.JSONAdapter()).predict)
        context = StrategyContext("code", INSTRUCTION, counted, events.append, seed=seed)
        since, spent = time.monotonic(), time.process_time()
        lessons = aggregator.aggregate(reflections, context)
        seconds, cpu = time.monotonic() - since, time.process_time() - spent
        scan, since, spent = list(counted.batches), time.monotonic(), time.process_time()
        retained = measure_retention(reflections, lessons) if lessons.rewrite is None else ()
        retention_seconds, retention_cpu = time.monotonic() - since, time.process_time() - spent
        given = OperatorInput(
            instruction=INSTRUCTION, demonstrations=(), signature=None, lessons=lessons, runs=(), perfect_score=1.0
        )
        edit = Insert().apply(given, context)
    return {
        "planned": next(list(event.levels) for event in events if isinstance(event, ScanStarted)),
        "batches": scan,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "retention_seconds": retention_seconds,
        "retention_cpu_seconds": retention_cpu,
        "base_mib": base,
        "peak_mib": peak_mib(),
        "lessons": len(lessons.lessons),
        "covered": sum(one.covered for one in retained) / len(retained) if retained else None,
        "failed": sum(node.failed is not None for node in lessons.nodes),
        "refused": edit.reason if isinstance(edit, Refusal) else None,
        "notes": list(dict.fromkeys(event.error for event in events if isinstance(event, ErrorRaised)))[:10],
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run_one(json.loads(sys.argv[1]))) + "\n")
