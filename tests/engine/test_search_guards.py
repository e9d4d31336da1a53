"""Guards in whole runs: an LM that is scripted to break one gets nothing into the pool."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dspy
import pytest

from combee_dspy import Combee
from combee_dspy.engine.candidates import fields_key
from combee_dspy.events import CandidateAccepted, CandidateRefused, CandidateRejected, ValidationFinished
from combee_dspy.exceptions import ArgumentValueError, SplitOverlapError
from combee_dspy.guards import Guards
from combee_dspy.operators import Operator
from combee_dspy.records import Demonstration, Edit
from combee_dspy.reflections import estimate_tokens
from combee_dspy.testing._scripted_lm import ScriptedLM, as_chat
from tests.engine.conftest import Recorder

OWN = "Give the code word. Never explain it. Write it as <word>."
SAMPLE = "a rather long story about one grey ox that walked all the way from the hill down to the sea"


def _student() -> dspy.Module:
    return dspy.Predict(dspy.Signature("question -> answer", OWN))


def _train(world: Any) -> list[dspy.Example]:
    rows = world.examples(24)
    told = {**rows[0].toDict(), "question": f"{SAMPLE}. {rows[0].question}"}
    return [dspy.Example(**told).with_inputs("question"), *rows[1:]]


def _run(world: Any, **kwargs: Any) -> tuple[dspy.Module, Recorder]:
    hook = Recorder()
    given = {
        "max_metric_calls": 110,
        "reflection_lm": world.proposer_lm,
        "reflection_minibatch_size": 8,
        "num_threads": 4,
        "probe": False,
        "track_stats": True,
        "hooks": [hook],
        **kwargs,
    }
    program = Combee(world.metric, **given).compile(
        given.pop("student", None) or _student(), trainset=_train(world), valset=world.examples(8, start=48)
    )
    return program, hook


def _rules(world: Any) -> str:
    return " ".join(f"the word for {row.question.split()[-1][:-1]} is {row.answer}." for row in world.examples(12))


@dataclass(frozen=True)
class Break:
    """A guard, a text that teaches everything and breaks it, and what the refusal says."""

    guards: Guards
    text: Callable[[str], str]
    reason: str
    without: Guards | None = None


FREE = Guards(max_copied_words=None)
BREAKS = {
    "a protected rule": Break(
        Guards(keep=["Never explain it."]),
        lambda rules: f"Give the code word. Write it as <word>. {rules}",
        "loses the protected rule 'Never explain it.'",
        FREE,
    ),
    "the budget": Break(Guards(max_tokens=40), lambda rules: f"{OWN} {rules}", "tokens of 40", FREE),
    "a placeholder": Break(
        Guards(), lambda rules: f"Give the code word. Never explain it. {rules}", "loses the placeholder <word>"
    ),
    "copied text": Break(Guards(), lambda rules: f"{OWN} {rules} {SAMPLE}", "from a training example", FREE),
    "no text at all": Break(Guards(), lambda rules: "  ", "is empty"),
}


class Obeys(Operator):
    """A plugin's operator that writes what it is told and checks nothing."""

    name = "obeys"
    needs_lessons = False
    edits_demonstrations = True
    edits_fields = True

    def __init__(self, text: str = "") -> None:
        self.text = text

    def apply(self, given: Any, context: Any) -> Any:
        return Edit(instruction=self.text)


def _rewriting(text: str) -> dict[str, Any]:
    """The aggregator's LM writes the whole instruction."""
    lm = ScriptedLM(lambda request: as_chat({"new_instruction": text}), model="scripted/breaker")
    return {"aggregator": "single-call", "operators": ["insert"], "reflection_lm": lm}


def _plugin(text: str) -> dict[str, Any]:
    return {"operators": [Obeys(text)]}


def _proposer(text: str) -> dict[str, Any]:
    return {"instruction_proposer": lambda candidate, reflective_dataset, components_to_update: {"self": text}}


def _pool(hook: Recorder) -> list[str]:
    return [event.texts["self"] for event in hook.of(ValidationFinished)]


@pytest.mark.parametrize("way", [_rewriting, _plugin])
@pytest.mark.parametrize("name", BREAKS)
def test_what_breaks_a_guard_is_never_accepted(world: Any, name: str, way: Callable[[str], dict[str, Any]]) -> None:
    broken = BREAKS[name]
    _, hook = _run(world, guards=broken.guards, **way(broken.text(_rules(world))))
    assert set(_pool(hook)) == {OWN}
    assert not hook.of(CandidateAccepted)
    refused = hook.of(CandidateRefused)
    # An LM that writes nothing at all is refused one step earlier.
    reason = "nothing was learned" if name == "no text at all" and way is _rewriting else broken.reason
    assert refused
    assert all(reason in event.reason for event in refused)


