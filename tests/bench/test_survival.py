from __future__ import annotations

import json
from pathlib import Path

import pytest

from combee_dspy.bench import survival
from combee_dspy.bench.survival import LAWS, SurvivalOptions, SurvivalRow, main, run_survival, table
from combee_dspy.exceptions import ArgumentValueError

TINY = SurvivalOptions(
    laws=("attention", "writing"),
    configs=((10, 1, 32), (30, 2, 32)),
    seeds=2,
    probe_sizes=(4, 12, 24, 60),
    probe_calls=3,
)


@pytest.fixture(scope="module")
def rows() -> list[SurvivalRow]:
    return list(run_survival(TINY))


def test_every_law_and_setting_is_predicted_and_observed(rows: list[SurvivalRow]) -> None:
    assert [(row.law, row.n) for row in rows] == [(law, n) for law in TINY.laws for n, _, _ in TINY.configs]
    for row in rows:
        assert row.low <= row.predicted <= row.high
        assert row.law_low <= row.predicted <= row.law_high
        assert all(p is not None and p > 0.01 for p in row.misfit)
        assert row.observed == pytest.approx(row.predicted, abs=0.05)
        assert row.observed_level_one == pytest.approx(row.level_one, abs=0.1)
        assert row.observed_low <= row.observed <= row.observed_high


def test_crowded_scans_lose_lessons_and_small_ones_do_not(rows: list[SurvivalRow]) -> None:
    assert [row.observed > 0.99 for row in rows] == [True, False, True, False]


def test_the_verdict_from_texts_is_the_planted_truth(rows: list[SurvivalRow]) -> None:
    assert all(row.agreement > 0.97 for row in rows)


def test_what_cannot_be_measured_is_refused_before_anything_runs() -> None:
    assert set(TINY.laws) < set(LAWS)
    for options in (SurvivalOptions(laws=("magic",)), SurvivalOptions(seeds=1)):
        with pytest.raises(ArgumentValueError):
            run_survival(options)


def test_the_command_labels_what_it_prints_and_writes(
    rows: list[SurvivalRow], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[SurvivalOptions] = []

    def measured(options: SurvivalOptions) -> list[SurvivalRow]:
        asked.append(options)
        return rows

    monkeypatch.setattr(survival, "run_survival", measured)
    target = tmp_path / "survival.json"
    main(["--laws", "writing", "--seeds", "3", "--json", str(target)])
    assert asked == [SurvivalOptions(laws=("writing",), seeds=3)]
    out = capsys.readouterr().out
    assert out.startswith("simulated service, no language model\n")
    assert table(rows) in out
    record = json.loads(target.read_text(encoding="utf-8"))
    assert record["simulated"] is True
    assert [row["inside"] for row in record["rows"]] == [row.inside for row in rows]
