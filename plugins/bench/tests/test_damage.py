"""No journal that was changed on disk is taken for what was written."""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from combee_dspy.events import CandidateValidated
from combee_dspy.exceptions import JournalDamagedError
from combee_dspy.journal import Effect, Journal
from combee_dspy.records import CallUsage
from combee_dspy.streams import derive
from plugins.bench.tests.sizes import show, size

pytestmark = pytest.mark.slow
FILE, LOG = "journal.sqlite", "journal.sqlite-wal"
RECOVERABLE = re.compile(r"effects that can be read|no effect can be read|its format is")
TABLES = ("run", "effect", "usage", "event")
Damage = Callable[[bytearray, random.Random], None]


async def write(closed: Path, died: Path, effects: int) -> None:
    """Write a journal, and copy it as a process that dies leaves it: half in SQLite's log."""
    usage = CallUsage("task", "m", 1, 0, 0, 100, 10, 0.001, None, 0.5)
    with closing(Journal(closed)) as journal:
        log = journal.run("main", 7, {"program": "aa"}, {"specs": {}})
        for number in range(effects):
            value = {"score": 0.5, "prediction": {"answer": f"answer {number} " * (number % 40)}}
            await log.keep(
                Effect(f"rollout/c/{number}", "rollout", value, "task", score=0.5, usage=(usage,))
            )
            event = CandidateValidated(f"c{number}", number, number / 7, 1, best=True)
            log.emit(event, step=number)
            if number == effects // 2:
                with closing(sqlite3.connect(journal.path)) as connection:
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        await log.finish("finished", {"best": "c1"})
        shutil.copytree(closed, died)
        log.close()
    assert (died / LOG).stat().st_size


@pytest.fixture(scope="module")
def journals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("journals")
    asyncio.run(write(folder / "closed", folder / "died", size("effects", 30)))
    return folder


def flip(content: bytearray, stream: random.Random) -> None:
    content[stream.randrange(len(content))] ^= 1 << stream.randrange(8)


def cut(content: bytearray, stream: random.Random) -> None:
    del content[stream.randrange(len(content)) :]


def zero(content: bytearray, stream: random.Random) -> None:
    at = stream.randrange(len(content) // 512) * 512
    content[at : at + 512] = bytes(512)


def move(content: bytearray, stream: random.Random) -> None:
    first, other = (stream.randrange(len(content) // 512) * 512 for _ in range(2))
    content[first : first + 512] = content[other : other + 512]


def content_of(place: Path) -> list[object]:
    with closing(sqlite3.connect(place / FILE)) as connection:
        return [
            connection.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall()  # noqa: S608
            for table in TABLES
        ]


def outcome(place: Path, whole: list[object]) -> str:
    """Return what became of a damaged journal."""
    files = [place / name for name in (FILE, LOG) if (place / name).exists()]
    before = [file.read_bytes() for file in files]
    try:
        with closing(Journal(place)):
            return "harmless" if content_of(place) == whole else "accepted with other content"
    except JournalDamagedError as error:
        if [file.read_bytes() for file in files if file.exists()] != before:
            return "written over"
        return "refused" if RECOVERABLE.search(str(error)) else "refused without a remedy"


@pytest.mark.parametrize(
    ("name", "source", "file", "damage"),
    [
        ("a bit flipped, run closed", "closed", FILE, flip),
        ("a bit flipped, process died", "died", FILE, flip),
        ("a bit flipped in SQLite's log", "died", LOG, flip),
        ("cut off", "closed", FILE, cut),
        ("SQLite's log cut off", "died", LOG, cut),
        ("512 bytes zeroed", "closed", FILE, zero),
        ("512 bytes of another place", "closed", FILE, move),
    ],
)
def test_a_damaged_journal_is_refused_unless_nothing_written_is_hit(
    name: str, source: str, file: str, damage: Damage, journals: Path, tmp_path: Path
) -> None:
    stream, place = derive(size("seed", 0), "damage", name), tmp_path / "copy"
    shutil.copytree(journals / source, place)
    with closing(Journal(place)):
        whole = content_of(place)
    outcomes: Counter[str] = Counter()
    for _ in range(size("times", 43)):
        shutil.rmtree(place)
        shutil.copytree(journals / source, place)
        content = bytearray((place / file).read_bytes())
        damage(content, stream)
        (place / file).write_bytes(content)
        outcomes[outcome(place, whole)] += 1
    show((name, dict(outcomes)))
    assert set(outcomes) <= {"harmless", "refused"}
    # What lies in SQLite's log has replaced most of the file of a process that died.
    assert outcomes["refused"] or (source, file) == ("died", FILE)
