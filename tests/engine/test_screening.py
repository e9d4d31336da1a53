"""Children are screened on a few of their parent's examples, and refused only where they are shown to be worse."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import dspy
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from combee_dspy import Combee
from combee_dspy.engine.candidates import candidate_id
from combee_dspy.engine.screening import Screening, ScreenPlan, verdict
from combee_dspy.engine.state import Proposed
from combee_dspy.evaluation import sign_test
from combee_dspy.events import CandidateRejected, CandidateScreened, RolloutFinished
from combee_dspy.records import Rollout
from combee_dspy.testing._scripted_lm import ScriptedLM, as_chat
from tests.engine.conftest import Recorder, _task_answer, answer_in_kind

scores = st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 0.5, 1.0])), max_size=20)


@given(scores)
def test_the_sign_test_is_the_exact_one(pairs: list[tuple[float, float]]) -> None:
    wins, losses, chance = sign_test([one for one, _ in pairs], [other for _, other in pairs])
    assert wins == sum(after > before for before, after in pairs)
    assert losses == sum(after < before for before, after in pairs)
    told = wins + losses
    expected = binomtest(losses, told, 0.5, alternative="greater").pvalue if told else 1.0
    assert chance == pytest.approx(expected)


def test_a_score_that_is_no_number_is_a_loss() -> None:
    assert sign_test([0.0], [float("nan")])[:2] == (0, 1)


def test_scores_of_numpys_are_counted_like_any_other() -> None:
    many = np.ones(200)
    assert sign_test(many, many - 1) == (0, 200, 0.5**200)


@pytest.mark.parametrize(
    ("wins", "losses", "passed"), [(0, 0, True), (0, 1, True), (0, 2, False), (1, 3, True), (1, 4, False), (3, 4, True)]
)
def test_eight_examples_refuse_what_they_show_to_be_worse(wins: int, losses: int, passed: bool) -> None:
    before = [0.0] * wins + [1.0] * losses + [1.0] * (8 - wins - losses)
    after = [1.0] * wins + [0.0] * losses + [1.0] * (8 - wins - losses)
    assert verdict(before, after)[0] is passed
    assert verdict(before, after)[1]


def _plan(parent: list[float], floor: float = 0.0) -> ScreenPlan:
    example = dspy.Example(question="?").with_inputs("question")
    rollouts = tuple(Rollout(str(place), example, None, (), score) for place, score in enumerate(parent))
    return ScreenPlan("child", "parent", tuple(range(8)), rollouts, floor)


def test_where_the_parent_was_as_wrong_as_can_be_no_child_can_be_refused() -> None:
    unknown: list[float | None] = [None] * 8
    assert _plan([0.0] * 8).surely_passes(unknown)
    assert _plan([-1.0] * 8, floor=-1.0).surely_passes(unknown)
    # One loss of eight refuses nobody; two would.
    assert _plan([0.0] * 7 + [1.0]).surely_passes(unknown)
    assert not _plan([0.0] * 6 + [1.0] * 2).surely_passes(unknown)
    assert _plan([0.0] * 6 + [1.0] * 2).surely_passes([*[None] * 7, 1.0])


def test_where_a_score_below_the_floor_has_come_every_missing_one_may_be_a_loss() -> None:
    assert not _plan([0.0] * 8).surely_passes([-1.0, *[None] * 7])
    assert not _plan([0.0] * 8, floor=-math.inf).surely_passes([None] * 8)


@pytest.mark.parametrize("seen", ["parent", "child"])
def test_a_score_below_that_of_a_failure_lifts_the_floor_for_the_rest_of_the_run(seen: str) -> None:
    parents = {"seed": [0.0] * 12, "other": [0.0] * 11 + [-0.5 if seen == "parent" else 0.0]}
    example = dspy.Example(question="?").with_inputs("question")
    proposed = {
        candidate_id({"self": name}): Proposed(0, candidate_id({"self": name[1:]})) for name in ("1seed", "2seed")
    }
    screening = Screening(0, 8, frozenset(), lambda: proposed, lambda event: None, 0.0)
    rows = [str(place) for place in range(12)]

    def planned(child: str) -> ScreenPlan:
        screening.begin(1)
        for number, (name, scores) in enumerate(parents.items()):
            if name == "seed" or child == "2seed":
                found = tuple(Rollout(row, example, None, (), score) for row, score in zip(rows, scores, strict=True))
                screening.remember(number, {"self": name}, found)
        plan = screening.plan({"self": child}, rows, str)
        assert plan is not None
        return plan

    first = planned("1seed")
    assert first.surely_passes([None] * 8)
    screening.judge(first, [replace(first.parent[0], score=-0.5 if seen == "child" else 0.0)] * 8)
    assert not planned("2seed").surely_passes([None] * 8)


@given(st.lists(st.tuples(*[st.sampled_from([0.0, 0.5, 1.0])] * 2, st.booleans()), min_size=8, max_size=8))
def test_a_child_that_surely_passes_does_pass(rows: list[tuple[float, float, bool]]) -> None:
    before, after = [old for old, _, _ in rows], [new for _, new, _ in rows]
    if _plan(before).surely_passes([new if known else None for _, new, known in rows]):
        assert verdict(before, after)[0]


def _run(world: Any, **kwargs: Any) -> tuple[Any, Recorder]:
    hook = Recorder()
    given = {
        "max_metric_calls": 200,
        "reflection_lm": world.proposer_lm,
        "reflection_minibatch_size": 24,
        "operators": ["insert"],
        "num_threads": 4,
        "probe": False,
        "hooks": [hook],
        "speculation": 0.0,
        **kwargs,
    }
    with dspy.context(lm=world.task_lm):
        program = Combee(world.metric, **given).compile(
            world.student(), trainset=world.examples(36), valset=world.examples(12, start=100)
        )
    return program, hook


def test_a_child_runs_on_the_screens_examples_and_no_others_of_its_minibatch(world: Any) -> None:
    _, hook = _run(world, screen=5)
    screened = hook.of(CandidateScreened)
    assert screened
    assert {one.size for one in screened} == {5}
    for one in screened:
        own = [
            row for row in hook.of(RolloutFinished) if row.candidate_id == one.candidate_id and row.purpose == "screen"
        ]
        assert len(own) == 5
        assert one.score == pytest.approx(sum(row.rollout.score for row in own) / 5)
    assert not [row for row in hook.of(RolloutFinished) if row.purpose == "child"]


def test_a_minibatch_no_larger_than_the_screen_is_run_whole_and_must_be_beaten(world: Any) -> None:
    _, hook = _run(world, reflection_minibatch_size=6, screen=8, max_metric_calls=120)
    assert not hook.of(CandidateScreened)
    assert [row for row in hook.of(RolloutFinished) if row.purpose == "child"]


def test_what_the_screen_shows_to_be_worse_is_not_validated(world: Any) -> None:
    """A proposer whose lessons make the program forget what it knew."""
    spoilt = ScriptedLM(lambda request: as_chat({"lessons": ["Rule: never answer"]}), model="scripted/proposer")

    def task(request: Any) -> str:
        if "never answer" in request.system:
            return answer_in_kind(request, {"reasoning": "because", "answer": "no"})
        return _task_answer(request)

    world.proposer_lm, world.task_lm = spoilt, ScriptedLM(task, model="scripted/task")
    _, hook = _run(world, screen=16, max_metric_calls=120, diversity=False)
    (first, *_) = hook.of(CandidateScreened)
    assert not first.passed
    assert "worse" in first.reason
    assert any("sign test" in one.reason for one in hook.of(CandidateRejected))
    validated = {row.candidate_id for row in hook.of(RolloutFinished) if row.purpose == "validation"}
    assert first.candidate_id not in validated


def test_anchors_are_on_every_screen(world: Any) -> None:
    anchor = world.examples(1, start=200)[0]
    _, hook = _run(world, screen=3, anchors=[anchor])
    for one in hook.of(CandidateScreened):
        rows = {
            row.rollout.example.question
            for row in hook.of(RolloutFinished)
            if row.candidate_id == one.candidate_id and row.purpose == "screen"
        }
        assert anchor.question in rows
        assert len(rows) == 4
