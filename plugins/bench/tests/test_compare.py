"""Baselines behind one interface, side by side within one budget."""

from __future__ import annotations

import io
from importlib import metadata

import pytest
from rich.console import Console
from rich.table import Table

from combee_bench import compare
from combee_bench.baselines import Baseline, BaselineTask, Found, baseline_names, build_baseline
from combee_bench.compare import CompareRun
from combee_bench.options import CompareOptions
from combee_dspy.exceptions import ArgumentError, PluginError, UnknownStrategyError
from combee_dspy.records import NO_BASELINE

METHODS = ("gepa", "ace", "mipro", "combee", "combee-playbook")
TINY = CompareOptions(
    methods=METHODS,
    budget=40,
    train=12,
    validation=6,
    heldout=8,
    threads=4,
    time_scale=0.001,
    prices=(1.0, 2.0),
    gpus=2,
)


@pytest.fixture(scope="module")
def runs() -> list[CompareRun]:
    pytest.importorskip("optuna")
    return list(compare.run(TINY))


@pytest.mark.slow
def test_every_method_stays_within_its_budget_and_is_billed(runs: list[CompareRun]) -> None:
    assert tuple(run.method for run in runs) == METHODS
    for run in runs:
        # GEPA looks at its budget between iterations only.
        assert 6 <= run.rollouts <= TINY.budget + (12 if run.method == "gepa" else 0), run.method
        assert run.tokens > 0
        assert run.dollars is not None
        assert run.tokens / 1e6 <= run.dollars <= 2 * run.tokens / 1e6
        assert run.validation is not None
        assert 0 <= run.validation <= 1
        assert run.versions["dspy"]


def test_the_student_is_read_once_for_all(runs: list[CompareRun]) -> None:
    assert len({run.before for run in runs}) == 1
    assert all(len(run.after) == TINY.heldout for run in runs)


def test_the_best_on_each_axis_are_marked(runs: list[CompareRun]) -> None:
    def ran(
        method: str, right: int, seconds: float, tokens: int, dollars: float | None
    ) -> CompareRun:
        after = (1.0,) * right + (0.0,) * (8 - right)
        versions: dict[str, str] = {}
        return CompareRun(
            method, 0, seconds, tokens, dollars, 9, None, "", versions, (0.0,) * 8, after
        )

    given = [
        ran("cheap", 2, 10.0, 9_000, None),
        ran("good", 4, 50.0, 2_000, 1.0),
        ran("bad", 1, 60.0, 9_500, 3.0),
    ]
    marks = {one["method"]: one["best_on"] for one in compare.summary(TINY, given)}
    assert marks == {
        "cheap": ["seconds"],
        "good": ["seconds", "rollouts", "tokens", "dollars"],
        "bad": [],
    }
    (alone,) = compare.summary(TINY, given[:1])
    assert (alone["best_on"], alone["versus"]) == ([], None)


def test_a_point_is_paid_for_above_the_serial_baseline_wherever_it_stands() -> None:
    def ran(
        method: str, right: int, tokens: int, gpu_seconds: float | None, *, serial: bool = False
    ) -> CompareRun:
        after = (1.0,) * right + (0.0,) * (8 - right)
        costs = (10.0, tokens, None, 50, None)
        return CompareRun(method, 0, *costs, "", {}, (0.0,) * 8, after, gpu_seconds, serial)

    given = [
        ran("good", 4, 2_000, 75.0),
        ran("steady", 2, 9_000, 90.0, serial=True),
        ran("bad", 1, 9_500, None),
    ]
    by_name = {one["method"]: one for one in compare.summary(TINY, given)}
    assert {one["serial_baseline"] for one in by_name.values()} == {"steady"}
    # 25 of 100 points more, for 2,000 tokens; above its own student, which was never right, they
    # would be 50.
    expected = {
        "tokens": 80.0,
        "rollouts": 2.0,
        "gpu_seconds": 3.0,
        "seconds": 0.4,
        "dollars": None,
    }
    assert by_name["good"]["per_point"] == expected
    assert (
        set(by_name["steady"]["per_point"].values())
        == set(by_name["bad"]["per_point"].values())
        == {None}
    )
    table = printed(compare.table(TINY, given))
    assert "GPU-seconds per point above serial" in table
    # Without a serial baseline there is no such figure, whoever stands first.
    alone = [given[0], given[2]]
    assert all(set(one["per_point"].values()) == {None} for one in compare.summary(TINY, alone))
    assert "per point" not in printed(compare.table(TINY, alone))
    assert NO_BASELINE in printed(compare.table(TINY, alone))


def printed(table: Table) -> str:
    file = io.StringIO()
    Console(width=300, file=file).print(table)
    return file.getvalue()


def test_the_serial_baseline_is_gepa_and_gpus_are_charged_by_the_second(
    runs: list[CompareRun],
) -> None:
    assert [run.method for run in runs if run.serial] == ["gepa"]
    assert all(run.gpu_seconds == pytest.approx(2 * run.seconds) for run in runs)


def test_the_table_holds_every_method(runs: list[CompareRun]) -> None:
    text = printed(compare.table(TINY, runs))
    assert all(name in text for name in METHODS)
    assert "MIPROv2 was given 2 of 12 training rows" in text


class Lazy(Baseline):
    name = "lazy"

    def search(self, task: BaselineTask) -> Found:
        return Found(task.student, 0)


def test_another_distribution_may_publish_a_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    group = "combee_dspy.baselines"
    points = [
        metadata.EntryPoint("lazy", f"{__name__}:Lazy", group),
        metadata.EntryPoint("broken", "no.such:Thing", group),
    ]
    monkeypatch.setattr(metadata, "entry_points", lambda group: points)
    monkeypatch.setitem(
        __import__("sys").modules, __name__, __import__("types").SimpleNamespace(Lazy=Lazy)
    )
    assert {"lazy", "gepa", "combee"} <= set(baseline_names())
    assert isinstance(build_baseline("lazy"), Lazy)
    with pytest.raises(PluginError, match="broken"):
        build_baseline("broken")
    with pytest.raises(UnknownStrategyError, match="lazy"):
        build_baseline("nothing")


@pytest.mark.parametrize(
    "change",
    [
        {"budget": 10, "validation": 6},
        {"task": "route", "benchmark": "formula"},
        {"reflection_lm": "openai/x"},
    ],
)
def test_options_that_contradict_each_other_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ArgumentError):
        CompareOptions(**change)  # type: ignore[arg-type]
