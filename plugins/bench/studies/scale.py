"""How a run grows: with its rollouts, with its examples, and with the rollouts that are at once.

A service in a process of its own answers every call after the same time, and no language model.
Each row is measured in a fresh process, and once.
"""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dspy

from combee_bench.options import Scale, Sizes
from combee_bench.surroundings import in_own_process, peak_mib, quietly
from combee_dspy import Budget, Combee, Validation
from combee_dspy.exceptions import ServiceError
from combee_dspy.strategies import parameters
from combee_dspy.testing import ScriptedLM, ScriptedRequest, as_chat
from studies.client import ANSWER, instant_service, service_lm

# So many rollouts for each of those at once, and never fewer in all.
_WAVES = 8
_LEAST = 32


@parameters
class ScaleOptions:
    """Measure how a run grows, where a service answers every call after the same time.

    Args:
        slots: Rollouts at once. Each validates eight times as many examples, 32 or more.
        seconds: What the service takes for a call of those rows; in all others it answers at once.
        rollouts: Examples that a run validates, 64 at once.
        examples: Examples that a run learns from and validates, 64 at once.
    """

    slots: Sizes = (1, 4, 16, 64, 256, 1_024)
    seconds: Scale = 0.6
    rollouts: Sizes = (1_000, 10_000, 100_000)
    examples: Sizes = (300, 1_000, 3_000, 10_000)


@dataclass(frozen=True, slots=True)
class ScaleRow:
    """What a run took.

    Attributes:
        grows: What the rows of this kind differ in: ``slots``, ``rollouts`` or ``examples``.
        slots: Rollouts at once.
        rollouts: Rollouts of the run.
        seconds: Wall-clock seconds.
        share_of_ideal: The seconds that full slots would take, of those that it took; ``None``
            where the service answers at once.
        cpu_ms: CPU milliseconds a rollout, all threads of the run's process.
        peak_mib: The most memory that the process held.
        exponent: k of seconds ~ size^k from the row before, ``None`` for the first of its kind and
            where slots differ.
    """

    grows: str
    slots: int
    rollouts: int
    seconds: float
    share_of_ideal: float | None
    cpu_ms: float
    peak_mib: float
    exponent: float | None = None


def run(options: ScaleOptions) -> Iterator[ScaleRow]:
    """Measure row by row.

    Raises:
        ServiceError: The service, or a measurement, did not run.
    """
    with instant_service(options.seconds) as api_base:
        for slots in options.slots:
            count = max(_LEAST, _WAVES * slots)
            ideal = math.ceil(count / slots) * options.seconds
            yield _row("slots", api_base, slots, count, ideal)
    with instant_service() as api_base:
        for kind, sizes in (("rollouts", options.rollouts), ("examples", options.examples)):
            before: tuple[int, float] | None = None
            for size in sizes:
                row = _row(kind, api_base, 64, size, before=before)
                before = size, row.seconds
                yield row


def _row(
    kind: str,
    api_base: str,
    slots: int,
    size: int,
    ideal: float = 0.0,
    before: tuple[int, float] | None = None,
) -> ScaleRow:
    figures = in_own_process(__name__, kind, api_base, str(slots), str(size))
    seconds, rollouts = figures["seconds"], int(figures["rollouts"])
    exponent = math.log(seconds / before[1]) / math.log(size / before[0]) if before else None
    share = ideal / seconds if ideal else None
    cpu_ms = 1000 * figures["cpu"] / rollouts
    return ScaleRow(kind, slots, rollouts, seconds, share, cpu_ms, figures["peak_mib"], exponent)


def _rows(count: int) -> list[dspy.Example]:
    return [
        dspy.Example(question=f"What is {n} + {n}?", answer=ANSWER).with_inputs("question")
        for n in range(count)
    ]


def _right(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> float:
    return float(pred.answer == gold.answer)


def _wrong(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> Any:
    """Return a failure whose feedback holds a lesson; ten examples share it."""
    number = int(re.findall(r"\d+", gold.question)[0]) // 10
    return dspy.Prediction(score=0.0, feedback=f"Lesson: sums of box{number} end in c{number}.")


def _read(request: ScriptedRequest) -> str:
    """Answer as a reader that returns every lesson of its records and relates none."""
    if "contradictory" in request.text:
        return as_chat({"same": [], "contradictory": [], "narrower": [], "empty": []})
    return as_chat({"lessons": list(dict.fromkeys(re.findall(r"Lesson: (.*?\.)", request.text)))})


def _validate(lm: dspy.BaseLM, slots: int, size: int) -> None:
    """Validate a student: journal, books, memo and all."""
    optimizer = Combee(
        _right,
        budget=Budget(updates=1),
        reflection_lm=lm,
        num_threads=slots,
        validation=Validation(probe=False),
        tracker=(),
    )
    rows = _rows(size)
    program: Any = optimizer.compile(
        dspy.Predict("question -> answer"), trainset=rows[:3], valset=rows
    )
    if program.combee_report.best_score != 1.0:
        raise ServiceError(f"the best score is {program.combee_report.best_score}, 1 was expected")


def _learn(lm: dspy.BaseLM, slots: int, size: int) -> None:
    """Learn from an epoch in which nothing is right; 24 examples validate."""
    optimizer = Combee(
        _wrong,
        budget=Budget(epochs=1),
        reflection_lm=ScriptedLM(_read),
        num_threads=slots,
        validation=Validation(probe=False),
        tracker=(),
    )
    rows = _rows(size + 24)
    optimizer.compile(dspy.Predict("question -> answer"), trainset=rows[:size], valset=rows[size:])


_KINDS: Mapping[str, Callable[[dspy.BaseLM, int, int], None]] = {
    "slots": _validate,
    "rollouts": _validate,
    "examples": _learn,
}


def measure(arguments: Sequence[str]) -> dict[str, float]:
    """Run once, and return its rollouts, wall-clock and CPU seconds, and the most memory."""
    kind, api_base, slots, size = arguments
    lm = service_lm(api_base)
    with quietly(), dspy.context(lm=lm):
        begun, cpu = time.perf_counter(), time.process_time()
        _KINDS[kind](lm, int(slots), int(size))
        seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    return {"seconds": seconds, "cpu": cpu, "rollouts": int(size), "peak_mib": peak_mib()}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(sys.argv[1:])) + "\n")
