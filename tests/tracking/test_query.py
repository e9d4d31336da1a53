from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from combee_dspy import events
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.tracking import Journal, query
from combee_dspy.tracking._sources import MLflowSource, client_of

pytest.importorskip("pyarrow")


@pytest.fixture
def log_dir(story: Callable[[], list[events.Event]], tmp_path: Path) -> Path:
    journal = Journal(tmp_path / "logs" / "journal")
    for event in story():
        journal.record(event)
    journal.close()
    return tmp_path / "logs"


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with no store, and none set for MLflow."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


def test_rollouts_come_from_a_journal_by_its_own_folder_and_by_its_log_dir(log_dir: Path) -> None:
    table = query.rollouts(log_dir)
    assert table.num_rows == 30
    assert query.rollouts(str(log_dir / "journal")).equals(table)
    wrong = query.rollouts(log_dir, where="score < 0.5 and purpose = 'parent'", columns=["rollout_id", "score"])
    assert wrong.column_names == ["rollout_id", "score"]
    assert wrong.num_rows == 4
    assert set(wrong["score"].to_pylist()) == {0.0}


def test_rollouts_make_a_data_frame(log_dir: Path) -> None:
    pytest.importorskip("pandas")
    frame = query.rollouts(log_dir, where="purpose = 'heldout'").to_pandas()
    assert list(frame["score"]) == [1.0] * 5


def test_a_column_that_is_missing_is_refused_with_those_there_are(log_dir: Path) -> None:
    with pytest.raises(ArgumentValueError, match="Columns: rollout_id, run_id"):
        query.rollouts(log_dir, columns=["nope"])
    with pytest.raises(ArgumentValueError, match="Columns: rollout_id, run_id"):
        query.rollouts(log_dir, where="nope = 1")


def test_a_condition_is_read_before_anything_is_opened(nowhere: Path) -> None:
    with pytest.raises(ArgumentValueError, match="lacks a value"):
        query.rollouts(nowhere / "absent", where="score <")


def test_a_journal_without_its_last_line_is_read_as_far_as_it_goes(log_dir: Path) -> None:
    file = next((log_dir / "journal").glob("*.jsonl"))
    lines = file.read_bytes().splitlines(keepends=True)
    half = [line for line in lines if b'"rollout"' in line[:20]][10]
    file.write_bytes(b"".join(lines[: lines.index(half)]) + half[:30])
    assert query.rollouts(log_dir).num_rows == 10
    assert "not finished" in query.report_html(log_dir)


def test_a_candidate_is_found_by_index_by_id_and_by_name(log_dir: Path) -> None:
    best = query.candidate(log_dir, "best")
    assert best.row.candidate_id == "c2"
    assert query.candidate(log_dir, 2) == query.candidate(log_dir, "c2") == best
    assert best.texts["self"] == "Choose."
    assert "v2" in best.texts["steps[0].call"]
    assert best.parent_texts == {"steps[0].call": "Answer.", "self": "Choose."}
    assert query.candidate(log_dir, "seed").texts == best.parent_texts
    assert [row.index for row in query.candidates(log_dir)] == [0, 1, 2]


@pytest.mark.parametrize(("name", "problem"), [("c", "fits several"), ("99", "names no"), ("", "names no")])
def test_a_name_that_fits_no_candidate_or_several_lists_them(log_dir: Path, name: str, problem: str) -> None:
    with pytest.raises(ArgumentValueError) as caught:
        query.candidate(log_dir, name)
    assert problem in caught.value.problem
    assert "c1" in caught.value.remedy


def test_a_report_is_made_from_a_journal(log_dir: Path) -> None:
    page = query.report_html(log_dir)
    assert page.startswith("<!DOCTYPE html>")
    assert "Held-out improved: +40.0 points" in page
    assert "<script>" not in page


def test_runs_lists_journals_and_says_what_became_of_them(log_dir: Path, nowhere: Path) -> None:
    (row,) = query.runs([log_dir.parent]).to_pylist()
    assert (row["name"], row["status"], row["rollouts"]) == ("formula-mini/route 24-3-5 seed 7", "finished", 25)
    assert (row["heldout_before"], row["heldout_after"], row["fit_for_claims"]) == (0.4, 0.8, False)
    assert query.rollouts(row["run"]).num_rows == 30
    assert query.runs().num_rows == 0


def test_what_is_no_run_is_refused_with_what_to_do(nowhere: Path) -> None:
    with pytest.raises(ArgumentValueError, match="combee runs"):
        query.rollouts("nope")
    with pytest.raises(ArgumentValueError, match="holds no journal"):
        query.rollouts(nowhere)
    with pytest.raises(ArgumentValueError, match="is no folder"):
        query.runs([nowhere / "absent"])


def test_mlflow_and_the_journal_answer_alike(
    log_dir: Path, store: tuple[str, Path], client: Any, nowhere: Path
) -> None:
    from combee_dspy import tracking

    uri, folder = store
    if client.get_experiment_by_name("queries") is None:
        client.create_experiment("queries", artifact_location=(folder / "artifacts").as_uri())
    done = tracking.replay(log_dir, uri, "queries")
    by_id = {"order": [("rollout_id", "ascending")]}
    there, here = query.rollouts(done.run_id, tracking_uri=uri), query.rollouts(log_dir)
    assert there.sort_by(by_id["order"]).equals(here.sort_by(by_id["order"]))
    where = "score < 0.5 and purpose = 'parent'"
    assert query.rollouts(done.run_id, where, tracking_uri=uri).num_rows == query.rollouts(log_dir, where).num_rows == 4
    assert query.candidate(done.run_id, "best", uri) == query.candidate(log_dir, "best")
    assert query.report_html(done.run_id, uri) == query.report_html(log_dir)
    rows = [row for row in query.runs([log_dir], uri).to_pylist() if row["mlflow_run"] == done.run_id]
    assert [(row["journal"] != "", row["status"], row["heldout_after"]) for row in rows] == [(True, "finished", 0.8)]
    with pytest.raises(ArgumentValueError, match="no run in MLflow"):
        query.rollouts("0" * 32, tracking_uri=uri)


def test_a_store_that_does_not_answer_is_named_without_its_password(nowhere: Path) -> None:
    pytest.importorskip("mlflow")
    # In two parts: a traceback shows lines of this file too.
    password = "tr0ub4" + "dor"
    # Nobody listens on port 9 of this machine.
    silent = f"http://me:{password}@127.0.0.1:9"
    source = MLflowSource(client_of(silent), "0" * 32)
    asked: list[tuple[str, Callable[[], Any]]] = [
        ("cannot be read", lambda: query.runs([nowhere], silent)),
        ("no run in MLflow", lambda: query.rollouts("0" * 32, tracking_uri=silent)),
        ("no address of a store", lambda: query.runs([nowhere], f"htp://me:{password}@127.0.0.1:9")),
        ("no address of a store", lambda: query.runs([nowhere], f"htp://127.0.0.1:9/db?user=me&password={password}")),
        ("cannot be read from MLflow", source.table),
        ("cannot be read from MLflow", source.candidates),
        ("cannot be read from MLflow", source.html),
    ]
    for said, ask in asked:
        with pytest.raises(ArgumentValueError, match=said) as refused:
            ask()
        shown = "".join(traceback.format_exception(refused.value))
        assert "127.0.0.1" in shown
        assert password not in shown
