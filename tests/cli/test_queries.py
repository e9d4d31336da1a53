"""What is read of a run's journal: on a screen, as JSON, and never steering the terminal."""

from __future__ import annotations

import json
import sys

import pytest

from combee_dspy import tracking


@pytest.fixture
def rows_of(shell):
    """Run a command and return the rows of its JSON lines."""

    def run(*arguments):
        code, out, err = shell(*arguments)
        assert (code, err) == (0, "")
        return [json.loads(line) for line in out.splitlines()]

    return run


@pytest.fixture
def terminal(monkeypatch):
    """Make standard output a terminal of some columns."""

    def widen(columns):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "dumb")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    return widen


def test_rollouts_are_chosen_by_a_condition(rows_of, recorded):
    where = "score < 0.5 and split = 'validation'"
    rows = rows_of("rollouts", recorded, "--where", where, "--json")
    assert {(row["split"], row["score"]) for row in rows} == {("validation", 0.0)}
    assert json.loads(rows[0]["prediction"]) == {"answer": "wrong"}


def test_held_out_rows_are_counted_and_not_shown(rows_of, recorded):
    rows = rows_of("rollouts", recorded, "--where", "split = 'heldout'")
    assert {row["inputs"] for row in rows} == {row["prediction"] for row in rows} == {None}


def test_a_limit_holds_in_a_pipe_and_without_one_all_rows_come(shell, rows_of, recorded):
    rows = rows_of("rollouts", recorded)
    assert len(rows) > 2
    assert rows_of("rollouts", recorded, "--limit", "2") == rows[:2]
    assert rows_of("rollouts", recorded, "--json", "--limit", "0") == rows
    assert "These are the first 2" in shell("rollouts", recorded, "--table", "--limit", "2")[1]
    assert "These are" not in shell("rollouts", recorded, "--table", "--limit", "0")[1]


@pytest.mark.parametrize("columns", [80, 120])
def test_tables_fit_a_terminal_and_what_they_name_can_be_typed_back(
    shell, recorded, terminal, columns
):
    def table(*arguments):
        terminal(columns)
        code, out, _ = shell(*arguments)
        assert code == 0
        assert max(map(len, out.splitlines())) <= columns
        return [line.split() for line in out.splitlines()]

    heads, *rows = table("candidates", recorded)
    assert heads == ["index", "id", "parents", "operator", "update", "validation", "screen", "fate"]
    for index, candidate, *_ in rows:
        assert shell("show", recorded, candidate)[1] == shell("show", recorded, index)[1]
    heads, *rows = table("rollouts", recorded)
    assert heads[:6] == ["id", "update", "for", "candidate", "score", "seconds"]
    assert shell("show", recorded, f"effect/{rows[0][0]}")[0] == 0
    heads, *rows = table("runs", recorded)
    assert heads == ["date", "program", "model", "score", "result", "run"]
    assert "".join(row[-1] for row in rows).endswith(str(recorded))
    table("plugins")


@pytest.mark.parametrize(
    "arguments",
    [
        ["rollouts", "{}", "--table"],
        ["rollouts", "{}"],
        ["candidates", "{}", "--table"],
        ["show", "{}"],
        ["show", "{}", "best"],
    ],
)
def test_nothing_that_a_run_wrote_steers_the_terminal_and_no_key_is_shown(
    shell, recorded, arguments
):
    code, out, err = shell(*(argument.format(recorded) for argument in arguments))
    assert (code, err) == (0, "")
    assert not any(text in out for text in ("\x1b", "\u202e", "sk-command"))
    if "best" in arguments:
        assert "+ - State the unit." in out
        assert "[bold]x[/bold]" in out


def test_candidates_have_lineage_and_scores(shell, rows_of, recorded):
    seed, child, *_ = rows_of("candidates", recorded, "--json")
    assert (seed["operator"], seed["score"], seed["index"]) == ("seed", 0.0, 0)
    assert (child["operator"], child["score"]) == ("insert", 1.0)
    assert child["parents"] == [seed["candidate"]]
    table = shell("candidates", recorded, "--table")[1]
    assert "chosen" in table
    assert child["candidate"][:6] in table


def test_a_run_is_shown_with_its_costs_and_warnings(shell, recorded):
    code, out, _ = shell("show", recorded)
    assert code == 0
    assert out.startswith("held-out    ")
    assert "scripted/double" in out
    (run,) = json.loads(shell("show", recorded, "--json")[1])
    assert {row["role"] for row in run["costs"]} == {"task", "proposer"}
    (warning,) = run["problems"]["warnings"]
    assert "can tell no difference" in warning
    assert out.count("warning ") == 1


def test_one_candidate_and_one_rollout_are_shown(shell, rows_of, recorded):
    best = json.loads(shell("show", recorded, "best", "--json")[1])
    assert best["selected"]
    assert json.loads(shell("show", recorded, best["candidate"][:6], "--json")[1]) == best
    first, *_ = rows_of("rollouts", recorded)
    code, out, _ = shell("show", recorded, f"effect/{first['id']}")
    assert code == 0
    assert "prediction" in out


def test_runs_are_listed_from_folders(shell, rows_of, recorded):
    assert "No run found" in shell("runs")[2]
    (row,) = rows_of("runs", recorded.parent)
    assert (row["run"], row["state"], row["best_score"]) == (str(recorded), "finished", 1.0)
    assert "0.000 → 1.000" in shell("runs", recorded.parent, "--table")[1]


def test_a_journal_that_cannot_be_read_hides_no_other(shell, recorded, tmp_path):
    (tmp_path / "whole").symlink_to(recorded)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "journal.sqlite").write_text("no journal")
    code, out, err = shell("runs", tmp_path / "broken", tmp_path / "whole")
    assert (code, out.count("\n")) == (0, 1)
    assert "Not listed: " in err
    assert shell("runs", tmp_path / "broken")[0] == 2


def test_the_report_is_written(shell, recorded, tmp_path):
    code, out, _ = shell("report", recorded, "--output", tmp_path / "page.html")
    assert code == 0
    assert "page.html" in out
    assert "State the unit" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_replay_prints_where_to_look(shell, recorded, monkeypatch):
    calls = []

    def replay(*arguments, **options):
        calls.append((arguments, options))
        return ("mlflow/1",)

    monkeypatch.setattr(tracking, "replay", replay)
    assert shell("track", "replay", recorded, "--experiment", "mine") == (0, "mlflow/1\n", "")
    assert calls == [((recorded,), {"tracking_uri": None, "experiment": "mine"})]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["rollouts", "{}", "--where", "scor < 1"],
            "no such column: scor (got 'scor < 1'). Did you mean 'score'?",
        ),
        (["rollouts", "{}", "--where", "1); DELETE FROM run; --"], "where cannot be used"),
        (["rollouts", "{}", "--run", "other"], "1 (main)"),
        (["rollouts", "nowhere"], "holds no run"),
        (["show", "{}s"], "holds no run"),
        (["show", "{}s"], "Did you mean"),
        (["run", "nowhere.yaml"], "CONFIG cannot be read: No such file or directory (got"),
        (["candidates", "nowhere"], "holds no run"),
        (["show", "{}", "ffffffff"], "neither a candidate nor an effect's number"),
        (["show", "{}", "--run", "other"], "is no run of this journal"),
        (["report", "{}", "--output", "no/such/folder.html"], "cannot be written"),
        (["runs", "absent"], "is not there"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(shell, recorded, arguments, words):
    code, out, err = shell(*(argument.format(recorded) for argument in arguments))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ")
    assert words in err
