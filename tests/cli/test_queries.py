from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import dspy
import pytest

from combee_dspy import events
from combee_dspy.cli import main
from combee_dspy.records import Rollout
from combee_dspy.tracking import Journal

pytest.importorskip("pyarrow")

Shell = Callable[..., tuple[int, str, str]]
HOSTILE = "<script>alert(1)</script> \x1b[2J\u202e [bold]x[/bold]"


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    _record(tmp_path / "run")

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        out, err = capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return caught.value.code, out, err

    return run


def _record(folder: Path) -> None:
    seed, best = {"predict": "Answer."}, {"predict": f"Answer.\nState the unit. {HOSTILE}"}
    journal = Journal(folder / "journal")
    journal.record(
        events.RunStarted(
            name="units seed 0", seed=0, sizes={"train": 4}, digests={}, specs={}, models={}, components=seed
        )
    )
    journal.record(
        events.ValidationFinished(index=0, candidate_id="5eed", texts=seed, score=0.5, best=True, rollouts=4)
    )
    journal.record(events.IterationStarted(iteration=1))
    journal.record(
        events.CandidateProposed(iteration=1, candidate_id="be57", parent_id="5eed", operator="insert", texts=best)
    )
    for number, score in enumerate((0.0, 1.0, 0.25, float("nan"))):
        example = dspy.Example(question=f"{HOSTILE} {number}").with_inputs("question")
        rollout = Rollout(f"{number:064x}", example, dspy.Prediction(answer="2"), (), score)
        journal.record(
            events.RolloutFinished(
                iteration=1,
                rollout=rollout,
                rollout_id=f"{number}",
                candidate_id="be57",
                split="train",
                purpose="child",
            )
        )
    journal.record(events.CandidateAccepted(iteration=1, index=1, parents=(0,), score=1.0))
    journal.record(
        events.ValidationFinished(
            iteration=1, index=1, candidate_id="be57", texts=best, score=0.75, best=True, rollouts=8
        )
    )
    journal.close()


def test_rollouts_are_chosen_and_written_in_every_format(shell: Shell, tmp_path: Path) -> None:
    code, out, _ = shell("rollouts", "run", "--where", "score < 0.5", "--columns", "score,split", "--format", "json")
    assert code == 0
    assert [json.loads(line) for line in out.splitlines()] == [
        {"score": 0.0, "split": "train"},
        {"score": 0.25, "split": "train"},
    ]
    code, out, _ = shell("rollouts", "run", "--columns", "score,inputs", "--format", "csv")
    assert len(list(csv.reader(io.StringIO(out)))) == 5
    code, out, _ = shell("rollouts", "run", "--format", "parquet", "--output", "rows.parquet")
    assert code == 0
    from pyarrow import parquet

    assert parquet.read_table(tmp_path / "rows.parquet").num_rows == 4


def test_json_has_no_nan(shell: Shell) -> None:
    _, out, _ = shell("rollouts", "run", "--columns", "score", "--format", "json")
    assert [json.loads(line)["score"] for line in out.splitlines()] == [0.0, 1.0, 0.25, None]
    assert "NaN" not in out


def test_what_a_run_wrote_cannot_steer_the_terminal(shell: Shell) -> None:
    for arguments in (["rollouts", "run"], ["show", "run", "best"], ["runs", "run"]):
        code, out, _ = shell(*arguments)
        assert code == 0, arguments
        assert "\x1b" not in out
        assert "\u202e" not in out
    assert "[bold]x[/bold]" in shell("show", "run", "best")[1]


def test_the_table_says_how_many_rows_it_leaves_out(shell: Shell) -> None:
    assert "2 of 4 rows" in shell("rollouts", "run", "--limit", "2")[1]
    assert "rows;" not in shell("rollouts", "run", "--limit", "0")[1]


def test_a_candidate_is_shown_with_what_it_changed(shell: Shell) -> None:
    code, out, _ = shell("show", "run", "1")
    assert code == 0
    assert "be57, 1 in the pool" in out
    assert "insert in iteration 1, from 0" in out
    assert "+ State the unit." in out
    assert "0.7500" in out
    code, out, _ = shell("show", "run", "be", "--json")
    assert json.loads(out)["parent_texts"] == {"predict": "Answer."}


def test_the_report_of_a_run_that_did_not_end_is_written(shell: Shell, tmp_path: Path) -> None:
    code, out, _ = shell("show", "run", "--html", "report.html")
    assert (code, out.strip()) == (0, "Wrote report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "not finished" in page
    assert "<script>" not in page


def test_runs_are_listed(shell: Shell) -> None:
    assert "No recorded run" in shell("runs")[1]
    code, out, _ = shell("runs", ".", "--format", "json")
    (row,) = [json.loads(line) for line in out.splitlines()]
    assert (code, row["name"], row["status"], row["best_score"]) == (0, "units seed 0", "unfinished", 0.75)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rollouts", "run", "--where", "scor < 1"], "Columns: rollout_id"),
        (["rollouts", "run", "--where", "__import__('os')"], "lacks a comparison"),
        (["rollouts", "nope"], "combee runs"),
        (["rollouts", "run", "--format", "parquet"], "--output"),
        (["rollouts", "run", "--output", "no/such/folder.csv"], "cannot be written"),
        (["show", "run", "77"], "Candidates: 0 (5eed), 1 (be57)"),
        (["show", "run", "--html", "no/such/folder.html"], "cannot be written"),
        (["runs", "absent"], "is no folder"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(shell: Shell, arguments: list[str], words: str) -> None:
    code, _, err = shell(*arguments)
    assert code == 2
    assert words in err
    assert err.count("\n") == 1
