"""Does a run that is killed again and again end as one that never was, and what did the kills cost?"""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy
from rich.table import Table

from combee_bench.options import KillsOptions
from combee_bench.simulated import SimulatedConfig, SimulatedService, benchmark_task
from combee_bench.surroundings import LABEL, load_rows, quietly
from combee_bench.tables import by_rows
from combee_dspy import Budget, Combee, Search, Validation
from combee_dspy.exceptions import CombeeError, ServiceError
from combee_dspy.journal import Reader, journal_file
from combee_dspy.streams import derive

__all__ = ["KillsRow", "child", "line", "passed", "run", "table"]

_EVERY = 0.002


@dataclass(frozen=True, slots=True)
class KillsRow:
    """One run that was killed, beside the same run left alone.

    Attributes:
        keep: How it keeps what was learned.
        kills: How often it was killed (SIGKILL).
        same_program: Whether it ended with the same texts.
        same_effects: Whether its journal holds the same effects, each once.
        same_books: Whether its books say the same calls and tokens.
        calls: Calls that the books name.
        answered: Calls that the service answered; those in flight at a kill reached nobody.
        in_flight: Calls that may be in flight at a kill at most, over all kills.
    """

    keep: str
    kills: int
    same_program: bool
    same_effects: bool
    same_books: bool
    calls: int
    answered: int
    in_flight: int


def run(options: KillsOptions) -> Iterator[KillsRow]:
    """Kill runs of each way to keep at moments drawn by the seed, and compare each with one that was left alone."""
    source = ("formula-mini", {"task": "compute"}) if options.path is None else ("formula", {"path": str(options.path)})
    rows = load_rows(*source, train=options.examples, validation=options.validation, heldout=1)
    task = benchmark_task(rows, options.seed, params=source[1], base_rate=0.0)
    config = SimulatedConfig(seed=options.seed, slots=options.workers, time_scale=options.time_scale)
    with SimulatedService(config, task) as service, tempfile.TemporaryDirectory() as folder:
        for keep in ("pareto", "trunk"):
            arguments: dict[str, Any] = {
                "folder": f"{folder}/{keep}-whole", "api_base": service.api_base, "keep": keep, "source": source,
                "workers": options.workers, "seed": options.seed, "sizes": [options.examples, options.validation],
            }  # fmt: skip
            _started(arguments).wait()
            whole = _ended(Path(arguments["folder"]))
            service.reset_stats()
            arguments["folder"] = f"{folder}/{keep}"
            _killed(arguments, len(whole["effects"]), options.kills, derive(options.seed, "kills", keep))
            again = _ended(Path(arguments["folder"]))
            yield KillsRow(
                keep, options.kills, again["best"] == whole["best"], again["effects"] == whole["effects"],
                again["books"] == whole["books"], again["books"][0], service.stats().calls,
                options.kills * options.workers,
            )  # fmt: skip


def _killed(arguments: dict[str, Any], effects: int, kills: int, stream: random.Random) -> None:
    """Run to the end, killed each time the journal holds so many effects more."""
    folder = Path(arguments["folder"])
    for at in sorted(stream.sample(range(1, effects - arguments["workers"]), kills)):
        process = _started(arguments)
        while process.poll() is None and _kept(folder) < at:
            time.sleep(_EVERY)
        process.send_signal(signal.SIGKILL)
        process.wait()
    _started(arguments).wait()


def _started(arguments: dict[str, Any]) -> subprocess.Popen[bytes]:
    code = "import sys; from combee_bench.kills import child; child(sys.argv[1])"
    return subprocess.Popen([sys.executable, "-c", code, json.dumps(arguments)])  # noqa: S603 - our own code


def child(arguments: str) -> None:
    """Compile once; what the started process runs.

    Args:
        arguments: JSON of what :func:`run` decided.
    """
    given = json.loads(arguments)
    train, validation = given["sizes"]
    rows = load_rows(*given["source"], train=train, validation=validation, heldout=1)
    lm = dspy.LM("openai/simulated", api_base=given["api_base"], api_key="simulated", cache=False, temperature=0.0)
    combee = Combee(
        rows.metric, reflection_lm=lm, budget=Budget(epochs=1), reflection_minibatch_size=-(-train // 4), tracker=(),
        num_threads=given["workers"], seed=given["seed"], log_dir=given["folder"], validation=Validation(probe=False),
        search=Search(keep=given["keep"], staleness=1),
    )  # fmt: skip
    with dspy.context(lm=lm), quietly():
        combee.compile(rows.program(), trainset=list(rows.train.examples), valset=list(rows.validation.examples))


def _kept(folder: Path) -> int:
    try:
        with Reader(journal_file(folder)) as reader:
            return int(reader.rows("SELECT count(*) FROM effect")[0][0])
    except (CombeeError, sqlite3.Error):
        return 0  # not made yet


def _ended(folder: Path) -> dict[str, Any]:
    with Reader(journal_file(folder)) as reader:
        state, result = tuple(reader.rows("SELECT state, result FROM run")[0])
        if state != "finished":
            raise ServiceError(f"the run in {folder} ended as {state!r}")
        effects = sorted(row["key"] for row in reader.rows("SELECT key FROM effect"))
        books = tuple(reader.rows("SELECT sum(calls), sum(prompt_tokens), sum(completion_tokens) FROM usage")[0])
    return {"best": json.loads(result)["best"], "effects": effects, "books": books}


def line(options: KillsOptions, row: KillsRow) -> str:
    """Return one run in a line."""
    return f"{row.keep}: {row.kills} kills, the same program: {row.same_program}"


def passed(options: KillsOptions, rows: Sequence[KillsRow]) -> bool:
    """Return whether every run ended as the one that was left alone, and bought again no more than was in flight."""
    return all(
        one.same_program and one.same_effects and one.same_books and one.answered - one.calls <= one.in_flight
        for one in rows
    )


def table(options: KillsOptions, rows: Sequence[KillsRow]) -> Table:
    """Return the runs as a table."""
    heads = ("<keep", "kills", "same program", "same effects", "same books", "calls in the books", "answered", "lost")
    cells = [(one.keep, str(one.kills), *_cells(one)) for one in rows]
    notes = ("lost: answered calls that were in flight at a kill and reached nobody; they were bought again.",)
    return by_rows(f"Killed and resumed ({LABEL})", heads, cells, notes)


def _cells(row: KillsRow) -> list[str]:
    same = ["yes" if one else "NO" for one in (row.same_program, row.same_effects, row.same_books)]
    return [*same, f"{row.calls:,}", f"{row.answered:,}", f"{row.answered - row.calls:,}"]
