"""Serial searches to diagnose, in memory and in a journal, and a specification without gaps."""

from __future__ import annotations

import asyncio
import random

import yaml

from combee_dspy.events import CandidateValidated
from combee_strategist.planning import Curve
from tests.tracking.journals import Story

ROWS = 200

SPEC = yaml.safe_load("""
task: {name: formula, inputs: "question: str", outputs: "formula: number", metric: exact match, baseline: 0.4}
serial: {method: dspy.GEPA, version: dspy 3.4.1, rollouts: 1200, score: 0.62}
models: {task: openai/gpt-4o-mini, proposer: openai/gpt-4o, evaluator: code}
hardware: {kind: NVIDIA H100, count: 2, memory_gb: 80, network: same rack, slots: 64, models: split}
budget: {rollouts: 5000, tokens: 20000000, gpu_seconds: 7200, deadline: 2999-01-31, binds: rollouts}
evaluation: {dataset: formula-mini, split: by formula, scorer: exact match, owner: Ada Lovelace, used_to_tune: false}
failure_cost: a wrong answer is seen by a customer and refunded
failure: costs
""")


def search(levels, rows=ROWS, total=None):
    """Candidates that answer the easiest examples right, up to a share of them."""
    order = random.Random(0).sample(range(rows), rows)
    scores = tuple(tuple(float(place < level * rows) for place in order) for level in levels)
    bought = tuple(100 * (number + 1) for number in range(len(levels)))
    return Curve(bought, scores, total or bought[-1], (100.0, 80.0, 320.0))


CONVERGED = [0.4, 0.5, 0.58, 0.62, 0.64, *[0.65] * 10]


class Converged(Story):
    """A serial search that found everything in its first child, and then went on for long, in a
    journal.
    """

    async def begin(self, log):
        for index, share in enumerate((0.4, 0.8)):
            candidate = f"{index:016d}"
            scores = [float(row < 120 * share) for row in range(120)]
            await self._rolls(log, candidate, "validation", scores, index)
            log.emit(CandidateValidated(candidate, index, share, 120, best=True))
        rolls = (self._roll(log, candidate, "train", row, 1.0, 2 + row) for row in range(1_000))
        await asyncio.gather(*rolls)
