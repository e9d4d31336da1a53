"""Proposals: nothing that gepa swallows stays unseen, and strategies are held to their contracts."""

from __future__ import annotations

import logging
from typing import Any

import dspy
import pytest
from gepa.strategies.proposal_sampling import PxNSampling

from combee_dspy import Combee
from combee_dspy.aggregators import Aggregator
from combee_dspy.engine.selecting import SelectOnce
from combee_dspy.events import ErrorRaised, Event
from combee_dspy.exceptions import ArgumentTypeError
from combee_dspy.operators import Operator
from combee_dspy.records import Demonstration, Edit
from combee_dspy.reducer import CombeeProposer
from combee_dspy.tracking import Hook


class Recorder(Hook):
    def __init__(self) -> None:
        self.events: list[Event] = []

    def handle(self, event: Event) -> None:
        self.events.append(event)

    def errors(self, where: str) -> list[ErrorRaised]:
        return [event for event in self.events if isinstance(event, ErrorRaised) and event.where == where]


def _compile(world: Any, student: Any = None, *, metric: Any = None, **kwargs: Any) -> dspy.Module:
    given = {"max_metric_calls": 60, "reflection_lm": world.proposer_lm, "num_threads": 4, **kwargs}
    made = Combee(metric or world.metric, **given)
    return made.compile(student or world.student(), trainset=world.examples(12), valset=world.examples(6, start=50))


class Nothing(Operator):
    name = "nothing"

    def apply(self, given: Any, context: Any) -> Any:
        return None


class WrongEdit(Operator):
    name = "wrong-edit"

    def apply(self, given: Any, context: Any) -> Any:
        return Edit(instruction=7)  # type: ignore[arg-type]  # the point


class Tuples(Operator):
    name = "tuples"
    edits_demonstrations = True

    def apply(self, given: Any, context: Any) -> Any:
        return Edit(demonstrations=(Demonstration({"question": ("a",)}, {"answer": "b"}),))


class NoLessons(Aggregator):
    name = "no-lessons"

    def aggregate(self, reflections: Any, context: Any) -> Any:
        return ["a lesson"]


@pytest.mark.parametrize(
    ("strategies", "name"),
    [
        ({"operators": [Nothing()]}, "nothing"),
        ({"operators": [WrongEdit()]}, "wrong-edit"),
        ({"operators": [Tuples()]}, "tuples"),
        ({"aggregator": NoLessons(), "operators": ["insert"]}, "no-lessons"),
    ],
)
def test_what_is_no_edit_ends_the_run_and_names_the_strategy(world: Any, strategies: Any, name: str) -> None:
    hook = Recorder()
    with pytest.raises(ArgumentTypeError, match=name):
        _compile(world, hooks=[hook], **strategies)
    # Told once: gepa did not come back to buy it all again.
    assert [error.fatal for error in hook.errors("self")] == [True]


def test_the_reducer_alone_names_it_too(world: Any) -> None:
    records = {"self": [{"Inputs": {}, "Generated Outputs": {}, "Feedback": "Rule: the word for ant is TNA"}]}
    with pytest.raises(ArgumentTypeError, match="nothing"), dspy.context(lm=world.proposer_lm):
        CombeeProposer(operator=Nothing())({"self": "Answer."}, records, ["self"])


def test_a_broken_feedback_branch_is_seen(world: Any, caplog: pytest.LogCaptureFixture) -> None:
    def metric(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        if pred_name is not None:
            raise KeyError("feedback bug")
        return world.metric(gold, pred)

    hook = Recorder()
    with caplog.at_level(logging.WARNING):
        _compile(world, metric=metric, hooks=[hook], operators=["insert"])
    assert hook.errors("reflective dataset")
    assert not any(error.fatal for error in hook.errors("reflective dataset"))
    assert len([line for line in caplog.messages if line.startswith("the reflective dataset failed")]) == 1
    assert [line for line in caplog.messages if "Exception building reflective dataset" in line]


def test_a_broken_instruction_proposer_is_seen(world: Any, caplog: pytest.LogCaptureFixture) -> None:
    def proposer(candidate: Any, reflective_dataset: Any, components_to_update: Any) -> Any:
        raise RuntimeError("proposer is broken")

    hook = Recorder()
    _compile(world, instruction_proposer=proposer, hooks=[hook])
    assert {error.error for error in hook.errors("proposer")} == {"RuntimeError: proposer is broken"}
    assert len([line for line in caplog.messages if line.startswith("the proposer failed")]) == 1


class Interrupting(Operator):
    name = "interrupting"
    needs_lessons = False

    def apply(self, given: Any, context: Any) -> Any:
        raise KeyboardInterrupt


def test_an_interrupt_is_no_refusal(world: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        _compile(world, operators=[Interrupting()])
    with pytest.raises(KeyboardInterrupt), dspy.context(lm=world.proposer_lm):
        CombeeProposer(operator=Interrupting())({"self": "Answer."}, {"self": [{"Feedback": "f"}]}, ["self"])


@pytest.mark.parametrize(("operators", "asked"), [(0, 3), (1, 3), (2, 1)])
def test_several_children_share_one_selection(operators: int, asked: int) -> None:
    calls: list[dict[str, str]] = []

    def inner(state: Any, trajectories: Any, scores: Any, index: int, candidate: dict[str, str]) -> list[str]:
        calls.append(candidate)
        return [f"part {len(calls)}"]

    select, trajectories = SelectOnce(inner, operators), [object()]
    candidate = {"a": "x", "a::demonstrations": "y"}
    chosen = [select(None, trajectories, [], 0, candidate) for _ in range(3)]
    assert len(calls) == asked
    assert chosen[-1] == [f"part {asked}"]
    assert calls[0] == {"a": "x"}


class TwoStep(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = dspy.ChainOfThought("question -> answer")
        self.second = dspy.Predict("question, hint -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        return self.second(question=question, hint=self.first(question=question).answer)


def test_parity_with_several_tasks_on_one_minibatch(world: Any) -> None:
    common = {
        "metric": world.metric,
        "max_metric_calls": 100,
        "reflection_lm": world.proposer_lm,
        "num_threads": 1,
        "reflection_minibatch_size": 12,
    }
    sets = {"trainset": world.examples(12), "valset": world.examples(6, start=50)}
    sent: list[tuple[list[Any], list[Any]]] = []
    for make in (dspy.GEPA, lambda **kwargs: Combee.parity(**kwargs, probe=False)):
        start = len(world.task_lm.requests), len(world.proposer_lm.requests)
        make(**common, gepa_kwargs={"sampling_strategy": PxNSampling(1, 3)}).compile(TwoStep(), **sets)
        sent.append((list(world.task_lm.requests)[start[0] :], list(world.proposer_lm.requests)[start[1] :]))
    assert sent[0][1]
    assert sent[0] == sent[1]
