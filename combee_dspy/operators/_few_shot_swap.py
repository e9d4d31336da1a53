"""Demonstrations bootstrapped from the minibatch's successful rollouts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.operators._base import Operator, OperatorInput
from combee_dspy.operators._demonstrable import NotJSON, demonstration_of, key_of, label_of
from combee_dspy.records import Demonstration, Edit, Refusal
from combee_dspy.reflections import estimate_record_tokens
from combee_dspy.strategies import StrategyContext

__all__ = ["FewShotSwap"]


class FewShotSwap(Operator):
    """Shows the model its own successes: fills up demonstrations, then swaps some. Costs no LM call.

    A rollout that reached the score gives one demonstration: the predictor's
    first call in it. Demonstrations that are there stay while there is room;
    once the list is full, up to a quarter of it is swapped each time. Chance
    comes from the context's stream alone.

    Args:
        max_demonstrations: The most demonstrations of one predictor.
        min_score: The score from which a rollout counts as a success, or
            ``None`` for the run's perfect score.
        max_tokens: Estimated tokens that all demonstrations may take together.
        balance: Cover as many distinct outputs (values of the last output field)
            as there is room for, as evenly as possible, so that a task with
            labels gets a demonstration of each.
        labelled: Where successes are too few to show every output equally often, let
            training examples show it with their own labels, if these name all of the
            predictor's outputs. Off by default: a demonstration is then always
            something the program did. Uneven demonstrations bias a small model
            towards the outputs that it was right about anyway.
    """

    name: ClassVar[str] = "few-shot-swap"
    needs_lessons: ClassVar[bool] = False
    edits_demonstrations: ClassVar[bool] = True

    def __init__(
        self,
        max_demonstrations: int = 12,
        min_score: float | None = None,
        max_tokens: int = 4_000,
        balance: bool = True,
        labelled: bool = False,
    ) -> None:
        self.max_demonstrations = max_demonstrations
        self.min_score = min_score
        self.max_tokens = max_tokens
        self.balance = balance
        self.labelled = labelled

    def apply(self, given: OperatorInput, context: StrategyContext) -> Edit | Refusal:
        """Return the new demonstrations, or why there are none.

        Raises:
            ArgumentValueError: A parameter of this strategy is out of range.
        """
        if self.max_demonstrations < 1:
            value = self.max_demonstrations
            raise ArgumentValueError("max_demonstrations", value, "is below 1", "Leave room for a demonstration.")
        needed = given.perfect_score if self.min_score is None else self.min_score
        successes = [run for run in given.runs if run.first and run.score >= needed]
        if not successes and not self.labelled:
            return Refusal(f"no rollout of the minibatch reached a score of {needed:g} through this predictor")
        fresh, skipped = self._fresh(given)
        stream = context.stream("few-shot-swap")
        stream.shuffle(fresh)
        if self.labelled:
            fresh += self._from_labels(given, fresh, stream)
        if not fresh:
            return Refusal(skipped or "every success of the minibatch is a demonstration already")
        chosen = self._chosen(given, fresh, stream)
        if chosen == list(given.demonstrations):
            return Refusal("no further demonstration fits into the token budget")
        return Edit(demonstrations=tuple(chosen))

    def _fresh(self, given: OperatorInput) -> tuple[list[Demonstration], str]:
        """Return successes that are no demonstrations yet, each question once, and what kept others out."""
        needed = given.perfect_score if self.min_score is None else self.min_score
        questions = {key_of(demonstration) for demonstration in given.demonstrations}
        examples = {demonstration.example_id for demonstration in given.demonstrations} - {None}
        fresh: list[Demonstration] = []
        unusable: list[str] = []
        for run in given.runs:
            if not run.first or run.score < needed or run.example_id in examples:
                continue
            try:
                demonstration = demonstration_of(run, given.signature)
            except NotJSON as reason:
                unusable.append(str(reason))
                continue
            if key_of(demonstration) in questions:
                continue
            if _tokens(demonstration) > self.max_tokens:
                unusable.append(f"it takes {_tokens(demonstration):,} tokens of {self.max_tokens:,}")
                continue
            questions.add(key_of(demonstration))
            examples.add(run.example_id)
            fresh.append(demonstration)
        return fresh, f"no success can be a demonstration ({len(unusable)}): {unusable[0]}" if unusable else ""

    def _from_labels(
        self, given: OperatorInput, fresh: Sequence[Demonstration], stream: random.Random
    ) -> list[Demonstration]:
        """Return training examples that are neither demonstrations nor successes, with their own labels."""
        questions = {key_of(demonstration) for demonstration in [*given.demonstrations, *fresh]}
        found = []
        for run in given.runs:
            try:
                demonstration = demonstration_of(replace(run, outputs=run.labels), given.signature)
            except NotJSON:
                continue
            if run.first and key_of(demonstration) not in questions and _tokens(demonstration) <= self.max_tokens:
                questions.add(key_of(demonstration))
                found.append(demonstration)
        stream.shuffle(found)
        return found

    def _chosen(
        self, given: OperatorInput, fresh: Sequence[Demonstration], stream: random.Random
    ) -> list[Demonstration]:
        labels = {
            key_of(d): label_of(d, given.signature) if self.balance else "" for d in [*given.demonstrations, *fresh]
        }
        kept = list(given.demonstrations)[: self.max_demonstrations]
        waiting = list(fresh)
        filled = False
        while waiting and len(kept) < self.max_demonstrations:
            best = self._next(kept, waiting, labels)
            waiting.remove(best)
            if self._fits([*kept, best]):
                kept.append(best)
                filled = True
        return kept if filled else self._swapped(kept, list(fresh), labels, stream)

    def _swapped(
        self, kept: Sequence[Demonstration], waiting: list[Demonstration], labels: dict[str, str], stream: random.Random
    ) -> list[Demonstration]:
        """Return the list with up to a quarter replaced, each in its place."""
        swapped = list(kept)
        old = list(range(len(swapped)))
        left = max(1, len(swapped) // 4)
        while waiting and old and left:
            best = self._next(swapped, waiting, labels)
            waiting.remove(best)
            place = stream.choice(_giving_way(old, [labels[key_of(d)] for d in swapped], labels[key_of(best)]))
            trial = [*swapped[:place], best, *swapped[place + 1 :]]
            if self._fits(trial):
                swapped = trial
                old.remove(place)
                left -= 1
        return swapped

    def _next(
        self, kept: Sequence[Demonstration], waiting: Sequence[Demonstration], labels: dict[str, str]
    ) -> Demonstration:
        """Return the first waiting demonstration among those whose output is covered least."""
        counts = Counter(labels[key_of(demonstration)] for demonstration in kept)
        return min(waiting, key=lambda demonstration: counts[labels[key_of(demonstration)]])

    def _fits(self, demonstrations: Sequence[Demonstration]) -> bool:
        return sum(_tokens(demonstration) for demonstration in demonstrations) <= self.max_tokens


def _giving_way(places: Sequence[int], labels: Sequence[str], new: str) -> list[int]:
    """Return the places that a demonstration with this output may take without making the outputs less even."""
    counts = Counter(labels)
    most = max(counts[labels[place]] for place in places)
    same = [place for place in places if labels[place] == new]
    if same and counts[new] + 1 >= most:
        return same
    return [place for place in places if counts[labels[place]] == most]


def _tokens(demonstration: Demonstration) -> int:
    return estimate_record_tokens(demonstration.inputs) + estimate_record_tokens(demonstration.outputs)
