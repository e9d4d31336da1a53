"""A large journal that was checked is not checked again, until one bit of it has changed."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

import pytest

from combee_dspy import Budget
from combee_dspy.exceptions import JournalDamagedError, JournalError
from combee_dspy.journal import Effect, Journal, Reader, _checked
from combee_dspy.records import CallUsage
from tests.worlds import World

USAGE = CallUsage("task", "m", 1, 0, 0, 10, 1, 0.5, None, 1.0)


class Checks:
    """Counts how often every row was looked at."""

    def __init__(self) -> None:
        self.number = 0
        self._check = _checked.check

    def __call__(
        self, connection: sqlite3.Connection, path: Path, counts: Sequence[int] = ()
    ) -> bool:
        self.number += 1
        return self._check(connection, path, counts)


@pytest.fixture
def checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checks:
    monkeypatch.setenv("COMBEE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(_checked, "_LARGE", 0)
    counter = Checks()
    monkeypatch.setattr(_checked, "check", counter)
    return counter


async def write(folder: Path, effects: int) -> None:
    with closing(Journal(folder)) as journal:
        log = journal.run("main", 7, {"program": "aa"}, {"specs": {}})
        for number in range(effects):
            value = {"score": 1.0, "text": f"answer {number} " * 20}
            await log.keep(Effect(f"rollout/{number}", "rollout", value, "task", usage=(USAGE,)))
        log.close()


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    asyncio.run(write(tmp_path / "run", 20))
    return tmp_path / "run" / "journal.sqlite"


def read(path: Path) -> list[object]:
    with Reader(path, checked=True) as reader:
        tables = ("run", "effect", "usage", "event")
        return [
            tuple(row)
            for table in tables
            for row in reader.rows(f"SELECT * FROM {table}")  # noqa: S608
        ]


def test_what_was_checked_is_read_again_by_its_digest(checks: Checks, journal: Path) -> None:
    rows = read(journal)
    assert read(journal) == rows
    assert checks.number == 1
    asyncio.run(write(journal.parent, 21))  # the run goes on
    assert len(read(journal)) > len(rows)
    assert checks.number == 2


def test_a_run_that_ends_checks_its_journal(checks: Checks, tmp_path: Path) -> None:
    World.made().compile(log_dir=tmp_path / "ended", budget=Budget(updates=1))
    journal = tmp_path / "ended" / "journal.sqlite"
    assert checks.number == 1
    read(journal)
    assert checks.number == 1
    damaged = bytearray(journal.read_bytes())
    damaged[-100] ^= 1
    journal.write_bytes(damaged)
    with suppress(JournalDamagedError):  # the bit may be of no row
        read(journal)
    assert checks.number == 2


def test_no_changed_bit_passes_for_what_was_checked(checks: Checks, journal: Path) -> None:
    rows, content = read(journal), journal.read_bytes()
    stream, refused = random.Random(7), 0
    for number in range(100):
        damaged = bytearray(content)
        damaged[stream.randrange(len(damaged))] ^= 1 << stream.randrange(8)
        journal.write_bytes(damaged)
        try:
            assert read(journal) == rows
        except JournalDamagedError:
            refused += 1
        assert checks.number == number + 2
        journal.write_bytes(content)
    assert refused > 5


def test_a_folder_does_not_vouch_for_itself(
    checks: Checks, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(journal)
    monkeypatch.setenv("COMBEE_CACHE", str(journal.parent / "none"))
    note = next((journal.parents[1] / "cache" / "checked").iterdir())
    (journal.parent / note.name).write_bytes(note.read_bytes())
    read(journal)
    assert checks.number == 2


def test_what_sqlite_keeps_beside_a_file_has_every_row_checked(
    checks: Checks, journal: Path
) -> None:
    read(journal)
    with closing(sqlite3.connect(journal)) as connection:
        connection.execute("UPDATE effect SET score = 0.5 WHERE id = 7")
        connection.commit()
        with pytest.raises(JournalDamagedError, match="1 of 20 rows of 'effect' were changed"):
            read(journal)


def test_notes_are_their_owners_and_no_cache_is_no_error(
    checks: Checks, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(journal)
    folder = journal.parents[1] / "cache" / "checked"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}
    monkeypatch.setenv("COMBEE_CACHE", os.devnull)
    read(journal)
    assert checks.number == 2


def test_rows_that_were_cut_off_are_missed_by_a_reader_as_well(
    checks: Checks, journal: Path
) -> None:
    rows, content = read(journal), journal.read_bytes()
    asyncio.run(write(journal.parent, 30))
    assert len(read(journal)) > len(rows)
    journal.write_bytes(content)  # an earlier copy of the file, whole in itself
    with pytest.raises(JournalDamagedError, match="10 of 30 rows of 'effect' are missing"):
        read(journal)
    journal.write_bytes(b"")
    with pytest.raises(JournalDamagedError):
        read(journal)


def test_an_empty_file_is_a_run_that_had_not_begun(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite").write_bytes(b"")
    for checked in (True, False):
        with pytest.raises(JournalError, match="holds no run: it was stopped before it began"):
            Reader(tmp_path / "journal.sqlite", checked=checked)
    asyncio.run(write(tmp_path, 3))
    assert len(read(tmp_path / "journal.sqlite")) == 7


@pytest.mark.parametrize("text", [b"x" * 5_000, b"x\n" + b"9" * 900, b"x\n20 20 0", b"\xff"])
def test_what_stands_beside_a_journal_may_say_anything(journal: Path, text: bytes) -> None:
    journal.with_name("journal.sqlite.holder").write_bytes(text)
    assert len(read(journal)) == 41
