"""``combee diagnose``: of a journal, of MLflow, and of a search that it runs itself."""

from __future__ import annotations

import io
import json
from contextlib import nullcontext
from pathlib import Path

import yaml

from combee_dspy import tracking
from combee_strategist.planning import Curve, diagnose, questions
from plugins.strategist.tests.searches import CONVERGED, SPEC, Converged, search

SERIAL = """
data: {benchmark: {name: formula-mini, params: {task: compute, formulas: 6, train: 12, validation: 12, heldout: 6}}}
lms: {task: {model: simulated, time_scale: 0}}
budget: {rollouts: 150}
tracker: []
log_dir: log
"""


def test_a_file_is_searched_serially_and_diagnosed_without_a_look_at_the_held_out_set(
    shell, tmp_path
):
    # A slash at the end of a folder's name changes nothing.
    (tmp_path / "run.yaml").write_text(
        SERIAL.replace("log_dir: log", "log_dir: log/"), encoding="utf-8"
    )
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
        """Holds what the tracker logs of rollouts: all columns of a rollout, a file for each part
        of a run.
        """

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
    assert (theirs.rollouts, theirs.scores, theirs.seconds) == (
        ours.rollouts,
        ours.scores,
        ours.seconds,
    )
    assert len(ours.scores) > 1
    assert theirs.source == "mlflow:abc"


def test_a_run_that_is_not_there_is_one_line(shell):
    for place in ("nowhere", "nowhere.yaml"):
        code, out, err = shell("diagnose", place)
        assert (code, out) == (2, "")
        assert len(err.splitlines()) == 1


def test_nine_gaps_are_nine_lines_and_no_plan(shell, tmp_path):
    spec = {name: dict(one) if isinstance(one, dict) else one for name, one in SPEC.items()}
    for section, key in (
        ("task", "metric"),
        ("task", "baseline"),
        ("serial", "method"),
        ("budget", "tokens"),
        ("budget", "binds"),
        ("hardware", "slots"),
        ("hardware", "models"),
    ):
        del spec[section][key]
    spec |= {"failure_cost": "bad", "evaluation": {**spec["evaluation"], "owner": "TBD"}}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    code, out, err = shell("plan", "spec.yaml")
    assert (code, out, len(err.splitlines())) == (2, "", 9)
    assert all("such as: " in line for line in err.splitlines())
    assert [path.name for path in tmp_path.iterdir()] == ["spec.yaml"]


def test_init_asks_for_what_no_run_has_measured_and_the_plan_follows(shell, tmp_path, monkeypatch):
    flat = {
        f"{part}.{key}": one
        for part, found in SPEC.items()
        if isinstance(found, dict)
        for key, one in found.items()
    }
    flat |= {name: SPEC[name] for name in ("failure_cost", "failure")}
    asked = []

    def prompt(name, **_):
        asked.append(name)
        return "TBD" if asked.count(name) == 1 and name == "task.name" else str(flat[name])

    monkeypatch.setattr("typer.prompt", prompt)
    Converged(tmp_path / "serial").write("begin")
    code, out, err = shell("plan", "init", "spec.yaml", "--run", "serial")
    assert code == 0, err
    assert "task.name is vague" in out
    assert not {"serial.rollouts", "serial.score", "task.inputs", "task.outputs"} & set(asked)
    written = yaml.safe_load((tmp_path / "spec.yaml").read_text(encoding="utf-8"))
    assert (written["task"]["inputs"], written["task"]["outputs"]) == (
        "question: str",
        "answer: str",
    )
    assert shell("plan", "init", "specs/new.yaml", "--run", "serial")[0] == 0, (
        "answers are kept in a new folder"
    )
    assert (tmp_path / "specs" / "new.yaml").is_file()
    code, out, err = shell("plan", "spec.yaml", "--output", "plans/wide.md")
    assert (code, (tmp_path / "plans" / "wide.md").is_file()) == (0, True), err
    code, out, err = shell("plan", "spec.yaml")
    assert code == 0, err
    assert {"plan.md", "plan.html", "plan.json"} <= {path.name for path in tmp_path.iterdir()}
    assert "measured: serial, run 1" in (tmp_path / "plan.md").read_text(encoding="utf-8")
    assert shell("plan", "init", "spec.yaml")[0] == 2  # what is there is not overwritten


