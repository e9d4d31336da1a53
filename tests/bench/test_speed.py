from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import dspy
import pytest

from combee_dspy.bench import (
    LABEL,
    METHODS,
    SpeedOptions,
    SpeedRun,
    run_speed,
    speed_record,
    speed_svg,
    summarize_speed,
)
from combee_dspy.bench import speed_options as options_module
from combee_dspy.bench.speed_endpoint import open_endpoint
from combee_dspy.bench.speed_methods import DEFAULT_METHODS, Pinned, lacking, picked_size
from combee_dspy.controllers import BatchView
from combee_dspy.exceptions import ArgumentValueError, DataSourceError
from combee_dspy.lms import CapacityModel, SimulatedConfig, SimulatedService, SimulatedTask
from combee_dspy.records import BatchDecision, Clamp, PowerLawFit

TINY = SpeedOptions(
    methods=("gepa", "combee"), examples=6, validation=4, heldout=5, slots=4, time_scale=0.001, base_accuracy=0.3
)
NAMES = ("Current Ratio", "Gross Margin", "Quick Ratio")


@pytest.fixture(scope="module")
def runs() -> list[SpeedRun]:
    methods = ("gepa", "combee", "combee-picked")
    return list(run_speed(replace(TINY, methods=methods, repeats=2, seeds=(0, 1))))


def test_timed_runs_come_first_each_repeat_in_a_rotated_order_then_seed_by_seed(runs: list[SpeedRun]) -> None:
    assert [(run.method, run.repeat, run.seed) for run in runs] == [
        *((name, 0, 0) for name in ("gepa", "combee", "combee-picked")),
        *((name, 1, 0) for name in ("combee", "combee-picked", "gepa")),
        *((name, None, 0) for name in ("gepa", "combee", "combee-picked")),
        *((name, None, 1) for name in ("gepa", "combee", "combee-picked")),
    ]


def test_every_run_has_its_figures(runs: list[SpeedRun]) -> None:
    for run in runs:
        assert run.updates >= 1
        # An epoch, and the validation set for the student.
        assert run.calls["task"] >= TINY.examples + TINY.validation
        assert run.tokens["task"] > run.written["task"] > run.calls["task"]
        assert len(run.before) == len(run.after) == TINY.heldout


def test_timed_runs_have_seconds_and_a_bound_that_they_do_not_beat(runs: list[SpeedRun]) -> None:
    for run in runs:
        if run.repeat is None:
            assert (run.seconds, run.bound, run.slot_use, run.efficiency) == (None, None, None, None)
            continue
        assert run.seconds == pytest.approx(run.wall_seconds / TINY.time_scale)
        assert run.slot_use is not None
        assert 0 < run.slot_use <= 1
        assert run.bound is not None
        assert run.efficiency is not None
        assert run.free_efficiency is not None
        assert 0 < run.free_efficiency <= run.efficiency <= 1


