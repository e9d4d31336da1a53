"""Is a journal that was changed on disk ever taken for what was written?"""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from combee_bench.options import DamageOptions
from combee_bench.tables import by_rows
from combee_dspy.exceptions import JournalDamagedError, JournalError
from combee_dspy.journal import Effect, Journal
from combee_dspy.records import CallUsage
from combee_dspy.streams import derive

__all__ = ["DamageRow", "line", "passed", "run", "table"]

_FILE, _LOG = "journal.sqlite", "journal.sqlite-wal"
_RECOVERABLE = re.compile(r"effects that can be read|no effect can be read|its format is")


@dataclass(frozen=True, slots=True)
class DamageRow:
    """One kind of damage.

    Attributes:
        damage: What was done.
        times: How often, each time to a fresh copy.
        harmless: How often the journal opened and every column of every row was as it had been
            written.
        found: How often it was refused as damaged, and not changed.
        named: How often the refusal said what can be recovered.
        accepted: How often it opened with another content.
        changed: How often it was refused, and the file was written to.
        other: How often something else happened.
    """

    damage: str
    times: int
    harmless: int = 0
    found: int = 0
    named: int = 0
    accepted: int = 0
    changed: int = 0
    other: int = 0


def run(options: DamageOptions) -> Iterator[DamageRow]:
    """Damage copies of a journal that was closed, and of one whose process died, in each way."""
    with tempfile.TemporaryDirectory() as folder:
        closed, died = Path(folder, "closed"), Path(folder, "died")
        asyncio.run(_written(closed, died, options.effects))
        for name, source, file, damage in (
            ("a bit flipped, run closed", closed, _FILE, _flip),
            ("a bit flipped, process died", died, _FILE, _flip),
            ("a bit flipped in SQLite's log", died, _LOG, _flip),
            ("cut off", closed, _FILE, _cut),
            ("SQLite's log cut off", died, _LOG, _cut),
            ("512 bytes zeroed", closed, _FILE, _zero),
            ("512 bytes of another place", closed, _FILE, _move),
        ):
            yield _damaged(name, source, file, damage, options)


async def _written(closed: Path, died: Path, effects: int) -> None:
    """Write a journal, copied as a process that dies leaves it: half of it still in SQLite's
    log.
    """
    usage = CallUsage("task", "m", 1, 0, 0, 100, 10, 0.001, None, 0.5)
    with closing(Journal(closed)) as journal:
        log = journal.run("main", 7, {"program": "aa"}, {"specs": {}})
        for number in range(effects):
            value = {"score": 0.5, "prediction": {"answer": f"answer {number} " * (number % 40)}}
            await log.keep(
                Effect(f"rollout/c/{number}", "rollout", value, "task", score=0.5, usage=(usage,))
            )
            log.emit("validated", {"candidate": f"c{number}", "score": number / 7}, step=number)
            if number == effects // 2:
                with closing(sqlite3.connect(journal.path)) as connection:
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        await log.finish("finished", {"best": "c1"})
        shutil.copytree(closed, died)
        log.close()
    if not (died / _LOG).stat().st_size:
        raise RuntimeError("the journal that was copied has nothing in SQLite's log")


def _damaged(
    name: str,
    source: Path,
    file: str,
    damage: Callable[[bytearray, random.Random], None],
    options: DamageOptions,
) -> DamageRow:
    stream = derive(options.seed, "damage", name)
    counts = dict.fromkeys(("harmless", "found", "named", "accepted", "changed", "other"), 0)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "copy")
        shutil.copytree(source, place)
        with closing(Journal(place)):
            whole = _content(place)
        for _ in range(options.times):
            shutil.rmtree(place)
            shutil.copytree(source, place)
            content = bytearray((place / file).read_bytes())
            damage(content, stream)
            (place / file).write_bytes(content)
            for one in _outcomes(place, whole):
                counts[one] += 1
    return DamageRow(name, options.times, **counts)


def _outcomes(place: Path, whole: list[object]) -> Sequence[str]:
    files = [place / one for one in (_FILE, _LOG) if (place / one).exists()]
    before = [one.read_bytes() for one in files]
    try:
        with closing(Journal(place)):
            return ["harmless" if _content(place) == whole else "accepted"]
    except JournalDamagedError as error:
        if [one.read_bytes() for one in files if one.exists()] != before:
            return ["changed"]
        return ["found", "named"] if _RECOVERABLE.search(str(error)) else ["found"]
    except (JournalError, sqlite3.Error):
        return ["other"]


def _content(place: Path) -> list[object]:
    with closing(sqlite3.connect(place / _FILE)) as connection:
        tables = ("run", "effect", "usage", "event")
        return [
            connection.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall()  # noqa: S608
            for table in tables
        ]


def _flip(content: bytearray, stream: random.Random) -> None:
    content[stream.randrange(len(content))] ^= 1 << stream.randrange(8)


def _cut(content: bytearray, stream: random.Random) -> None:
    del content[stream.randrange(len(content)) :]


def _zero(content: bytearray, stream: random.Random) -> None:
    at = stream.randrange(len(content) // 512) * 512
    content[at : at + 512] = bytes(512)


def _move(content: bytearray, stream: random.Random) -> None:
    first, other = (stream.randrange(len(content) // 512) * 512 for _ in range(2))
    content[first : first + 512] = content[other : other + 512]


def line(options: DamageOptions, row: DamageRow) -> str:
    """Return one kind of damage in a line."""
    return f"{row.damage}: {row.accepted} of {row.times} taken for what was written"


def passed(options: DamageOptions, rows: Sequence[DamageRow]) -> bool:
    """Return whether nothing that was changed was taken for what was written, or written over."""
    return all(row.harmless + row.found == row.times and row.named == row.found for row in rows)


def table(options: DamageOptions, rows: Sequence[DamageRow]) -> Table:
    """Return the kinds of damage as a table."""
    heads = (
        "<damage",
        "times",
        "harmless",
        "refused",
        "saying what is left",
        "accepted",
        "written over",
        "other",
    )
    cells = [
        (
            row.damage,
            *map(
                str,
                (
                    row.times,
                    row.harmless,
                    row.found,
                    row.named,
                    row.accepted,
                    row.changed,
                    row.other,
                ),
            ),
        )
        for row in rows
    ]
    notes = (
        (
            "harmless: what was hit is in no row, such as free space; everything read was as it had"
            " been written."
        ),
    )
    return by_rows("Journals damaged on disk", heads, cells, notes)
