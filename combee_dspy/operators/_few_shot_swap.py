"""Demonstrations bootstrapped from the minibatch's successful rollouts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar

import dspy
from pydantic import Field

from combee_dspy.operators._base import Operator, OperatorInput
from combee_dspy.operators._encoding import (
    NotJSON,
    canonical,
    demonstration_of,
    demonstration_tokens,
)
from combee_dspy.records import Demonstration, Edit, PredictorRun, Refusal
from combee_dspy.strategies import StrategyContext, parameters

_Label = Callable[[Demonstration], str]


@parameters
class FewShotSwap(Operator):
    """Shows the model its own successes: fills up demonstrations, then swaps. No LM call.

    A rollout that reached the score gives one demonstration: the predictor's first call in it.
    Demonstrations that are there stay while there is room; once the list is full, up to a quarter
    of it is swapped each time. They cover as many distinct values of the last output field as there
    is room for, as evenly as possible, so that a task with labels gets a demonstration of each.
    Chance comes from the context's stream alone.

    Example:
        >>> import asyncio
        >>> from combee_dspy.operators import FewShotSwap
        >>> from combee_dspy.testing import context, operator_input
        >>> edit = asyncio.run(FewShotSwap().apply(operator_input(runs=3), context()))
        >>> len(edit.demonstrations)
        2

    Args:
        max_demonstrations: The most demonstrations of one predictor.
        min_score: The score from which a rollout counts as a success, or ``None`` for the run's
            perfect score.
        max_tokens: Estimated tokens that all demonstrations may take together.
        labelled: Where successes are too few to show every output equally often, let training
            examples show it with their own labels, if these name all of the predictor's outputs.
            Off by default: a demonstration is then always something the program did.
    """

    name: ClassVar[str] = "few-shot-swap"
    needs_lessons: ClassVar[bool] = False
    edits_demonstrations: ClassVar[bool] = True

    max_demonstrations: Annotated[int, Field(ge=1)] = 12
    min_score: float | None = None
    max_tokens: Annotated[int, Field(ge=1)] = 4_000
    labelled: bool = False

    async def apply(self, material: OperatorInput, context: StrategyContext) -> Edit | Refusal:
        """Return the new demonstrations, or why there are none."""
        needed = material.perfect_score if self.min_score is None else self.min_score
        firsts = [run for run in material.runs if run.first]
        successes = [run for run in firsts if run.score >= needed]
        stream = context.stream("few-shot-swap")
        present, signature = material.demonstrations, material.signature
        ids = {demonstration.example_id for demonstration in present}
        new = [run for run in successes if run.example_id not in ids]
        fresh, problems = self._make_demonstrations(new, present, signature)
        stream.shuffle(fresh)
        if self.labelled:
            relabelled = [replace(run, outputs=run.labels) for run in firsts]
            labelled, _ = self._make_demonstrations(relabelled, [*present, *fresh], signature)
            stream.shuffle(labelled)
            fresh += labelled
        if fresh:
            last = list(signature.output_fields)[-1]
            label = partial(_label, last)
            chosen = self._choose(present, fresh, label, stream)
            if chosen == list(present):
                return Refusal("no further demonstration fits into the token budget")
            return Edit(demonstrations=tuple(chosen))
        if problems:
            return Refusal(f"no success can be a demonstration ({len(problems)}): {problems[0]}")
        if successes:
            return Refusal("every success of the minibatch is a demonstration already")
        reason = f"no rollout of the minibatch reached a score of {needed:g} through this predictor"
        unusable = ", and no example's labels can be shown" if self.labelled else ""
        return Refusal(reason + unusable)

    def _make_demonstrations(
        self,
        runs: Sequence[PredictorRun],
        present: Sequence[Demonstration],
        signature: type[dspy.Signature],
    ) -> tuple[list[Demonstration], list[str]]:
        """Return runs as demonstrations, each question once, and what kept others out."""
        questions = {canonical(demonstration.inputs) for demonstration in present}
        fresh: list[Demonstration] = []
        problems: list[str] = []
        for run in runs:
            try:
                demonstration = demonstration_of(run.inputs, run.outputs, signature, run.example_id)
            except NotJSON as reason:
                problems.append(str(reason))
                continue
            tokens = demonstration_tokens([demonstration])
            question = canonical(demonstration.inputs)
            if tokens > self.max_tokens:
                problems.append(f"it takes {tokens:,} tokens of {self.max_tokens:,}")
            elif question not in questions:
                questions.add(question)
                fresh.append(demonstration)
        return fresh, problems

    def _choose(
        self,
        present: Sequence[Demonstration],
        fresh: Sequence[Demonstration],
        label: _Label,
        stream: random.Random,
    ) -> list[Demonstration]:
        """Return the demonstrations filled up, or up to a quarter of them replaced."""
        filled = list(present)[: self.max_demonstrations]
        swapped, waiting = list(filled), list(fresh)
        while waiting and len(filled) < self.max_demonstrations:
            best = _next(filled, waiting, label)
            if self._fits([*filled, best]):
                filled.append(best)
        if len(filled) > len(swapped):
            return filled
        waiting = list(fresh)
        old, left = list(range(len(swapped))), max(1, len(swapped) // 4)
        while waiting and old and left:
            best = _next(swapped, waiting, label)
            place = stream.choice(_giving_way(old, list(map(label, swapped)), label(best)))
            trial = [*swapped[:place], best, *swapped[place + 1 :]]
            if self._fits(trial):
                swapped = trial
                old.remove(place)
                left -= 1
        return swapped

    def _fits(self, demonstrations: Sequence[Demonstration]) -> bool:
        return demonstration_tokens(demonstrations) <= self.max_tokens


def _label(output: str, demonstration: Demonstration) -> str:
    return canonical(demonstration.outputs.get(output))


def _next(
    present: Sequence[Demonstration], waiting: list[Demonstration], label: _Label
) -> Demonstration:
    """Take the first waiting demonstration among those whose output is covered least."""
    counts = Counter(map(label, present))
    best = min(waiting, key=lambda demonstration: counts[label(demonstration)])
    waiting.remove(best)
    return best


def _giving_way(places: Sequence[int], labels: Sequence[str], new: str) -> list[int]:
    """Return the places that may be replaced without making the outputs less even."""
    counts = Counter(labels)
    most = max(counts[labels[place]] for place in places)
    same = [place for place in places if labels[place] == new]
    if same and counts[new] + 1 >= most:
        return same
    return [place for place in places if counts[labels[place]] == most]