def test_init_without_a_terminal_leaves_what_nobody_answers_empty(shell, tmp_path, monkeypatch):
    answers = "formula\nquestion: str\nformula: number\nexact match\n0.4\n"
    for typed, empty in (("", len(list(questions()))), (answers, len(list(questions())) - 5)):
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        code, out, err = shell("plan", "init", "spec.yaml")
        assert code == 0, err
        assert f"\nWrote spec.yaml: {empty} fields are empty" in out, "a line of its own"
        text = (tmp_path / "spec.yaml").read_text(encoding="utf-8")
        assert "  slots:  # calls answered at once" in text
        code, _, err = shell("plan", "spec.yaml")
        assert (code, len(err.splitlines())) == (2, empty)
        assert all("is missing" in line for line in err.splitlines())
        (tmp_path / "spec.yaml").unlink()


def test_init_on_a_terminal_ends_where_it_is_interrupted(shell, tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal(""))
    assert shell("plan", "init", "spec.yaml")[0] != 0
    assert not (tmp_path / "spec.yaml").exists()


def test_the_run_that_a_specification_names_is_checked(shell, tmp_path):
    Converged(tmp_path / "serial").write("begin")
    spec = {**SPEC, "serial": {**SPEC["serial"], "run": "serial"}, "run": "wide.yaml"}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    wide = yaml.safe_load(SERIAL)
    for choice, said in (
        ({"cache": False}, "cache"),
        ({"num_threads": 64, "diversity": False}, "diversity off"),
    ):
        (tmp_path / "wide.yaml").write_text(yaml.safe_dump({**wide, **choice}), encoding="utf-8")
        code, _, err = shell("plan", "spec.yaml")
        assert code == 2
        assert said in err
        assert not (tmp_path / "plan.md").exists()
    spec["overrides"] = {
        "cache": {"value": False, "reason": "the metric reads the clock each time"}
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    (tmp_path / "wide.yaml").write_text(yaml.safe_dump({**wide, "cache": False}), encoding="utf-8")
    assert shell("plan", "spec.yaml")[0] == 0
    assert "because the metric reads the clock" in (tmp_path / "plan.md").read_text(
        encoding="utf-8"
    )


def test_a_wide_run_without_a_diagnosis_is_said_and_can_be_refused(shell, tmp_path, caplog):
    (tmp_path / "run.yaml").write_text(SERIAL.replace("150", "40"), encoding="utf-8")
    code, out, err = shell("run", "run.yaml", "--require-diagnosis")
    assert (code, out) == (2, "")
    assert "nobody knows whether serial search has converged" in err
    assert not (tmp_path / "log").exists()
    # One that says no go is no way around it, and neither is another task's.
    (tmp_path / "log-serial").mkdir()
    diagnose(search([0.4] * 15)).save(tmp_path / "log-serial")
    diagnose(search(CONVERGED)).save(tmp_path)
    assert "before convergence" in shell("run", "run.yaml", "--require-diagnosis")[2]
    assert shell("run", "run.yaml")[0] == 0
    assert caplog.text.count("the diagnosis is 'flat'") == 1
    shell("run", "run.yaml")
    assert caplog.text.count("the diagnosis is 'flat'") == 1, "said once"
    caplog.clear()
    diagnose(search(CONVERGED)).save(tmp_path / "log-serial")
    assert shell("run", "run.yaml", "--require-diagnosis")[0] == 0
    assert "combee diagnose" not in caplog.text
    # The file can say it too, and a file that says no is no way around the command.
    (tmp_path / "log-serial" / "diagnosis.json").write_text("{}", encoding="utf-8")
    for own, option in ((True, ()), (False, ("--require-diagnosis",))):
        text = f"{SERIAL}search: {{require_diagnosis: {str(own).lower()}}}\n"
        (tmp_path / "run.yaml").write_text(text, encoding="utf-8")
        assert "cannot be read" in shell("run", "run.yaml", *option)[2]


def test_a_plan_is_logged_where_it_is_asked_for(shell, tmp_path, monkeypatch):
    import mlflow

    logged = []
    monkeypatch.setattr(mlflow, "start_run", lambda run_name: nullcontext(logged.append(run_name)))
    monkeypatch.setattr(mlflow, "log_artifact", lambda path: logged.append(Path(path).name))
    Converged(tmp_path / "serial").write("begin")
    spec = {**SPEC, "serial": {**SPEC["serial"], "run": "serial"}}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    assert shell("plan", "spec.yaml")[0] == 0
    assert logged == []
    assert shell("plan", "spec.yaml", "--mlflow")[0] == 0
    assert logged == ["plan formula", "plan.md", "plan.html", "plan.json"]
