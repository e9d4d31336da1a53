"""Programs with dspy.Flex parts."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import dspy
import pytest
from dspy.primitives.local_interpreter import LocalInterpreter

from combee_dspy import Combee
from combee_dspy.events import CandidateProposed, CandidateRefused, ErrorRaised, RolloutFinished
from tests.engine.conftest import Recorder


class Flexible(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.flex = dspy.Flex("question -> answer", interpreter_factory=LocalInterpreter)
        self.other = dspy.Flex("question -> answer", interpreter_factory=LocalInterpreter)

    def forward(self, question: str) -> dspy.Prediction:
        return self.flex(question=question)


class CodeProposer:
    """Changes each source a little, and notes how it was called."""

    def __init__(self, failures: int = 0) -> None:
        self.calls: list[tuple[list[str], bool]] = []
        self._failures = failures

    def __call__(
        self,
        candidate: Any,
        reflective_dataset: Any,
        components_to_update: list[str],
        task_descriptions: Any,
        context_blurbs: Any,
    ) -> dict[str, str]:
        self.calls.append((list(components_to_update), threading.current_thread() is threading.main_thread()))
        if len(self.calls) <= self._failures:
            raise ValueError("one bad answer of the code LM")
        return {name: f"{candidate[name]}\n# version {len(self.calls)}" for name in components_to_update}


def _traced(world: Any) -> Any:
    def metric(
        gold: Any,
        pred: Any,
        trace: Any = None,
        pred_name: Any = None,
        pred_trace: Any = None,
        program_trace: Any = None,
    ) -> Any:
        # Only DSPy's own evaluation of Flex programs hands the trace over.
        return dspy.Prediction(score=0.9 if program_trace is None else 0.1, feedback="f")

    return metric


def _compile(world: Any, proposer: CodeProposer, hook: Recorder, **kwargs: Any) -> dspy.Module:
    given = {"max_metric_calls": 40, "reflection_lm": world.proposer_lm, "num_threads": 2, **kwargs}
    made = Combee(_traced(world), code_proposer=proposer, hooks=[hook], component_selector="all", **given)
    return made.compile(
        Flexible(),
        trainset=world.examples(6),
        valset=world.examples(4, start=50),
        heldout=world.examples(4, start=90),
    )


def test_one_code_edit_a_round_in_the_callers_thread(world: Any) -> None:
    proposer, hook = CodeProposer(), Recorder()
    program = _compile(world, proposer, hook, operators=["insert", "few-shot-swap"])
    report = program.combee_report
    assert proposer.calls
    assert all(names == ["flex", "other"] and own_thread for names, own_thread in proposer.calls)
    # Two operators, but one code edit: the second child is not made, and its rollouts not bought.
    proposed = [event.candidate_id for event in hook.of(CandidateProposed)]
    assert len(proposed) == len(set(proposed)) == len(proposer.calls)
    assert {event.operator for event in hook.of(CandidateRefused)} == {"few-shot-swap"}
    # Every score comes from one kind of evaluation.
    assert report.heldout is not None
    assert (report.seed_score, report.heldout.before) == (pytest.approx(0.1), pytest.approx(0.1))
    # The program's calls are the task's, and each rollout was told.
    assert {role: entry["calls"] for role, entry in report.costs["by_role"].items()} == {
        "task": len(world.task_lm.requests)
    }
    purposes = Counter(event.purpose for event in hook.of(RolloutFinished))
    assert set(purposes) == {"validation", "parent", "child", "heldout"}
    assert sum(purposes.values()) == len(world.task_lm.requests)
    ids = [event.rollout_id for event in hook.of(RolloutFinished)]
    assert len(ids) == len(set(ids))


def test_a_code_proposer_that_fails_once(world: Any) -> None:
    proposer, hook = CodeProposer(failures=1), Recorder()
    _compile(world, proposer, hook)
    assert len(proposer.calls) > 1
    errors = hook.of(ErrorRaised)
    assert [(error.where, error.fatal) for error in errors] == [("code proposer", False)]
    assert any("one bad answer" in event.reason for event in hook.of(CandidateRefused))


def test_no_lm_is_named(world: Any) -> None:
    with dspy.context(lm=None), pytest.raises(ValueError, match=r"student.*No LM is loaded"):
        _compile(world, CodeProposer(), Recorder())
