"""The plan: its ten sections, where its numbers come from, and what it is refused for."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace

import pytest
from dspy.utils import DummyLM

from combee_dspy import Budget, Combee, Diversity, Search, tracking
from combee_dspy.diversity import Temperature
from combee_dspy.exceptions import RefusedError
from combee_dspy.rollouts import Batching, Threads
from combee_dspy.stopping import Patience, Target
from combee_strategist.exceptions import PlanGapsError
from combee_strategist.planning import (
    Choices,
    Curve,
    count_in_flight,
    make_plan,
    read_diagnosis,
    read_spec,
    simulate_batches,
)
from combee_strategist.planning import diagnose as judge
from plugins.strategist.tests.searches import SPEC, Converged
from tests.tracking.journals import Story

WHY = "measured on the same service last week"
TITLES = (
    "Task and baseline",
    "Convergence diagnosis",
    "Parallelism shape",
    "Dynamic batching policy",
    "Rollout diversity controls",
    "Evaluator",
    "Stopping rule and final selection",
    "Production canary",
    "Cost report",
    "Risks and honest limits",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Converged(tmp_path_factory.mktemp("serial")).write("begin")


def spec(place=None, overrides=None, **sections):
    whole = {
        part: {**one, **sections.get(part, {})} if isinstance(one, dict) else one
        for part, one in SPEC.items()
    }
    whole["serial"] |= {} if place is None else {"run": str(place)}
    return read_spec(
        {
            **whole,
            "overrides": {
                name: {"value": one, "reason": WHY} for name, one in (overrides or {}).items()
            },
        }
    )


def test_ten_sections_whose_numbers_say_where_they_come_from(place, tmp_path):
    plan = make_plan(spec(place))
    plan.write(tmp_path / "plan")
    text = (tmp_path / "plan.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \d+\. (.*)$", text, re.MULTILINE) == list(TITLES)
    for rows in plan.tables.values():
        for _, value, source in rows:
            assert not re.search(r"\d", value) or re.match(
                "(assumption|default|computed|simulated|measured|Amdahl)", source
            )
    found = judge(Curve.of_run(place), slots=64)
    assert found.to_plateau is not None
    assert plan.choices == Choices(workers=8, rollouts=4 * found.to_plateau)
    assert f"{4 * found.to_plateau:,}" in text
    (spent,) = tracking.runs(place)
    each = spent["tokens"] / found.rollouts
    assert (
        f"{each * plan.choices.rollouts:,.0f}"
        in dict(row[:2] for row in plan.tables["cost"])["tokens"]
    )
    assert "simulated service" in text
    record = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert record["choices"]["workers"] == 8
    page = (tmp_path / "plan.html").read_text(encoding="utf-8")
    assert page.count("<h2>") == 10
    assert page.count("<table>") == len(plan.tables)


def test_without_a_diagnosis_or_with_another_verdict_there_is_no_plan(tmp_path):
    with pytest.raises(RefusedError, match="without a diagnosis"):
        make_plan(spec())
    flat = Story(tmp_path).whole()  # four validation examples
    with pytest.raises(RefusedError, match="before convergence"):
        make_plan(spec(flat))
    # A diagnosis that says otherwise does not help, nor one with a margin in which anything is
    # flat.
    judge(Curve.of_run(flat), slots=64).save(tmp_path)
    file = tmp_path / "diagnosis.json"
    file.write_text(
        re.sub(
            r'"margin": [\d.]+', '"margin": 0.9', file.read_text().replace("undecided", "converged")
        )
    )
    assert read_diagnosis(tmp_path).go
    with pytest.raises(RefusedError, match="before convergence"):
        make_plan(spec(flat))


class Wide(Converged):
    """The same search with many rollouts under way at once."""

    def _timed(self, key, kind, value, **columns):
        found = super()._timed(key, kind, value, **columns)
        return replace(found, started=found.started - 7.0)


def test_a_wide_search_is_no_serial_baseline(tmp_path):
    place = Wide(tmp_path).write("begin")
    with pytest.raises(
        PlanGapsError,
        match=r"serial.workers 1 is not what .* had: up to 8 in flight.*num_threads=1",
    ):
        make_plan(spec(place))
    assert make_plan(spec(place, serial={"workers": 8})).choices.workers == 64


@pytest.mark.parametrize(
    ("spans", "most"),
    [
        ([], 0),
        ([(0, 1), (1, 2)], 1),
        ([(0, 3), (1, 2), (1.5, 4), (3, 5)], 3),
        ([(0, 9), (0, 9)], 2),
    ],
)
def test_how_many_were_under_way_at_once(spans, most):
    assert count_in_flight(spans) == most


def test_what_the_search_sets_otherwise_stands_in_the_plan(place, tmp_path):
    plan = make_plan(spec(place))
    planned, target = plan.choices, plan.diagnosis.score + 0.01
    kept = {
        "num_threads": 8,
        "diversity": Diversity(temperature=Temperature()),
        "executor": Threads(Batching("target", 0.2, 0.01)),
        "operators": planned.operators,
        "budget": Budget(rollouts=planned.rollouts) | Patience(updates=3) | Target(target),
        "search": Search(keep="pareto", children=1),
    }

    def text(**given):
        combee = Combee(lambda *_: 1.0, reflection_lm=DummyLM([]), **{**kept, **given})
        plan = make_plan(spec(place), combee=combee)
        plan.write(tmp_path / "plan")
        return plan.departures, (tmp_path / "plan.md").read_text(encoding="utf-8")

    assert text() == ((), text()[1])
    assert "sets what is planned" in text()[1]
    found, page = text(
        num_threads=None,
        budget=Budget(rollouts=9),
        operators=["insert"],
        diversity=False,
        search=Search(staleness=1),
    )
    assert [row[0] for row in found] == [
        "workers",
        "rollouts",
        "operators",
        "keep",
        "similarity",
        "patience",
        "target",
        "temperature",
    ]
    found, _ = text(search=None)
    assert found == (("children an update", "1", "5"),), "one for each operator, each validated"
    assert "rollouts: " in page
    assert "9 in the file" in page
    found, page = text(budget=Budget(rollouts=9) & Patience(2))
    assert "no limit of its own" in page, "two rules that must both say so are no limit"
    make_plan(spec(place)).write(tmp_path / "plan")
    assert "Not checked: what the wide search sets" in (tmp_path / "plan.md").read_text(
        encoding="utf-8"
    )


def test_a_dot_in_the_name_of_a_plan_begins_no_ending(place, tmp_path):
    plan = make_plan(spec(place))
    plan.write(tmp_path / "v1.2")
    assert {path.name for path in tmp_path.iterdir()} == {"v1.2.md", "v1.2.html", "v1.2.json"}
    record = json.loads((tmp_path / "v1.2.json").read_text(encoding="utf-8"))
    assert record["diagnosis"]["verdict"] == "converged"
    assert sum(share for _, share in record["batches"]) == pytest.approx(1.0)


def test_an_override_is_used_and_its_reason_stands_beside_it(place):
    plan = make_plan(spec(place, {"workers": 24, "canary_share": 0.2}))
    assert plan.choices.workers == 24
    assert ("workers", "24", f"override: {WHY}") in plan.tables["shape"]
    assert ("share of the requests", "20%", f"override: {WHY}") in plan.tables["canary"]


@pytest.mark.parametrize(
    "overrides",
    [
        {"canary_share": 0},
        {"canary_share": -0.1},
        {"canary_hours": 0.0},
        {"canary_share": "0"},
        {"canary_share": float("nan")},
        {"canary_hours": "nan"},
        {"canary_hours": "-inf"},
    ],
)
def test_a_canary_is_not_skipped_for_any_reason(place, overrides):
    with pytest.raises(RefusedError, match="a canary skipped"):
        make_plan(spec(place, overrides))


def test_a_plan_for_many_workers_needs_diversity(place):
    with pytest.raises(RefusedError, match="80 workers with diversity off"):
        make_plan(spec(place, {"workers": 80, "similarity": 0.999}))
    make_plan(spec(place, {"workers": 80}))


@pytest.mark.parametrize(
    "overrides",
    [
        {"wokers": 8},
        {"workers": 0},
        {"patience_on": "train"},
        {"promotion": "train"},
        {"canary_share": 1e-9},
        {"canary_share": 5},
        {"canary_hours": 1e-6},
        {"canary_hours": float("inf")},
        {"canary_points": 90},
        {"patience": 10**9},
        {"spearman": 0.01},
        {"calibration_share": 1e-6},
        {"variance": 99},
        {"target_points": 500},
        {"margin_points": 60},
        {"operators": ["insert", "improve"]},
    ],
)
def test_an_override_of_nothing_is_a_gap(place, overrides):
    with pytest.raises(
        PlanGapsError, match=f"overrides.{next(iter(overrides))}.*known are workers"
    ):
        make_plan(spec(place, overrides))


def test_rows_that_were_tuned_on_are_said_to_support_no_claim(place, tmp_path):
    make_plan(spec(place, evaluation={"used_to_tune": True})).write(tmp_path / "plan")
    assert "have been used to tune" in (tmp_path / "plan.md").read_text(encoding="utf-8")


TARGET = Batching("target", 0.2, 0.01)


def test_a_full_batch_goes_at_once_and_a_lone_one_after_its_wait():
    full = simulate_batches([1.0], 16, 16, TARGET)
    assert set(full.sizes) == {16}
    assert full.rate == pytest.approx(16.0, rel=0.02)
    assert full.utilisation == pytest.approx(1.0, rel=0.02)
    # Fewer workers than slots never fill them: each batch waits 0.2 s for company.
    stale = simulate_batches([1.0], 8, 16, TARGET)
    assert set(stale.sizes) == {8}
    assert stale.rate == pytest.approx(8 / 1.2, rel=0.02)
    # More workers than slots: a batch is what has become free.
    assert max(simulate_batches([0.5, 1.0, 2.0], 64, 16, TARGET).sizes) <= 16


def test_without_a_rule_each_goes_as_soon_as_a_slot_is_free():
    assert simulate_batches([1.0], 8, 16, Batching()).rate == pytest.approx(8.0, rel=0.02)
    # Nothing hangs where a rule without a time waits for more than there are.
    assert simulate_batches([1.0], 2, 16, Batching(queue=4)).rate == pytest.approx(1.0, rel=0.02)


def test_what_a_specification_holds_is_no_markup(place, tmp_path):
    hostile = "<script>x</script> ![a](http://b) [c](d) | e \x1b[2J"
    make_plan(spec(place, task={"inputs": hostile})).write(tmp_path / "plan")
    page = (tmp_path / "plan.html").read_text(encoding="utf-8")
    assert not re.search(r"<(script|img|a)\b", page)
    assert "\x1b" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.chromium
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_a_browser_shows_every_section_and_complains_of_nothing(place, tmp_path):
    make_plan(spec(place)).write(tmp_path / "plan")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    command += [
        f"--user-data-dir={tmp_path}/profile",
        "--dump-dom",
        (tmp_path / "plan.html").as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)  # noqa: S603 - our own page
    assert "CONSOLE" not in done.stderr
    assert done.stdout.count("<h2>") == 10