@pytest.mark.parametrize("way", [_rewriting, _plugin])
@pytest.mark.parametrize("name", [name for name, broken in BREAKS.items() if broken.without])
def test_without_the_guard_the_same_text_is_accepted(
    world: Any, name: str, way: Callable[[str], dict[str, Any]]
) -> None:
    """Or the test above would prove nothing: the text teaches everything."""
    broken = BREAKS[name]
    _, hook = _run(world, guards=broken.without, **way(broken.text(_rules(world))))
    assert broken.text(_rules(world)) in _pool(hook)


@pytest.mark.parametrize("name", BREAKS)
def test_a_proposer_of_gepas_kind_is_bound_too(world: Any, name: str) -> None:
    broken = BREAKS[name]
    _, hook = _run(world, guards=broken.guards, **_proposer(broken.text(_rules(world))))
    assert set(_pool(hook)) == {OWN}
    assert any(broken.reason in event.reason for event in hook.of(CandidateRefused))


def test_a_proposer_of_gepas_kind_that_keeps_to_the_guards_is_heard(world: Any) -> None:
    good = f"{OWN} {_rules(world)}"
    _, hook = _run(world, guards=Guards(keep=["Never explain it."]), **_proposer(good))
    assert good in _pool(hook)


class BreaksForm(Operator):
    name = "breaks-form"
    needs_lessons = False
    edits_demonstrations = True
    edits_fields = True

    def __init__(self, edit: Edit) -> None:
        self.edit = edit

    def apply(self, given: Any, context: Any) -> Any:
        return self.edit


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (Edit(field_descriptions={"solution": "The word."}), "'solution', which is no field"),
        (Edit(field_descriptions={"answer": "word " * 60}), "tokens of 60"),
        (Edit(field_descriptions={"answer": SAMPLE}), "copies"),
        (Edit(demonstrations=(Demonstration({"question": "q"}, {"solution": "s"}),)), "'solution', which is no output"),
        (Edit(demonstrations=(Demonstration({}, {"answer": "s"}),)), "has no input field"),
        (Edit(), "changes nothing"),
    ],
)
def test_edits_that_break_the_signature_or_the_descriptions_budget(world: Any, edit: Edit, reason: str) -> None:
    _, hook = _run(world, guards=Guards(max_tokens=60), operators=[BreaksForm(edit)])
    assert {json.dumps(event.texts, sort_keys=True) for event in hook.of(ValidationFinished)} == {
        json.dumps(hook.of(ValidationFinished)[0].texts, sort_keys=True)
    }
    refused = hook.of(CandidateRefused)
    assert refused
    assert all(reason in event.reason for event in refused)


def test_proposers_are_told_and_a_run_within_the_guards_learns(world: Any) -> None:
    guards = Guards(max_tokens=160, keep=["Never explain it."])
    program, hook = _run(world, guards=guards, operators=["insert", "rephrase"])
    assert program.combee_report.best_score > program.combee_report.seed_score
    for text in _pool(hook):
        assert "Never explain it." in text
        assert "<word>" in text
        assert estimate_tokens(text) <= 160
    asked = [request.text for request in world.proposer_lm.requests]
    assert any("Never explain it." in text and "160 tokens" in text for text in asked)


@pytest.mark.parametrize(
    ("guards", "word"),
    [
        (Guards(keep=["Say please."]), "not in any text"),
        (Guards(keep={"other": ["Never explain it."]}), "names no component"),
        (Guards(max_tokens=3), "starts with"),
    ],
)
def test_guards_that_do_not_fit_the_program_are_told_before_anything_is_bought(
    world: Any, guards: Guards, word: str
) -> None:
    with pytest.raises(ArgumentValueError, match=word):
        _run(world, guards=guards)
    assert not world.task_lm.requests
    assert not world.proposer_lm.requests


class _Unlearning:
    """Knows ox at first; a learned text teaches all others and makes it forget the ox."""

    @staticmethod
    def answer(request: Any) -> str:
        animal = request.last.split("word for ")[-1].split("?")[0]
        taught = "Lessons learned" in request.system
        right = (animal == "ox") != taught
        return as_chat({"answer": animal[::-1].upper() if right else "unknown"})


def _ox(number: int = 0) -> dspy.Example:
    return dspy.Example(question=f"Number {900 + number}: word for ox?", answer="XO").with_inputs("question")


def _anchored(world: Any, anchors: list[dspy.Example], **kwargs: Any) -> tuple[dspy.Module, Recorder]:
    hook = Recorder()
    train = kwargs.pop("trainset", None) or world.examples(24)
    given = {"max_metric_calls": 120, "reflection_minibatch_size": 6, "num_threads": 4, "probe": False, **kwargs}
    combee = Combee(
        world.metric, reflection_lm=world.proposer_lm, operators=["insert"], anchors=anchors, hooks=[hook], **given
    )
    with dspy.context(lm=ScriptedLM(_Unlearning.answer)):
        program = combee.compile(_student(), trainset=train, valset=world.examples(8, start=48))
    return program, hook


