"""Serial ACE: generate, reflect and add to the playbook, one example at a time."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Annotated, ClassVar

import dspy
from pydantic import Field

from combee_bench.baselines._base import ALL_LIMITS, Baseline, BaselineTask, Counting, Found
from combee_dspy.aggregators import Union
from combee_dspy.artifacts import OnlinePlaybook, Playbook
from combee_dspy.strategies import parameters
from combee_dspy.streams import derive

__all__ = ["Ace"]


@parameters
class Ace(Baseline):
    """ACE's playbook, learned offline, an example at a time, within the budget (arXiv 2510.04618).

    Each example is run with the playbook so far, reflected on in one call and read in
    another. It has no search: whenever as many examples were learned from as the validation set has
    rows, the playbook is validated, so that learning and validation share the budget evenly, and
    the best is returned.

    Args:
        ground_truth: Whether the reflector sees the examples' labels.
        max_tokens: Estimated tokens that the program sees of the playbook.
    """

    name: ClassVar[str] = "ace"
    distributions: ClassVar[tuple[str, ...]] = ("combee-dspy", "dspy")
    ends_by: ClassVar[tuple[str, ...]] = ALL_LIMITS
    ground_truth: bool = True
    max_tokens: Annotated[int, Field(ge=64)] = 8_000

    def search(self, task: BaselineTask) -> Found:
        """Learn a playbook example by example."""
        rows, every = task.rows, len(task.rows.validation)
        serving = OnlinePlaybook(
            task.student,
            rows.metric,
            reflection_lm=task.reflection_lm,
            artifact=Playbook(max_tokens=self.max_tokens, ground_truth=self.ground_truth),
            aggregator=Union(copies=1),
            num_threads=task.threads,
            seed=task.seed,
        )
        best = Found(task.student, 0)
        order = derive(task.seed, "ace", "order")
        for bought in itertools.count(1):
            place = (bought - 1) % len(rows.train)
            if place == 0:
                examples = order.sample(list(rows.train.examples), len(rows.train))
            serving.predict([examples[place]])
            serving.learn()
            if bought % every == 0:
                program = serving.program()
                score = self._validated(program, task)
                if best.validation is None or score > best.validation:
                    best = Found(program, 0, score)
                if task.is_over() or (task.budget and 2 * bought + 2 * every > task.budget):
                    return replace(best, rollouts=2 * bought)
        raise AssertionError  # the count does not end

    def _validated(self, program: dspy.Module, task: BaselineTask) -> float:
        evaluate = dspy.Evaluate(
            devset=list(task.rows.validation.examples),
            metric=Counting(task.rows.metric),
            num_threads=task.threads,
        )
        scores = [score for _, _, score in evaluate(program).results]
        return sum(scores) / len(scores)
