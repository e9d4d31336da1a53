"""``combee candidates``: lineage and scores on a terminal, as JSON, and errors by exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from combee_dspy.cli import ExitCode, main
from combee_dspy.engine.candidates import candidate_id
from combee_dspy.engine.lineage import Lineage
from combee_dspy.events import (
    CandidateAccepted,
    CandidateProposed,
    CandidateRefused,
    CandidateRejected,
    IterationFinished,
    RunStarted,
    ValidationFinished,
)

SEED, CHILD, OTHER = ({"self": text} for text in ("Answer.", "Answer well.\nBe brief.", "Answer \x1b[31mbadly."))
IDS = [candidate_id(texts) for texts in (SEED, CHILD, OTHER)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    lines = Lineage(tmp_path)
    empty: dict[str, Any] = {"sizes": {}, "digests": {}, "specs": {}, "models": {}}
    validated = {"best": True, "rollouts": 5}
    for event in (
        RunStarted(name="n", seed=0, components=SEED, **empty),
        ValidationFinished(index=0, candidate_id=IDS[0], texts=SEED, score=0.25, **validated),
        CandidateProposed(iteration=1, candidate_id=IDS[2], parent_id=IDS[0], operator="insert", texts=OTHER),
        CandidateProposed(iteration=1, candidate_id=IDS[1], parent_id=IDS[0], operator="rephrase", texts=CHILD),
        CandidateRefused(iteration=1, parent_id=IDS[0], operator="delete", reason="it copies a training example"),
        CandidateRejected(iteration=1, old_score=3.0, new_score=2.0, reason="not better"),
        ValidationFinished(iteration=1, index=1, candidate_id=IDS[1], texts=CHILD, score=0.75, **validated),
        CandidateAccepted(iteration=1, index=1, parents=(0,), score=4.0),
        IterationFinished(iteration=1, accepted=True, rollouts=9, best_score=0.75, seconds=1.0),
    ):
        lines.record(event)
    lines.close()
    return tmp_path


def _combee(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["candidates", *arguments])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_a_table_with_lineage_scores_and_reasons(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = _combee(capsys, str(run))
    assert code == ExitCode.DONE
    rows = {line.split("│")[2].strip(): line for line in out.splitlines() if line.startswith("│")}
    assert all(word in rows[IDS[1]] for word in ("1", "accepted, best", "rephrase", "0.75", "4"))
    assert all(word in rows[IDS[2]] for word in ("rejected", "insert", "2 against 3"))
    assert "refused" in rows[""]
    assert f"{IDS[2]}: not better" in out
    assert "delete's attempt in iteration 1: it copies a training example" in out


def test_texts_are_shown_and_steer_no_terminal(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = _combee(capsys, str(run), "--texts")
    assert "Answer well.\nBe brief." in out
    assert "badly." in out
    assert "\x1b[31m" not in out


def test_json_holds_everything(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _combee(capsys, str(run), "--json")
    found = json.loads(out)
    assert code == ExitCode.DONE
    assert [record["id"] for record in found] == [IDS[0], IDS[2], IDS[1], ""]
    assert [record["status"] for record in found] == ["seed", "rejected", "accepted", "refused"]
    assert found[2]["texts"] == CHILD
    assert found[2]["parents"] == [IDS[0]]


def test_no_run_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = _combee(capsys, str(tmp_path / "nowhere"))
    assert code == ExitCode.BAD_INPUT
    assert "holds no candidates" in err
    assert not out