@pytest.mark.parametrize("inside", [False, True])
def test_a_child_that_is_worse_on_an_anchor_never_joins_the_pool(world: Any, inside: bool) -> None:
    train = [*world.examples(24), _ox()] if inside else world.examples(24)
    _, free = _anchored(world, [], trainset=train)
    assert free.of(CandidateAccepted), "without anchors it is accepted: it is better on all the rest"
    _, hook = _anchored(world, [_ox()], trainset=train)
    assert not hook.of(CandidateAccepted)
    rejected = hook.of(CandidateRejected)
    assert rejected
    assert {event.reason for event in rejected} == {"1 anchor examples would regress: 1 → 0"}
    assert len(hook.of(ValidationFinished)) == 1


def test_anchors_that_hold_do_not_stand_in_the_way(world: Any) -> None:
    program, hook = _anchored(world, [world.examples(1, start=300)[0]])
    assert hook.of(CandidateAccepted)
    assert program.combee_report.best_score > program.combee_report.seed_score


def test_an_anchor_counts_as_an_example_that_may_not_be_copied(world: Any) -> None:
    long = dspy.Example(question=f"{SAMPLE}, word for ant?", answer="TNA").with_inputs("question")
    plain = world.examples(24)
    hook = Recorder()
    Combee(
        world.metric,
        max_metric_calls=80,
        reflection_lm=world.proposer_lm,
        reflection_minibatch_size=6,
        operators=[Obeys(f"{OWN} {_rules(world)} {SAMPLE}")],
        anchors=[long],
        hooks=[hook],
        probe=False,
    ).compile(_student(), trainset=plain, valset=world.examples(8, start=48))
    assert not hook.of(CandidateAccepted)
    assert all("copies" in event.reason for event in hook.of(CandidateRefused))


def test_anchors_are_no_way_to_learn_from_held_out_rows(world: Any) -> None:
    with pytest.raises(SplitOverlapError, match="anchors"):
        Combee(
            world.metric, max_metric_calls=60, reflection_lm=world.proposer_lm, anchors=[_ox()], probe=False
        ).compile(_student(), trainset=world.examples(24), valset=world.examples(8, start=48), heldout=[_ox(), _ox(1)])
    assert not world.task_lm.requests


def test_anchors_that_nobody_would_ask_are_refused(world: Any) -> None:
    class Sampler:
        def next_minibatch_ids(self, loader: Any, state: Any) -> list[Any]:
            return list(loader.all_ids())[:3]

    with pytest.raises(ArgumentValueError, match="anchors"):
        _anchored(world, [_ox()], reflection_minibatch_size=None, gepa_kwargs={"batch_sampler": Sampler()})
    with pytest.raises(ArgumentValueError, match="anchors"):
        Combee.parity(world.metric, max_metric_calls=60, reflection_lm=world.proposer_lm, anchors=[_ox()])


class Halves(Operator):
    """One operator fills the instruction, the other the descriptions: each stays within the budget."""

    needs_lessons = False
    edits_fields = True

    def __init__(self, rules: str, where: str) -> None:
        self.rules = rules
        self.where = where

    @property
    def name(self) -> str:  # type: ignore[override]  # two labels for one class
        return f"halves-{self.where}"

    def apply(self, given: Any, context: Any) -> Any:
        half = f"{self.rules} {self.where}"
        if self.where == "instruction":
            return Edit(instruction=f"{OWN} {half}")
        return Edit(instruction=f"{OWN} Well.", field_descriptions={"answer": half})


def test_a_merge_cannot_break_the_budget_of_instruction_and_descriptions_together(world: Any) -> None:
    rules = [f"the word for {row.question.split()[-1][:-1]} is {row.answer}" for row in world.examples(12)]
    first, second = ". ".join(rules[:6]), ". ".join(rules[6:])
    most = max(estimate_tokens(f"{OWN} {one}") for one in (first, second)) + 12
    assert estimate_tokens(f"{OWN} {first} {second}") > most
    _, hook = _run(
        world,
        guards=Guards(max_tokens=most),
        operators=[Halves(first, "instruction"), Halves(second, "answer")],
        diversity=False,
        max_metric_calls=400,
        use_merge=True,
    )
    assert len(hook.of(CandidateAccepted)) >= 2
    for event in hook.of(ValidationFinished):
        fields = json.loads(event.texts[fields_key("self")])["fields"]
        assert estimate_tokens(event.texts["self"]) + sum(map(estimate_tokens, fields.values())) <= most, event.texts
