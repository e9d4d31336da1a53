"""What is read of a run's journal: on a screen, as JSON, and never steering the terminal."""

from __future__ import annotations

import json
import sys

import pytest

from combee_dspy import tracking
from tests.tracking.journals import Story


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_rollouts_are_chosen_by_a_condition(shell, recorded):
    code, out, _ = shell(
        "rollouts", recorded, "--where", "score < 0.5 and split = 'validation'", "--json"
    )
    rows = lines(out)
    assert code == 0
    assert rows
    assert {(row["split"], row["score"]) for row in rows} == {("validation", 0.0)}
    assert json.loads(rows[0]["prediction"]) == {"answer": "wrong"}


def test_what_was_held_out_is_counted_and_not_shown(shell, recorded):
    rows = lines(shell("rollouts", recorded, "--where", "split = 'heldout'", "--json")[1])
    assert rows
    assert {row["inputs"] for row in rows} == {row["prediction"] for row in rows} == {None}


def test_a_table_says_that_it_leaves_rows_out(shell, recorded):
    assert "These are the first 2" in shell("rollouts", recorded, "--table", "--limit", "2")[1]
    assert "These are" not in shell("rollouts", recorded, "--table", "--limit", "0")[1]


def test_a_limit_holds_in_a_pipe_and_without_one_all_rows_come(shell, recorded):
    every = lines(shell("rollouts", recorded)[1])
    assert len(every) > 2
    assert lines(shell("rollouts", recorded, "--limit", "2")[1]) == every[:2]
    assert lines(shell("rollouts", recorded, "--json", "--limit", "0")[1]) == every


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_tables_fit_a_terminal_and_what_they_name_can_be_typed_back(
    shell, recorded, monkeypatch, columns
):
    def table(*arguments):
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        code, out, _ = shell(*arguments)
        assert code == 0
        assert max(map(len, out.splitlines())) <= columns
        return [line.split() for line in out.splitlines()]

    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "dumb")
    heads, *found = table("candidates", recorded)
    assert heads == ["index", "id", "parents", "operator", "update", "validation", "screen", "fate"]
    for row in found:
        assert shell("show", recorded, row[1])[1] == shell("show", recorded, row[0])[1]
    heads, *found = table("rollouts", recorded)
    assert heads[:6] == ["id", "update", "for", "candidate", "score", "seconds"]
    assert shell("show", recorded, f"effect/{found[0][0]}")[0] == 0
    heads, *found = table("runs", recorded)
    assert heads == ["date", "program", "model", "score", "result", "run"]
    assert "".join(row[-1] for row in found).endswith(str(recorded))
    table("plugins")


def test_a_pipe_gets_a_line_of_json_a_row(shell, recorded):
    for command in ("runs", "rollouts", "candidates"):
        assert lines(shell(command, recorded)[1]) == lines(shell(command, recorded, "--json")[1])


def test_nothing_that_a_run_wrote_steers_the_terminal_and_no_key_is_shown(shell, recorded):
    for arguments in (["rollouts", "--table"], ["rollouts"], ["candidates", "--table"], ["show"]):
        code, out, err = shell(arguments[0], recorded, *arguments[1:])
        assert (code, err) == (0, ""), arguments
        assert "\x1b" not in out
        assert "\u202e" not in out
        assert "sk-command" not in out
    _, out, _ = shell("show", recorded, "best")
    assert "+ - State the unit." in out
    assert "[bold]x[/bold]" in out
    assert "\x1b" not in out


def test_candidates_have_lineage_and_scores(shell, recorded):
    code, out, _ = shell("candidates", recorded, "--json")
    seed, child, *_ = lines(out)
    assert code == 0
    assert (seed["operator"], seed["score"], seed["index"]) == ("seed", 0.0, 0)
    assert (child["operator"], child["score"], child["parents"]) == (
        "insert",
        1.0,
        [seed["candidate"]],
    )
    table = shell("candidates", recorded, "--table")[1]
    assert "chosen" in table
    assert child["candidate"][:6] in table


