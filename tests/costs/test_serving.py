"""The LM calls of a program that serves have a role of their own, wherever books are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Costs, Price, load_candidate
from combee_dspy.artifacts import OnlinePlaybook
from combee_dspy.costs import CostTotals, metered, serving, totals
from combee_dspy.evaluation import Judge
from combee_dspy.testing import ScriptedLM, ScriptedRequest
from tests.worlds import World, examples, in_kind, metric, rows

PRICES = Costs(prices={"scripted/task": Price(1.0, 1.0)})
SMALL: dict[str, Any] = {"train": 8, "validation": 4, "max_metric_calls": 30}


def booked(world: World, program: Any, *, judge: Any = None) -> CostTotals:
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()), metered(PRICES) as meter:
        if judge is None:
            program(question="Number 1: word for bee?")
        else:
            dspy.Evaluate(devset=examples(6), metric=judge, num_threads=3, display_progress=False)(
                program
            )
    return totals(meter.usage())


def test_what_was_compiled_or_loaded_serves_and_its_student_does_not(
    world: World, tmp_path: Path
) -> None:
    student = dspy.Predict("question -> answer")
    better = world.compile(student, log_dir=tmp_path, **SMALL)
    loaded = load_candidate(student, tmp_path, "best")
    for program in (better, loaded, better.deepcopy()):
        costs = booked(world, program)
        assert costs.by_role.keys() == {"serving"}
        assert costs.by_role["serving"].dollars == pytest.approx(costs.total.tokens / 1e6) != 0
    assert booked(world, student).by_role.keys() == {"task"}
    # The search itself served nobody.
    assert {row["role"] for row in rows(tmp_path, "SELECT DISTINCT role FROM usage")} <= {
        "task",
        "proposer",
    }


def test_a_program_from_a_saved_state_is_marked_by_its_user(world: World, tmp_path: Path) -> None:
    world.compile(**SMALL).save(tmp_path / "state.json")
    program = dspy.Predict("question -> answer")
    program.load(tmp_path / "state.json")
    assert booked(world, program).by_role.keys() == {"task"}
    assert booked(world, serving(program)).by_role.keys() == {"serving"}


def test_what_judges_an_answer_that_is_served_is_the_evaluator(world: World) -> None:
    better = world.compile(**SMALL)

    def answer(request: ScriptedRequest) -> str:
        return in_kind(request, {"reasoning": "r", "score": 1.0, "feedback": "f"})

    judge = Judge("Is it right?", lm=ScriptedLM(answer))
    costs = booked(
        world,
        better,
        judge=lambda gold, pred, trace=None: judge(gold, pred, None, None, None).score,
    )
    assert {role: sums.calls for role, sums in costs.by_role.items()} == {
        "evaluator": 6,
        "serving": 6,
    }


@pytest.mark.parametrize("track_usage", [True, False])
def test_a_meter_around_a_search_counts_what_its_journal_counts(
    world: World, tmp_path: Path, *, track_usage: bool
) -> None:
    with dspy.context(track_usage=track_usage), metered(PRICES) as outer:
        world.compile(log_dir=tmp_path, **SMALL)
    booked = rows(
        tmp_path,
        "SELECT role, sum(calls) AS calls, sum(prompt_tokens) AS tokens FROM usage GROUP BY role",
    )
    assert {row["role"]: (row["calls"], row["tokens"]) for row in booked} == {
        row.role: (row.calls, row.prompt_tokens) for row in outer.usage()
    }


@pytest.mark.parametrize("whole", [True, False])
def test_a_search_that_goes_on_from_a_compiled_program_serves_nobody(
    world: World, tmp_path: Path, *, whole: bool
) -> None:
    class Around(dspy.Module):
        def __init__(self, inner: dspy.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, question: str) -> dspy.Prediction:
            return self.inner(question=question)

    better = world.compile(**SMALL)
    better._compiled = whole
    with metered(PRICES) as outer:
        world.compile(better if whole else Around(better), log_dir=tmp_path, **SMALL)
    assert "serving" not in {row.role for row in outer.usage()}
    assert not rows(tmp_path, "SELECT 1 FROM usage WHERE role = 'serving'")


def test_a_playbook_that_learns_online_serves(world: World) -> None:
    online = OnlinePlaybook(
        dspy.Predict("question -> answer"), metric, reflection_lm=world.proposer_lm
    )
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()), metered(PRICES) as meter:
        online.predict(examples(3))
    assert {row.role for rollout in online.rollouts for row in rollout.usage} == {"serving"}
    assert [(row.role, row.calls) for row in meter.usage()] == [("serving", 3)]
    assert all(rollout.prompt_hash for rollout in online.rollouts)
