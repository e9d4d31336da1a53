"""Parity mode sends what dspy.GEPA sends."""

from __future__ import annotations

from collections import Counter
from typing import Any

import dspy
import pytest

from combee_dspy import Combee


def _requests(world: Any) -> tuple[list[Any], list[Any]]:
    return list(world.task_lm.requests), list(world.proposer_lm.requests)


def _compile(optimizer: Any, world: Any, student: dspy.Module, **sets: Any) -> dspy.Module:
    return optimizer.compile(student, trainset=world.examples(12), valset=world.examples(6, start=50), **sets)


def _twice(world: Any, student: Any, **kwargs: Any) -> tuple[Any, Any, dspy.Module, dspy.Module]:
    """Run dspy.GEPA, then Combee in parity mode, on the same LMs; return what each sent and made."""
    common = {"metric": world.metric, "max_metric_calls": 60, "reflection_lm": world.proposer_lm, **kwargs}
    theirs = _compile(dspy.GEPA(**common), world, student())
    sent = _requests(world)
    ours = _compile(Combee.parity(**common, probe=False), world, student())
    both = _requests(world)
    mine = both[0][len(sent[0]) :], both[1][len(sent[1]) :]
    return sent, mine, theirs, ours


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_one_thread_same_sequence(world: Any, seed: int) -> None:
    theirs, mine, their_program, my_program = _twice(world, world.student, seed=seed, num_threads=1)
    assert len(theirs[0]) > 20
    assert len(theirs[1]) > 0
    assert mine == theirs
    assert my_program.signature.instructions == their_program.signature.instructions


def test_many_threads_same_multiset(world: Any) -> None:
    theirs, mine, their_program, my_program = _twice(world, world.student, seed=3, num_threads=8)
    assert Counter(mine[0]) == Counter(theirs[0])
    assert Counter(mine[1]) == Counter(theirs[1])
    assert my_program.signature.instructions == their_program.signature.instructions


class TwoStep(dspy.Module):
    """Two predictors, so that round-robin selection and merge have something to do."""

    def __init__(self) -> None:
        super().__init__()
        self.first = dspy.ChainOfThought("question -> answer")
        self.second = dspy.Predict("question, hint -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        hint = self.first(question=question).answer
        return self.second(question=question, hint=hint)


def test_two_predictors_and_merge(world: Any) -> None:
    theirs, mine, _, _ = _twice(world, TwoStep, seed=5, num_threads=1, use_merge=True, track_stats=True)
    assert mine == theirs


def test_single_call_with_a_static_batch_is_parity(world: Any) -> None:
    made = Combee(
        world.metric,
        max_metric_calls=10,
        reflection_lm=world.proposer_lm,
        aggregator="single-call",
        reflection_minibatch_size=3,
    )
    assert made.like_gepa
    assert not made.memoize
    # Another controller, operator or proposer is a choice of one's own: no parity.
    assert not Combee(
        world.metric, max_metric_calls=10, reflection_lm=world.proposer_lm, operators=["insert"]
    ).like_gepa