def test_a_run_is_shown_with_what_it_has_cost(shell, recorded):
    code, out, _ = shell("show", recorded)
    assert code == 0
    assert out.startswith("held-out    ")
    assert "scripted/double" in out
    (one,) = json.loads(shell("show", recorded, "--json")[1])
    assert {row["role"] for row in one["costs"]} == {"task", "proposer"}


def test_one_candidate_and_one_rollout_are_shown(shell, recorded):
    best = json.loads(shell("show", recorded, "best", "--json")[1])
    assert best["selected"]
    assert json.loads(shell("show", recorded, best["candidate"][:6], "--json")[1]) == best
    first, *_ = lines(shell("rollouts", recorded, "--json")[1])
    code, out, _ = shell("show", recorded, f"effect/{first['id']}")
    assert code == 0
    assert "prediction" in out


def test_runs_are_found_in_folders(shell, recorded, tmp_path):
    assert "No run found" in shell("runs")[2]
    code, out, _ = shell("runs", recorded.parent, "--json")
    (row,) = lines(out)
    assert (code, row["run"], row["state"], row["best_score"]) == (
        0,
        str(recorded),
        "finished",
        1.0,
    )
    assert "0.000 → 1.000" in shell("runs", recorded.parent, "--table")[1]


def test_the_report_is_written(shell, recorded, tmp_path):
    code, out, _ = shell("report", recorded, "--output", tmp_path / "page.html")
    assert code == 0
    assert "page.html" in out
    assert "State the unit" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_replay_says_where_to_look(shell, recorded, monkeypatch):
    asked = []
    told = lambda *given, **named: asked.append((given, named)) or ("mlflow/1",)  # noqa: E731
    monkeypatch.setattr(tracking, "replay", told)
    assert shell("track", "replay", recorded, "--experiment", "mine") == (0, "mlflow/1\n", "")
    assert asked == [((recorded,), {"tracking_uri": None, "experiment": "mine"})]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rollouts", "{}", "--where", "scor < 1"], "no such column: scor"),
        (["rollouts", "{}", "--where", "1); DELETE FROM run; --"], "where cannot be used"),
        (["rollouts", "{}", "--run", "other"], "1 (main)"),
        (["rollouts", "nowhere"], "holds no run"),
        (["candidates", "nowhere"], "holds no run"),
        (["show", "{}", "ffffffff"], "neither a candidate nor an effect's number"),
        (["report", "{}", "--output", "no/such/folder.html"], "cannot be written"),
        (["runs", "absent"], "is not there"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(shell, recorded, arguments, words):
    code, out, err = shell(*(argument.format(recorded) for argument in arguments))
    assert (code, out) == (2, "")
    assert words in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_what_failed_and_what_was_warned_of_is_shown(shell, recorded):
    said = tracking.overview(recorded, 1)[0]["problems"]
    assert ["can tell no difference" in warning for warning in said["warnings"]] == [True], said
    out = shell("show", recorded)[1]
    assert out.count("warning ") == len(said["warnings"])
    assert json.loads(shell("show", recorded, "--json")[1])[0]["problems"] == said


def test_a_run_that_is_not_there_is_refused(shell, recorded):
    code, out, err = shell("show", recorded, "--run", "other")
    assert (code, out) == (2, "")
    assert "is no run of this journal" in err


def test_a_task_that_is_named_by_a_number_is_shown_by_its_name(shell, tmp_path):
    for name in ("2", "1"):
        Story(tmp_path / "run", name).write("begin")
    (found,) = json.loads(shell("show", "run", "--run", "2", "--json")[1])
    assert (found["id"], found["name"]) == (1, "2")


def test_a_journal_that_cannot_be_read_hides_no_other(shell, recorded, tmp_path):
    (tmp_path / "whole").symlink_to(recorded)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "journal.sqlite").write_text("no journal")
    code, out, err = shell("runs", tmp_path / "broken", tmp_path / "whole")
    assert code == 0
    assert len(lines(out)) == 1
    assert "Not listed: " in err
    assert shell("runs", tmp_path / "broken")[0] == 2


def test_a_short_path_is_not_cut(shell, recorded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "tracked").symlink_to(recorded)
    out = shell("runs", "runs/tracked", "--table")[1]
    assert "".join(line.split()[-1] for line in out.splitlines()[1:]) == "runs/tracked"
