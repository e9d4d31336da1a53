"""What the ten sections of a plan must hold, and that what is planned is what runs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml
from dspy.utils import DummyLM

from combee_dspy.cli._plan import plan_run
from combee_dspy.events import ChildRefused
from combee_dspy.rollouts import Batching, Threads
from combee_strategist.exceptions import PlanGapsError
from combee_strategist.planning import choose_shape, grow_workers, make_plan, read_spec
from plugins.strategist.tests.searches import SPEC, Converged

WHY = "measured on the same service last week"
LARGE = {"evaluator": "openai/llama-70b", "proposer": "openai/llama-405b"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Converged(tmp_path_factory.mktemp("serial")).write("begin")


def spec(place, overrides=None, **sections):
    whole = {
        part: {**value, **sections.pop(part, {})} if isinstance(value, dict) else value
        for part, value in SPEC.items()
    }
    whole["serial"] |= {"run": str(place)}
    reasoned = {name: {"value": value, "reason": WHY} for name, value in (overrides or {}).items()}
    return read_spec({**whole, **sections, "overrides": reasoned})


def page(plan, folder):
    plan.write(folder / "plan")
    return (folder / "plan.md").read_text(encoding="utf-8")


def test_each_section_holds_what_the_mission_asks(place, tmp_path):
    text = page(make_plan(spec(place, models=LARGE)), tmp_path)
    for part in (
        "temperature of the proposer | 1 to 0.7 over 20 updates",
        "re-initialisation | none: patience ends the run after 3 updates",
        "| proposer | openai/llama-405b |",
        "| evaluator | openai/llama-70b |",
        "smaller than the proposer | yes | computed: 70 beside 405 billion parameters",
        "calibration is decided | after 20 rollouts that both judged",
        "the hash of the row and the number of the draw",
        "It is evaluated again only as another draw",
        "The result is the best on validation, of equals the newest; the program as it is where",
        "taken back by itself where its failures pass the incumbent's by | 20% of the requests",
        "combee canary rollback formula",
        "Hooks: the tracker",
        "tokens an update |",
        "tokens a point |",
        "above serial, if the target is met; serial",
        "Workers grow:",
    ):
        assert part in text, part
    assert "after 5 updates" in page(make_plan(spec(place, {"patience": 9})), tmp_path)
    assert "finalist" not in text
    code = page(make_plan(spec(place)), tmp_path)
    assert "calibration | none: code scores" in code


def test_the_published_command_has_the_target_and_the_reason(place, tmp_path):
    command = make_plan(spec(place)).publish_command()
    assert command == ("combee publish RUN --name formula --epsilon 0.005 --target 0.63 --hours 24")
    assert command in page(make_plan(spec(place)), tmp_path)
    hurried = make_plan(spec(place, {"canary_hours": 0.1})).publish_command()
    assert hurried.endswith(f"--hours 0.1 --why '{WHY}'")


def test_no_target_lies_above_the_highest_score(place):
    rows = make_plan(spec(place, serial={"score": 1.0})).tables["canary"]
    (target,) = (value for label, value, _ in rows if label == "least held-out score")
    assert target == "1.000, the highest there is: serial search has 1.000"


@pytest.mark.parametrize(
    ("failure", "share", "hours"), [("annoys", 0.1, 12), ("costs", 0.05, 24), ("harms", 0.02, 72)]
)
def test_what_a_failure_costs_decides_the_canary(place, failure, share, hours):
    plan = make_plan(spec(place, failure=failure))
    assert (plan.choices.canary_share, plan.choices.canary_hours) == (share, hours)
    assert plan.tables["canary"][0][2] == f"default: a failure {failure}"
    assert f"--hours {hours}" in plan.publish_command()
    assert make_plan(spec(place, {"canary_hours": 48}, failure=failure)).choices.canary_hours == 48


def test_a_specification_says_what_a_failure_does():
    with pytest.raises(PlanGapsError, match=r"failure is missing.*decides the share"):
        read_spec({name: value for name, value in SPEC.items() if name != "failure"})


def test_a_run_by_the_settings_of_a_plan_departs_from_nothing(place, tmp_path):
    asked = spec(place, {"workers": 8, "patience": 6})
    plan = make_plan(asked)
    data = {
        "data": {"benchmark": {"name": "formula-mini", "params": {"train": 6, "validation": 4}}},
        "lms": {"task": {"model": "simulated", "time_scale": 0}},
        **plan.run_settings(),
    }
    combee = plan_run(data, tmp_path).combee(DummyLM([]))
    again = make_plan(asked, combee=combee)
    assert again.departures == ()
    assert (again.batching, again.batches) == (plan.batching, plan.batches)
    text = page(plan, tmp_path)
    assert all(line in text for line in yaml.safe_dump(plan.run_settings()).splitlines())
    record = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert record["run"] == plan.run_settings()


def test_the_batching_that_stands_in_a_plan_is_what_the_file_runs(place, tmp_path):
    asked = spec(place)
    data = {
        "data": {"benchmark": {"name": "formula-mini", "params": {"train": 6, "validation": 4}}},
        "lms": {"task": {"model": "simulated", "time_scale": 0}},
        **make_plan(asked).run_settings(),
    }
    combee = plan_run(data, tmp_path).combee(DummyLM([]))
    combee.settings = replace(combee.settings, executor=Threads())
    plan = make_plan(asked, combee=combee)
    assert [row[0] for row in plan.departures] == ["batching"]
    assert plan.batching == Batching()
    assert "Rollouts go each as soon as a slot is free." in page(plan, tmp_path)


@pytest.mark.parametrize(
    ("utilisation", "tasks", "name", "at_once"),
    [
        (0.9, 1, "candidate-parallel", 1),
        (0.1, 1, "candidate-parallel", 1),
        (0.5, 4, "candidate-parallel", 1),
        (0.49, 4, "hybrid", 2),
        (0.2, 8, "hybrid", 5),
        (0.2, 4, "task-parallel", 4),
    ],
)
def test_below_half_the_slots_several_searches_share_them(utilisation, tasks, name, at_once):
    shape = choose_shape(utilisation, tasks)
    assert (shape.name, shape.at_once) == (name, at_once)
    assert f"{utilisation:.0%}" in shape.reason
    assert shape.rejected


def test_several_tasks_get_the_shape_that_the_slots_allow(place, tmp_path):
    # Eight workers on 64 slots.
    text = page(make_plan(spec(place, task={"count": 20})), tmp_path)
    assert "| shape | hybrid, " in text
    assert "compile_many(tasks, combee=combee, at_once=" in text
    full = make_plan(spec(place, {"workers": 64}, task={"count": 20}))
    assert full.shape.name == "candidate-parallel"


def test_risks_follow_from_the_inputs(place):
    calm = make_plan(spec(place)).risks
    assert "Lessons fit the training rows" in calm[0]
    risky = make_plan(
        spec(
            place,
            {"workers": 80},
            models=LARGE,
            hardware={"models": "shared"},
            evaluation={"used_to_tune": True},
            budget={"rollouts": 100},
            failure="harms",
        )
    ).risks
    assert "used to tune" in risky[0]
    for part in (
        "is learned instead of",
        "80 workers share 64",
        "takes slots",
        "cannot be undone",
    ):
        assert any(part in risk for risk in risky), part
        assert not any(part in risk for risk in calm), part
    assert any("budget of 100 rollouts ends" in risk for risk in risky)


class Wide(Converged):
    """A search whose second child is better late."""

    rises, copies = True, 0

    async def begin(self, log):
        await super().begin(log)
        for _ in range(self.copies):
            reason = "similarity 0.930 to its parent exceeds 0.728 (char-ngrams)"
            log.emit(ChildRefused("insert", reason, f"{0:016d}"), step=0)
        if self.rises:
            scores = [float(row < 108) for row in range(120)]
            await self._rolls(log, f"{2:016d}", "validation", scores, 2_000)


class Stuck(Wide):
    rises = False


class Copying(Wide):
    copies = 4


def test_workers_grow_only_while_batches_fill_diversity_holds_and_validation_improves(tmp_path):
    rising = Wide(tmp_path / "rising").write("begin")
    growth = grow_workers(rising, 1, 64)
    assert (growth.workers, len(growth.reasons)) == (2, 3)
    assert grow_workers(rising, 1, 1).workers == 1, "no more than the slots"
    assert grow_workers(rising, 64, 128).workers == 64, "workers that idle do not grow"
    copying = Copying(tmp_path / "copying").write("begin")
    assert grow_workers(copying, 1, 64).workers == 1
    stuck = Stuck(tmp_path / "stuck").write("begin")
    assert grow_workers(stuck, 1, 64).workers == 1
    asked = spec(stuck, wide=str(rising), hardware={"slots": 64})
    assert make_plan(asked).choices.workers == 8, "one in flight does not fill eight workers"
