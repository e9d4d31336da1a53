"""Measures what one call keeps of planted facts."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from combee_bench.asking import Asker
from combee_bench.planted import INSTRUCTION, PlantedFact, planted_in, planted_record
from combee_bench.tuning.laws import Sample

# The prompts are those of parallel-scan's own calls: any other would measure another thing.
from combee_dspy.aggregators import LearnFromExamples, MergeLessons, parse_lessons
from combee_dspy.records import FailedCall
from combee_dspy.reflections import render_records
from combee_dspy.streams import derive

__all__ = ["Probe", "probe"]

_MOST_LESSONS = 32
_COPIES = (1, 2)


@dataclass(frozen=True, slots=True)
class Probe:
    """What the calls of a probe kept.

    Attributes:
        reads: Calls over records.
        merges: Calls over lists of lessons.
        failed: Errors of the calls that failed after all retries; they are no sample.
    """

    reads: tuple[Sample, ...]
    merges: tuple[Sample, ...]
    failed: tuple[str, ...]


async def probe(
    ask: Asker, facts: Sequence[PlantedFact], sizes: Sequence[int], calls: int, seed: int
) -> Probe:
    """Measure per-call retention at several sizes, with the prompts of ``parallel-scan``.

    Records and lesson lists are planted, each lesson once, so what is kept is
    read off exactly. Merges are measured at each size
    twice: every lesson in one list, and every lesson in two of the lists.
    All calls are in flight at once.

    Args:
        ask: The way to the LM.
        facts: What is planted.
        sizes: Different lessons in one call.
        calls: Calls per kind and size.
        seed: Where choices and orders come from.
    """
    failed: list[str] = []

    async def read(m: int, call: int) -> Sample | None:
        chosen = derive(seed, "read", m, call).sample(list(facts), m)
        return await measure(LearnFromExamples, _read_input(chosen), chosen, 1, ("read", m, call))

    async def merge(m: int, copies: int, call: int) -> Sample | None:
        stream = derive(seed, "merge", m, copies, call)
        chosen = stream.sample(list(facts), m)
        return await measure(
            MergeLessons,
            _merge_input(chosen, copies, stream),
            chosen,
            copies,
            ("merge", m, copies, call),
        )

    async def measure(
        signature: Any,
        inputs: dict[str, Any],
        chosen: Sequence[PlantedFact],
        copies: int,
        place: tuple[str | int, ...],
    ) -> Sample | None:
        answer = await ask(signature, inputs, place, "proposer")
        if isinstance(answer, FailedCall):
            failed.append(answer.error)
            return None
        texts, _ = parse_lessons(getattr(answer, "lessons", None))
        return Sample(len(chosen), copies, len(planted_in(chosen, texts)))

    reads = [read(m, call) for m in sizes for call in range(calls)]
    merges = [
        merge(m, x, call) for m in sizes for x in _COPIES for call in range(calls) if m * x > 1
    ]
    samples = await asyncio.gather(*reads, *merges)
    first, rest = samples[: len(reads)], samples[len(reads) :]
    return Probe(
        tuple(sample for sample in first if sample is not None),
        tuple(sample for sample in rest if sample is not None),
        tuple(failed),
    )


def _read_input(facts: Sequence[PlantedFact]) -> dict[str, Any]:
    return {
        "current_instruction": INSTRUCTION,
        "examples_with_feedback": render_records(
            planted_record(fact, index) for index, fact in enumerate(facts)
        ),
        # What a call is able to write is measured, not what it is allowed to.
        "most_lessons": max(_MOST_LESSONS, len(facts)),
    }


def _merge_input(
    facts: Sequence[PlantedFact], copies: int, stream: random.Random
) -> dict[str, Any]:
    count = max(2, math.isqrt(len(facts) * copies))
    lists: list[list[str]] = [[] for _ in range(count)]
    for number, fact in enumerate(facts):
        for copy in range(copies):
            # Neighbouring lists: two copies never meet in one.
            lists[(number * copies + copy) % count].append(fact.line)
    for lines in lists:
        stream.shuffle(lines)
    return {"current_instruction": INSTRUCTION, "lesson_lists": [lines for lines in lists if lines]}