def test_gepa_draws_three_examples_an_iteration_and_plans_nothing(runs: list[SpeedRun]) -> None:
    assert {(run.updates, run.sizes, run.picked) for run in runs if run.method == "gepa"} == {
        (TINY.examples // 3, (), None)
    }


def test_what_was_planned_in_the_first_timed_run_is_what_is_graded(runs: list[SpeedRun]) -> None:
    planned = next(run for run in runs if run.method == "combee")
    assert planned.picked is not None
    for run in runs:
        if run.method == "combee" and run.repeat is None:
            both = min(len(run.sizes), len(planned.sizes))
            assert run.sizes[:both] == planned.sizes[:both]
        if run.method == "combee-picked":
            assert set(run.sizes) == {planned.picked}
            assert run.updates >= 3


def test_results_are_medians_and_compared_on_the_seeds(runs: list[SpeedRun]) -> None:
    first, *others = summarize_speed(("gepa", "combee", "combee-picked"), runs)
    assert first.versus is None
    for result in (first, *others):
        assert result.seeds == (0, 1)
        assert len(result.seconds_of) == 2
        assert min(result.seconds_of) <= result.seconds <= max(result.seconds_of)
        # Held-out does not depend on latencies.
        assert result.repeated is True
    for result in others:
        assert result.versus is not None
        assert result.versus.reference == "gepa"
        assert result.versus.difference == pytest.approx(result.heldout.mean - first.heldout.mean)
        assert result.versus.comparable is (result.versus.times_faster is not None)


def test_before_any_seed_is_done_the_timed_run_is_what_there_is(runs: list[SpeedRun]) -> None:
    first, second = summarize_speed(("gepa", "combee"), runs[:2])
    assert (first.seeds, second.seeds) == ((0,), (0,))
    assert second.versus is not None
    assert second.repeated is None


def test_the_record_is_json_and_says_what_it_is(runs: list[SpeedRun]) -> None:
    results = summarize_speed(("gepa", "combee"), runs)
    record = json.loads(json.dumps(speed_record(TINY, results, runs, "combee bench speed", source="rows of ours")))
    assert record["label"] == LABEL == "simulated service, no language model"
    assert record["simulated"] is True
    assert record["command"] == "combee bench speed"
    assert record["source"] == "rows of ours"
    assert record["service"].startswith("latency (0.5 s + output tokens / 60) × lognormal(0.35)")
    assert {"python", "combee-dspy", "dspy", "gepa"} <= set(record["versions"])
    assert {"system", "processor", "cores", "load_average"} == set(record["machine"])
    assert record["date"].endswith("+00:00")
    assert record["options"]["examples"] == TINY.examples
    assert [one["method"] for one in record["results"]] == ["gepa", "combee"]
    assert record["results"][1]["versus"]["reference"] == "gepa"
    assert len(record["runs"]) == len(runs)
    assert record["runs"][0]["bound"]["stages"] >= 1
    assert [float(digit) for digit in record["runs"][0]["after"]] == list(runs[0].after)


def test_the_picture_says_what_it_stands_on(runs: list[SpeedRun]) -> None:
    results = summarize_speed(("gepa", "combee"), runs)
    drawn = speed_svg(results, TINY)
    ElementTree.fromstring(drawn)  # noqa: S314 - drawn here
    assert LABEL in drawn
    assert drawn.count("<rect ") == 1 + len(results)
    said = results[1].versus
    assert said is not None
    assert ("not comparable" in drawn) is (not said.comparable)


@pytest.mark.parametrize("method", [name for name in METHODS if not lacking(name) and not METHODS[name].follows])
def test_every_method_runs_an_epoch(method: str) -> None:
    (run,) = run_speed(replace(TINY, methods=(method,)))
    assert run.method == method
    assert run.calls["task"] >= TINY.examples + TINY.validation


def test_the_reference_may_be_timed_less_often() -> None:
    options = replace(TINY, methods=("gepa", "combee-epoch"), repeats=3, peer_repeats=1, program="predict")
    assert [(run.method, run.repeat) for run in run_speed(options)] == [
        ("gepa", 0),
        *(("combee-epoch", repeat) for repeat in range(3)),
    ]


def test_a_program_that_reasons_writes_what_the_law_says_and_one_that_does_not_writes_little() -> None:
    long, short = (
        next(iter(run_speed(replace(TINY, methods=("gepa",), program=program, validation=40))))
        for program in ("chain-of-thought", "predict")
    )
    assert long.calls["task"] >= TINY.examples + 40
    assert 200 < long.written["task"] / long.calls["task"] < 450
    assert short.written["task"] / short.calls["task"] < 40


def test_the_law_says_what_the_model_does_untaught() -> None:
    defaults = SpeedOptions()
    assert "right untaught 0.0%" in (defaults.law or "")
    assert (defaults.law or "").endswith("reasoning 300 tokens")
    assert "reasoning 300 tokens × lognormal(0.35)" in (replace(defaults, reasoning_spread=0.35).law or "")
    assert "reasoning" not in (replace(defaults, program="predict").law or "")
    assert "taught 100.0%" in (defaults.law or "")
    sure = replace(TINY, methods=("gepa",), base_accuracy=1.0, taught_accuracy=1.0)
    (run,) = run_speed(sure)
    assert set(run.before) == {1.0}


def test_attention_is_said_and_reaches_the_service() -> None:
    items, reading = replace(TINY, attention="items"), TINY
    assert items.service().capacity == SimulatedConfig().capacity
    assert "at most 12 items attended in a call" in (items.law or "")
    assert reading.service(3, timed=False).capacity == CapacityModel.reading()
    assert "items of about 5,000 tokens attended in a call" in (reading.law or "")
    record = json.loads(json.dumps(speed_record(reading, [], [], "combee bench speed")))
    assert (record["options"]["attention"], record["service"]) == ("reading", reading.law)


@pytest.mark.parametrize(
    ("lessons", "covered", "right"), [("mistake", "formula and kind of mistake", 0.0), ("formula", "formula", 1.0)]
)
def test_what_a_lesson_covers_is_said_and_reaches_the_service(lessons: Any, covered: str, right: float) -> None:
    options = replace(TINY, lessons=lessons, base_accuracy=0.0)
    assert f"; a lesson for each {covered}; right untaught 0.0%" in (options.law or "")
    rows = options_module.load_rows(options)
    with open_endpoint(options, rows, 0, timed=False) as endpoint:
        student = rows.program()
        row = rows.heldout.examples[0]
        key = str(row["formula"]).replace(" ", "-")
        student.predict.signature = student.predict.signature.with_instructions(f"[{key}] All about it.")
        with dspy.context(lm=endpoint.task_lm):
            assert rows.metric(row, student(**row.inputs())).score == right


def test_every_default_method_is_one_and_can_be_made() -> None:
    assert DEFAULT_METHODS[0] == "gepa"
    options_module.check_options(replace(TINY, methods=DEFAULT_METHODS))


def test_the_size_that_follows_the_controller_runs_with_staleness_too() -> None:
    if lacking("combee-picked-stale"):
        pytest.skip("this version of Combee has no staleness")
    first, second = run_speed(replace(TINY, methods=("combee", "combee-picked-stale")))
    assert set(second.sizes) == {first.picked}


@pytest.mark.parametrize(
    ("sizes", "fitted", "picked"),
    [((3, 9, 20), 0, 20), ((3, 9, 20, 12), 1, 12), ((3, 9, 80, 12, 5), 1, 5), ((200,), 1, 80)],
)
def test_the_size_that_was_settled_on_leaves_three_updates(sizes: tuple[int, ...], fitted: int, picked: int) -> None:
    fit = PowerLawFit(1.0, 0.5, 0.0, 10)
    last = len(sizes) - fitted
    decisions = [BatchDecision(size, "why", fit=fit if at >= last else None) for at, size in enumerate(sizes)]
    assert picked_size(decisions, 240) == picked


def test_a_size_that_was_cut_to_even_out_the_rest_of_an_epoch_is_evened_over_a_whole_one() -> None:
    fit = PowerLawFit(1.0, 0.5, 0.0, 10)
    cut = Clamp("even", 60, 47, "141 examples are left of the epoch: 3 batches of 47")
    assert picked_size([BatchDecision(47, "why", fit, (cut,))], 240) == 60
    assert picked_size([BatchDecision(50, "why", fit)], 240) == 48


def test_pinned_sizes_come_in_order_and_the_last_goes_on() -> None:
    pinned = Pinned((2, 5, 90))
    views = [BatchView(iteration=at + 1, trainset_size=30, planned=(1,) * at) for at in range(4)]
    assert [pinned.plan(view).size for view in views] == [2, 5, 30, 30]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (replace(TINY, methods=("gepa", "magic")), "'magic'"),
        (replace(TINY, methods=("combee", "combee")), "named twice"),
        (replace(TINY, methods=("gepa", "combee-picked")), "Name combee first"),
        (replace(TINY, methods=()), "names no method"),
        (replace(TINY, time_scale=0.0), "time_scale"),
        (replace(TINY, repeats=0), "repeats"),
        (replace(TINY, repeats=2, peer_repeats=3), "peer_repeats"),
        (replace(TINY, peer_repeats=0), "peer_repeats"),
        (replace(TINY, program="magic"), "chain-of-thought, predict"),
        (replace(TINY, attention="magic"), "items, reading"),
        (replace(TINY, lessons="magic"), "mistake, formula"),
        (replace(TINY, temperature=-0.1), "temperature"),
        (replace(TINY, temperature=math.nan), "temperature"),
        (replace(TINY, temperature=math.inf), "temperature"),
        (replace(TINY, base_accuracy=1.5), "base_accuracy"),
        (replace(TINY, reasoning_tokens=0), r"reasoning\.tokens"),
        (replace(TINY, seeds=(1, 1)), "seeds"),
        (replace(TINY, model="mine"), "endpoint"),
        (replace(TINY, heldout=0), "heldout"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_runs(options: SpeedOptions, part: str) -> None:
    with pytest.raises(ArgumentValueError, match=part):
        run_speed(options)


def test_a_method_that_this_version_cannot_make_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options_module, "lacking", lambda name: "Combee(magic=…)")
    with pytest.raises(ArgumentValueError, match=r"Combee\(magic"):
        run_speed(TINY)


@pytest.fixture
def other_endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedService]:
    """A service of somebody else's, as far as the benchmark knows."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    rows = options_module.load_rows(TINY)
    with SimulatedService(SimulatedConfig(time_scale=0.0), SimulatedTask.from_benchmark(rows)) as service:
        yield service


def test_any_endpoint_is_timed_by_the_wall_and_counted_by_what_it_says(other_endpoint: SimulatedService) -> None:
    options = replace(TINY, methods=("gepa", "combee"), endpoint=other_endpoint.api_base, model="simulated")
    found = list(run_speed(options))
    read = 4 * TINY.heldout
    stats = other_endpoint.stats()
    assert sum(sum(run.calls.values()) for run in found) == stats.calls - read
    for run in found:
        assert run.seconds == run.wall_seconds
        assert (run.bound, run.slot_use) == (None, None)
        assert run.calls["task"] >= TINY.examples + TINY.validation
        assert run.tokens["task"] > run.written["task"] > 0
    record = speed_record(options, summarize_speed(options.methods, found), found, "combee bench speed")
    assert (record["label"], record["simulated"], record["service"]) == ("model simulated", False, None)


@pytest.mark.parametrize(("given", "told"), [(None, 0.0), (1.0, 1.0)])
def test_the_simulated_lms_are_told_their_temperature(given: float | None, told: float) -> None:
    options = replace(TINY, temperature=given)
    with open_endpoint(options, options_module.load_rows(TINY), 0, timed=False) as endpoint:
        lms = (endpoint.task_lm, endpoint.reflection_lm, endpoint.reading_lm)
        assert [lm.kwargs["temperature"] for lm in lms] == [told] * 3
    assert f"temperature {told:g}" in (options.law or "")


def test_where_the_lms_sample_every_run_still_starts_from_the_same_answers() -> None:
    runs = list(run_speed(replace(TINY, methods=("gepa", "combee", "combee-epoch"), temperature=1.0)))
    assert len({run.before for run in runs}) == 1


def test_another_endpoints_lms_are_told_a_temperature_only_where_one_is_given(
    other_endpoint: SimulatedService,
) -> None:
    options = replace(TINY, endpoint=other_endpoint.api_base, model="simulated")
    for given in (None, 0.7):
        asked = replace(options, temperature=given)
        with open_endpoint(asked, options_module.load_rows(TINY), 0, timed=False) as endpoint:
            assert endpoint.task_lm.kwargs.get("temperature") == given
            assert endpoint.reflection_lm.kwargs.get("temperature") == given


def test_a_key_that_is_not_in_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    options = replace(TINY, endpoint="http://127.0.0.1:9/v1", model="mine", api_key_env="NO_SUCH_KEY")
    with pytest.raises(ArgumentValueError, match="NO_SUCH_KEY"):
        list(run_speed(options))


@pytest.fixture
def formula_rows(tmp_path: Path) -> Path:
    """Rows in the form of the Formula benchmark."""
    for split, start in (("train", 0), ("validation", 100), ("test", 200)):
        rows = []
        for number in range(start, start + 9):
            name = NAMES[number % len(NAMES)]
            context = (
                f"Use formula {name} to answer the question. Formula: {name} = a / b, Explanation: a over b. "
                f'Question: "With {number} cases on hand, what is the figure of the firm called X{number}?". Answer:'
            )
            rows.append(json.dumps({"context": context, "target": f"{number}.5"}))
        (tmp_path / f"{split}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    return tmp_path


def test_rows_of_formula_are_cut_to_size_and_known_by_their_formula(formula_rows: Path) -> None:
    source = {"benchmark": "formula", "params": {"path": str(formula_rows)}}
    (run,) = run_speed(replace(TINY, methods=("gepa",), **source))
    assert len(run.after) == TINY.heldout
    assert run.updates == TINY.examples / 3
    assert run.calls["reflect"] >= 1


def test_what_formula_teaches_carries_over_to_questions_that_were_not_seen(formula_rows: Path) -> None:
    source = {"benchmark": "formula", "params": {"path": str(formula_rows)}}
    (run,) = run_speed(replace(TINY, methods=("gepa",), examples=9, validation=9, heldout=9, **source))
    assert sum(run.after) > sum(run.before)


def test_more_rows_than_there_are_is_refused(formula_rows: Path) -> None:
    source = {"benchmark": "formula", "params": {"path": str(formula_rows)}}
    with pytest.raises(ArgumentValueError, match="Give 1 to 9"):
        run_speed(replace(TINY, examples=10, **source))


def test_formula_without_rows_is_an_error() -> None:
    with pytest.raises(DataSourceError, match="no path"):
        run_speed(replace(TINY, benchmark="formula", params={}))


def test_lessons_by_mistake_are_refused_where_answers_are_no_numbers() -> None:
    with pytest.raises(ArgumentValueError, match='lessons="formula"'):
        list(run_speed(replace(TINY, methods=("gepa",), params={"task": "route"})))
