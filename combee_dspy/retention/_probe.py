"""Measures on an endpoint what one call keeps, with planted lessons."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from combee_dspy.aggregators._parse import parse_lessons
from combee_dspy.aggregators._prompts import LearnFromExamples, MergeLessons
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import FailedCall
from combee_dspy.reflections import render_records
from combee_dspy.retention._law import RetentionSample
from combee_dspy.retention._planted import INSTRUCTION, PlantedFact, plant, planted_in, planted_record
from combee_dspy.strategies import PredictFn
from combee_dspy.streams import derive

__all__ = ["ProbeResult", "probe_facts", "probe_retention"]

_MOST_LESSONS = 32
_COPIES = (1, 2)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What the calls of a probe kept.

    Attributes:
        reads: Calls over records.
        merges: Calls over lists of lessons.
        failed: Errors of the calls that failed after all retries; they are no sample.
        calls: LM calls asked for.
    """

    reads: tuple[RetentionSample, ...]
    merges: tuple[RetentionSample, ...]
    failed: tuple[str, ...]
    calls: int


def probe_facts(sizes: Sequence[int], seed: int) -> tuple[PlantedFact, ...]:
    """Return all facts that :func:`probe_retention` draws from: what a simulated service must know."""
    return plant(4 * max(sizes, default=1), seed)


def probe_retention(predict: PredictFn, *, sizes: Sequence[int], calls: int = 6, seed: int = 0) -> ProbeResult:
    """Measure per-call retention at several sizes, with the prompts of ``parallel-scan``.

    Records and lesson lists are planted, each lesson once, so what is kept is
    read off exactly (:func:`planted_in`). Merges are measured at each size
    twice: every lesson in one list, and every lesson in two of the lists.
    All calls of a kind are in flight at once.

    Args:
        predict: The way to the LM.
        sizes: Different lessons in one call, each at least 1. Two sizes are the
            least for a law with a limit; take some above the limit that is expected.
        calls: Calls per kind and size, at least 1.
        seed: Where facts and orders come from.

    Raises:
        ArgumentValueError: A number is out of range.
    """
    if not sizes or min(sizes) < 1:
        raise ArgumentValueError("sizes", sizes, "holds no size, or one below 1", "Give sizes such as 4, 16, 48.")
    if calls < 1:
        raise ArgumentValueError("calls", calls, "is below 1", "Give at least one call per size.")
    facts = probe_facts(sizes, seed)
    read_plan = [(m, 1, _drawn(facts, m, derive(seed, "read", m, call))) for m in sizes for call in range(calls)]
    merge_plan = [
        (m, copies, _drawn(facts, m, derive(seed, "merge", m, copies, call)))
        for m in sizes
        for copies in _COPIES
        for call in range(calls)
        if m * copies > 1
    ]
    reads = predict(LearnFromExamples, [_read_input(chosen) for _, _, chosen in read_plan])
    inputs = [
        _merge_input(chosen, copies, derive(seed, "lists", number))
        for number, (_, copies, chosen) in enumerate(merge_plan)
    ]
    merges = predict(MergeLessons, inputs) if inputs else ()
    failed: list[str] = []
    return ProbeResult(
        _samples(read_plan, reads, failed),
        _samples(merge_plan, merges, failed),
        tuple(failed),
        len(read_plan) + len(merge_plan),
    )


_Planned = Sequence[tuple[int, int, Sequence[PlantedFact]]]


def _drawn(facts: Sequence[PlantedFact], size: int, stream: random.Random) -> list[PlantedFact]:
    return stream.sample(list(facts), size)


def _read_input(facts: Sequence[PlantedFact]) -> dict[str, Any]:
    return {
        "current_instruction": INSTRUCTION,
        "examples_with_feedback": render_records(planted_record(fact, index) for index, fact in enumerate(facts)),
        # What a call is able to write is measured, not what it is allowed to.
        "most_lessons": max(_MOST_LESSONS, len(facts)),
    }


def _merge_input(facts: Sequence[PlantedFact], copies: int, stream: random.Random) -> dict[str, Any]:
    count = max(2, math.isqrt(len(facts) * copies))
    lists: list[list[str]] = [[] for _ in range(count)]
    for number, fact in enumerate(facts):
        for copy in range(copies):
            # Neighbouring lists: two copies never meet in one.
            lists[(number * copies + copy) % count].append(fact.line)
    for lines in lists:
        stream.shuffle(lines)
    return {"current_instruction": INSTRUCTION, "lesson_lists": [lines for lines in lists if lines]}


def _samples(plan: _Planned, answers: Sequence[Any], failed: list[str]) -> tuple[RetentionSample, ...]:
    samples: list[RetentionSample] = []
    for (items, copies, facts), answer in zip(plan, answers, strict=True):
        if isinstance(answer, FailedCall):
            failed.append(answer.error)
            continue
        texts, _ = parse_lessons(getattr(answer, "lessons", None))
        samples.append(RetentionSample(items, len(planted_in(facts, texts)), items, copies))
    return tuple(samples)
