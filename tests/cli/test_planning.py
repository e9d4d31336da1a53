"""``combee diagnose``: of a journal, of MLflow, and of a search that it runs itself."""

from __future__ import annotations

import json
from pathlib import Path

from combee_dspy import tracking
from combee_dspy.planning import Curve

SERIAL = """
data: {benchmark: {name: formula-mini, params: {task: compute, formulas: 6, train: 12, validation: 12, heldout: 6}}}
lms: {task: {model: simulated, time_scale: 0}}
budget: {rollouts: 150}
tracker: []
log_dir: log
"""


def test_a_file_is_searched_serially_and_diagnosed_without_a_look_at_the_held_out_set(shell, tmp_path):
    (tmp_path / "run.yaml").write_text(SERIAL, encoding="utf-8")
    code, out, err = shell("diagnose", "run.yaml", "--slots", "64")
    assert code in (0, 1), err
    assert "simulated service, no language model" in out
    found = json.loads((tmp_path / "log-serial" / "diagnosis.json").read_text(encoding="utf-8"))
    assert (code == 0) == (found["verdict"] == "converged")
    assert found["ceiling"]["slots"] == 64
    (run,) = tracking.runs(tmp_path / "log-serial")
    assert run["heldout_n"] is None
    assert found["rollouts"] == run["rollouts"] > 100
    # Once more buys nothing and says the same.
    assert shell("diagnose", tmp_path / "log-serial", "--slots", "64")[1] == out
    assert tracking.runs(tmp_path / "log-serial")[0]["rollouts"] == run["rollouts"]


def test_the_curve_that_mlflow_holds_is_the_journals(recorded, tmp_path, monkeypatch):
    import mlflow
    import pyarrow
    import pyarrow.parquet

    class Client:
        """Holds what the tracker logs of rollouts: all columns of a rollout, a file for each part of a run."""

        def __init__(self, uri: str) -> None:
            assert uri == "the store"

        def download_artifacts(self, run: str, path: str, folder: str) -> str:
            rows = tracking.rollouts(recorded, limit=None)
            for number in (0, 1):
                file = Path(folder, f"{number}.parquet")
                pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows[number::2]), file)
            assert (run, path) == ("abc", "rollouts")
            return folder

    monkeypatch.setattr(mlflow, "MlflowClient", Client)
    theirs, ours = Curve.of_mlflow("abc", "the store"), Curve.of_run(recorded)
    assert (theirs.rollouts, theirs.scores, theirs.seconds) == (ours.rollouts, ours.scores, ours.seconds)
    assert len(ours.scores) > 1
    assert theirs.source == "mlflow:abc"


def test_a_run_that_is_not_there_is_one_line(shell):
    for place in ("nowhere", "nowhere.yaml"):
        code, out, err = shell("diagnose", place)
        assert (code, out) == (2, "")
        assert len(err.splitlines()) == 1
