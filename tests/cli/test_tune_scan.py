from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from combee_dspy.aggregators import ParallelScan
from combee_dspy.cli import main, tune_scan

QUICK = ("--sizes", "4,16,48", "--calls", "2", "--reflections", "20", "--fan-in", "8,32")


def shell(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(("tune-scan", *arguments))
    out, err = capsys.readouterr()
    assert isinstance(caught.value.code, int)
    return caught.value.code, out, err


def test_it_measures_predicts_and_recommends_on_the_simulated_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "tuned.json"
    code, out, err = shell(capsys, *QUICK, "--json", str(target))
    assert code == 0, err
    assert "simulated service, no language model" in out
    record = json.loads(target.read_text(encoding="utf-8"))
    assert record["simulated"] is True
    kept = {(row["items"], row["kept"] / row["total"]) for row in record["measured"] if row["call"] == "read"}
    assert kept == {(4, 1.0), (16, 0.75), (48, 0.25)}
    assert len(record["choices"]) == 6
    best = record["best"]
    assert f"Take copies={best['copies']}, fan_in={best['fan_in']}" in out
    assert best["predicted"]["survival"] >= max(one["predicted"]["survival"] for one in record["choices"]) - 0.01


def test_a_budget_that_nothing_respects_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = shell(capsys, "--sizes", "4,16", "--calls", "1", "--copies", "1", "--max-calls", "1")
    assert code == 0
    assert "No setting respects --max-calls." in out


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--copies", "two"], "--copies"),
        (["--sizes", ""], "--sizes"),
        (["--fan-in", "1,8"], "--fan-in"),
        (["--api-base", "http://127.0.0.1:9"], "--lm"),
        (["--lm", "openai/x", "--api-key-env", "COMBEE_NO_SUCH_KEY"], "--api-key-env"),
        (["--json", "/no/such/folder/x.json"], "--json"),
    ],
)
def test_bad_input_is_one_line_and_no_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], part: str
) -> None:
    monkeypatch.delenv("COMBEE_NO_SUCH_KEY", raising=False)
    code, out, err = shell(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert part in err


def test_a_service_that_fails_every_call_is_no_measurement(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMBEE_TEST_KEY", "sk-very-secret-0123456789")
    made = tune_scan._model

    def impatient(*given: Any) -> Any:
        model, adapter = made(*given)
        model.num_retries = 0
        return model, adapter

    monkeypatch.setattr(tune_scan, "_model", impatient)
    arguments = ["--lm", "openai/x", "--api-base", "http://127.0.0.1:9/v1", "--api-key-env", "COMBEE_TEST_KEY"]
    code, out, err = shell(capsys, *arguments, "--sizes", "2", "--calls", "1")
    assert code == 3
    assert "nothing was measured" in err
    assert "very-secret" not in out + err


def test_the_advice_names_the_merges_where_they_are_not_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    default = inspect.signature(ParallelScan).parameters["merge_fan_in"].default
    for given, named in (([], False), (["--merge-fan-in", str(default)], False), (["--merge-fan-in", "4"], True)):
        code, out, err = shell(capsys, *QUICK, *given)
        assert code == 0, err
        assert (", merge_fan_in=4:" in " ".join(out.split())) == named
