"""A journal is read as records, or refused by name, whoever wrote it."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from combee_dspy import tracking
from combee_dspy.cli import main
from combee_dspy.events import (
    AnswersIgnored,
    BookChanged,
    CandidateValidated,
    HeldoutRead,
    RunStopped,
    ScanEnded,
    ShadowsCounted,
    UpdateEnded,
    decode,
    encode,
)
from combee_dspy.exceptions import CombeeError, JournalDamagedError
from combee_dspy.journal import Reader, RunHistory, journal_file
from combee_dspy.journal._integrity import SUMMED, row_sum
from combee_dspy.tracking.report import render_report
from tests.tracking.journals import SEED, Story


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Story(tmp_path_factory.mktemp("whole")).whole()


def craft(place: Path, sql: str, *parameters: Any) -> None:
    """Change a journal as somebody does who knows its checksums."""
    with closing(sqlite3.connect(place / "journal.sqlite")) as connection:
        connection.create_function("row_sum", -1, row_sum)
        connection.execute(sql, parameters)
        for table in ("run", "effect", "event"):
            connection.execute(f"UPDATE {table} SET crc = row_sum({SUMMED[table]})")  # noqa: S608
        columns = ", ".join(f"usage.{name}" for name in SUMMED["usage"].split(", "))
        connection.execute(
            f"UPDATE usage SET crc = (SELECT row_sum(run, key, {columns}) FROM effect"  # noqa: S608
            " WHERE effect.id = usage.effect)"
        )
        connection.commit()


def read_all(place: Path) -> None:
    """Read a journal as every command does."""
    tracking.runs(place)
    tracking.overview(place)
    tracking.rollouts(place)
    tracking.candidates(place)
    for what in ("best", "effect/1"):
        tracking.show(place, what)
    with Reader(journal_file(place), checked=True) as reader:
        render_report(RunHistory(reader, 1))


def test_events_come_back_as_they_were_written_in_their_order(whole: Path) -> None:
    with Reader(journal_file(whole)) as reader:
        history = RunHistory(reader, 1)
        entries = list(history.entries(CandidateValidated, UpdateEnded))
        assert [type(entry.event).kind for entry in entries] == [
            *("validated", "validated", "update", "validated", "update")
        ]
        assert [entry.step for entry in entries] == [-1, 0, 0, 1, 1]
        assert entries[0].event == CandidateValidated(SEED, 0, 0.25, 4, best=True)
        later = history.entries(CandidateValidated, UpdateEnded, after=entries[1].id, last_step=0)
        assert [entry.id for entry in later] == [entries[2].id]
        newest = history.entries(UpdateEnded, newest_first=True)
        assert [entry.step for entry in newest] == [1, 0]
        assert history.last(RunStopped) == RunStopped("1 epoch is done")
        assert history.last(ShadowsCounted) is None
        assert history.count(BookChanged) == 3
        assert history.about.sizes == {"train": 8, "validation": 4, "heldout": 4}


def test_what_version_0_2_wrote_is_read() -> None:
    place = {"path": "journal.sqlite", "number": 1}
    heldout = '{"before":0,"after":1,"difference":1,"low":0,"high":1,"n":4}'
    assert decode(HeldoutRead, heldout, **place).look == 1
    book = '{"lessons":[{"id":"a1","text":"Round.","sources":["r1"],"unheard":1}]}'
    (lesson,) = decode(BookChanged, book, **place).book.lessons
    assert (lesson.wordings, lesson.state, lesson.effect) == (("a1",), "served", None)
    shadows = ShadowsCounted({"scored": 3, "not scored": 1})
    assert encode(shadows) == '{"scored":3,"not scored":1}'
    assert decode(ShadowsCounted, encode(shadows), **place) == shadows


WRONG = {
    "no JSON": "{",
    "another kind of JSON": "[]",
    "endless": '{"seconds":1e999,"count":1e999,"score":1e999}',
    "nested": '{"texts":' + "[" * 100_000,
    "a long number": '{"index":' + "9" * 100_000 + "}",
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("kind", [CandidateValidated, UpdateEnded, AnswersIgnored, ShadowsCounted])
def test_what_is_no_event_is_refused_by_number_and_place(kind: Any, text: str) -> None:
    with pytest.raises(JournalDamagedError, match=rf"event 7 \({kind.kind}\) cannot be read"):
        decode(kind, text, path="journal.sqlite", number=7)


def crafts() -> Iterator[Any]:
    events = {
        "candidate": ("candidate", "texts", "parents", "operator", "components"),
        "screened": ("candidate", "score", "parent_score", "accepted", "reason"),
        "validated": ("candidate", "index", "score", "best"),
        "batch": ("size", "reason", "fit", "clamps"),
        "update": ("parent", "rows", "started", "seconds"),
        "scan": ("aggregator", "n", "nodes", "lessons", "retained"),
        "book": ("lessons",),
        "tested": ("lesson", "rows", "accepted"),
        "void": ("count", "reasons"),
        "refused": ("operator",),
        "selected": ("candidate",),
        "receipt": ("stage", "heldout", "difference"),
        "heldout": ("before", "high", "n"),
        "warning": ("text",),
        "stopped": ("reason",),
    }
    for kind, keys in events.items():
        for key in keys:
            sql = "UPDATE event SET data = json_set(data, ?, json('[{}]')) WHERE kind = ?"
            yield pytest.param(sql, (f"$.{key}", kind), id=f"{kind}.{key}")
        sql = "UPDATE event SET data = '{}' WHERE kind = ?"
        yield pytest.param(sql, (kind,), id=f"{kind} without data")
    for column in ("description", "result"):
        yield pytest.param(f"UPDATE run SET {column} = '['", (), id=column)  # noqa: S608
        yield pytest.param(f"UPDATE run SET {column} = 'null'", (), id=f"no {column}")  # noqa: S608
    for key in ("models", "sizes", "limits", "specs", "simulated", "evaluator"):
        sql = "UPDATE run SET description = json_set(description, ?, json('[1]'))"
        yield pytest.param(sql, (f"$.{key}",), id=f"description.{key}")
    for column in ("started", "ended", "score", "step", "purpose", "candidate", "value"):
        value = "'x'" if column in ("started", "ended", "score", "step") else "x'ff'"
        yield pytest.param(f"UPDATE effect SET {column} = {value}", (), id=f"effect.{column}")  # noqa: S608
    for column in ("role", "purpose", "step", "candidate", "example", "score", "started", "ended"):
        sql = f"UPDATE effect SET {column} = NULL"  # noqa: S608 - constants
        yield pytest.param(sql, (), id=f"effect without {column}")
    for column in ("calls", "errors", "cached", "prompt_tokens", "completion_tokens", "seconds"):
        sql = f"UPDATE usage SET {column} = NULL"  # noqa: S608 - constants
        yield pytest.param(sql, (), id=f"usage without {column}")
    yield pytest.param("UPDATE event SET step = NULL", (), id="event without step")
    yield pytest.param("UPDATE effect SET value = '{' WHERE id = 1", (), id="value that is no JSON")
    yield pytest.param("UPDATE run SET created = 9e999", (), id="endless time")
    for column in ("created", "finished"):
        sql = f"UPDATE run SET {column} = 1e14"  # noqa: S608 - constants
        yield pytest.param(sql, (), id=f"{column} beyond all years")
    yield pytest.param("UPDATE usage SET calls = 'x'", (), id="usage")
    yield pytest.param("UPDATE event SET run = 7 WHERE kind = 'candidate'", (), id="another run")
    yield pytest.param("UPDATE effect SET run = 7", (), id="effects of another run")
    yield pytest.param("DROP TABLE usage", (), id="no usage")


@pytest.mark.parametrize(("sql", "parameters"), [*crafts()])
def test_a_crafted_journal_is_read_or_refused_by_name(
    sql: str, parameters: tuple[str, ...], whole: Path, tmp_path: Path
) -> None:
    shutil.copy(whole / "journal.sqlite", tmp_path)
    if sql.startswith("DROP"):
        with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as connection:
            connection.execute(sql)
    else:
        craft(tmp_path, sql, *parameters)
    try:
        read_all(tmp_path)
    except CombeeError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("step INTEGER", value) for value in ("1.5", "1e15", "-1e15", "'x'", "'5'", "x'35'")),
        *(("score REAL", value) for value in ("9e999", "-1.7e308", "'x'", "'0.5'", "x'ff'")),
        *(("component TEXT", value) for value in ("5", "0.5", "x''", "x'ff'")),
        *((column, "NULL") for column in ("step INTEGER", "ended REAL", "purpose TEXT")),
    ],
)
def test_a_value_of_another_type_is_refused_though_its_checksum_fits(
    column: str, value: str, whole: Path, tmp_path: Path
) -> None:
    shutil.copy(whole / "journal.sqlite", tmp_path)
    name = column.split()[0]
    # Where a column has no type, SQLite keeps a value as it is.
    for before, after in ((column, f"{name} BLOB"), (f"{name} BLOB", column)):
        with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as connection:
            connection.execute("PRAGMA writable_schema = ON")
            sql = "UPDATE sqlite_master SET sql = replace(sql, ?, ?) WHERE name = 'effect'"
            connection.execute(sql, (before, after))
            connection.commit()
        if after != column:
            craft(tmp_path, f"UPDATE effect SET {name} = {value} WHERE id = 2")  # noqa: S608
    with pytest.raises(JournalDamagedError, match=f"effect.{name}"):
        tracking.runs(tmp_path)


@pytest.mark.parametrize("command", [["rollouts", "--table"], ["show", "effect/1"], ["report"]])
def test_inputs_of_any_depth_are_shown_as_text(
    command: list[str], whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(whole / "journal.sqlite", tmp_path)
    craft(tmp_path, "UPDATE effect SET value = json_set(value, '$.inputs', ?)", "[" * 100_000)
    with pytest.raises(SystemExit) as ended:
        main([command[0], str(tmp_path), *command[1:]])
    assert ended.value.code == 0, capsys.readouterr().err


def test_one_bad_folder_hides_no_other_run(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, sql in {
        "bad": "UPDATE event SET data = '{}' WHERE kind = 'validated'",
        "good": "UPDATE run SET name = 'neighbour'",
        "worse": "UPDATE run SET description = '[]'",
    }.items():
        (tmp_path / name).mkdir()
        shutil.copy(whole / "journal.sqlite", tmp_path / name)
        craft(tmp_path / name, sql)
    with pytest.raises(SystemExit) as ended:
        main(["runs", str(tmp_path), "--json"])
    output = capsys.readouterr()
    assert ended.value.code == 0
    assert [json.loads(line)["name"] for line in output.out.splitlines()] == ["neighbour"]
    assert output.err.count("Not listed") == 2
    assert "event" in output.err


def test_a_row_that_was_changed_is_still_noticed(whole: Path, tmp_path: Path) -> None:
    changes = {
        "effect": ("score = 0.125", "error = 'x'", "failed_in = 'metric'", "value = value || ' '"),
        "usage": ("prompt_tokens = 11", "dollars = NULL", "gpu_seconds = 1.0", "model = 'm'"),
        "event": ("data = data || ' '", "at = at + 1"),
    }
    for table, assignments in changes.items():
        for assignment in assignments:
            shutil.copy(whole / "journal.sqlite", tmp_path)
            with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as connection:
                connection.execute(f"UPDATE {table} SET {assignment} WHERE rowid = 2")  # noqa: S608
                connection.commit()
            with pytest.raises(JournalDamagedError, match=f"1 of .* rows of '{table}' were"):
                tracking.runs(tmp_path)


def test_the_scan_comes_back_whole(whole: Path) -> None:
    with Reader(journal_file(whole)) as reader:
        first = next(RunHistory(reader, 1).entries(ScanEnded)).event
    assert decode(ScanEnded, encode(first), path="", number=1) == first
    assert (first.failed, first.retained[1].lost_at) == (1, (1, 0))
