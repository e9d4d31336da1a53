"""What a process holds after many rollouts and many compiles: memory, handles, threads, and the
journal on disk.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import dspy
from rich.table import Table

from combee_bench.options import SoakOptions
from combee_bench.surroundings import LABEL, load_rows, own_module, quietly
from combee_bench.tables import by_rows
from combee_dspy import Budget, Combee, Search, Validation
from combee_dspy.exceptions import ServiceError
from combee_simulator import FailureRates, SimulatedConfig, SimulatedService, benchmark_task

__all__ = ["SoakRow", "line", "passed", "run", "table"]

_SAMPLES = 10
_SOURCE: tuple[str, dict[str, Any]] = ("formula-mini", {"task": "compute"})
_SIZES = {"train": 240, "validation": 60, "heldout": 1}


@dataclass(frozen=True, slots=True)
class SoakRow:
    """What the process held at one moment.

    Attributes:
        part: ``"one run"``, or ``"compiles"`` in one process, one after another.
        done: Rollouts of the run, or compiles.
        mib: Resident memory.
        handles: Open file handles.
        threads: Threads.
        journal_mib: The journal on disk, with SQLite's log; of compiles that of the last.
    """

    part: str
    done: int
    mib: float
    handles: int
    threads: int
    journal_mib: float


def run(options: SoakOptions) -> Iterator[SoakRow]:
    """Soak a fresh process, asked by nobody else.

    Raises:
        ServiceError: It failed.
    """
    rows = load_rows(_SOURCE[0], _SOURCE[1], **_SIZES)
    rate = options.faults / 4
    config = SimulatedConfig(
        seed=options.seed,
        slots=options.workers,
        time_scale=0.0005,
        failures=FailureRates(server_error=rate, rate_limited=rate, malformed=rate, truncated=rate),
    )
    with SimulatedService(config, benchmark_task(rows, options.seed, params=_SOURCE[1])) as service:
        given = json.dumps({**asdict(options), "api_base": service.api_base})
        process = subprocess.Popen(
            **own_module("combee_bench.soak", given), stdout=subprocess.PIPE, text=True
        )
        if process.stdout is None:
            raise RuntimeError("it was asked for a pipe")
        for said in process.stdout:
            yield SoakRow(**json.loads(said))
        if process.wait():
            raise ServiceError(f"the process that was soaked ended with {process.returncode}")


def _soaked(given: dict[str, Any]) -> None:
    """Do all of it; what the started process runs."""
    with tempfile.TemporaryDirectory() as folder:
        _one_run(given, Path(folder, "one"))
        for number in range(1, given["compiles"] + 1):
            place = Path(folder, str(number))
            _compile(given, place, 2 * _SIZES["validation"] + 80)
            gc.collect()
            _say("compiles", number, place)


def _one_run(given: dict[str, Any], place: Path) -> None:
    over = threading.Event()

    def watch() -> None:
        from combee_dspy.journal import Reader, journal_file

        told = 0
        while not over.wait(0.5):
            if not (place / "journal.sqlite").exists():
                continue
            with Reader(journal_file(place)) as reader:
                done = reader.rows("SELECT count(*) FROM effect WHERE kind = 'rollout'")[0][0]
            if done >= (told + 1) * given["rollouts"] / _SAMPLES:
                told = int(done * _SAMPLES / given["rollouts"])
                _say("one run", done, place)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        _compile(given, place, given["rollouts"])
    finally:
        over.set()
        thread.join()


def _compile(given: dict[str, Any], place: Path, rollouts: int) -> None:
    rows = load_rows(_SOURCE[0], _SOURCE[1], **_SIZES)
    lm = dspy.LM(
        "openai/simulated",
        api_base=given["api_base"],
        api_key="simulated",
        cache=False,
        temperature=0.0,
    )
    combee = Combee(
        rows.metric,
        reflection_lm=lm,
        budget=Budget(rollouts=rollouts),
        reflection_minibatch_size=40,
        tracker=(),
        num_threads=given["workers"],
        seed=given["seed"],
        log_dir=place,
        validation=Validation(probe=False),
        search=Search(keep="trunk", staleness=1),
        cache=False,
        skip_perfect_score=False,
    )
    with dspy.context(lm=lm), quietly():
        combee.compile(
            rows.program(),
            trainset=list(rows.train.examples),
            valset=list(rows.validation.examples),
        )


def _say(part: str, done: int, place: Path) -> None:
    status = dict(one.split(":", 1) for one in Path("/proc/self/status").read_text().splitlines())
    journal = sum(
        one.stat().st_size for one in place.glob("journal.sqlite*") if one.suffix != ".reserve"
    )
    row = SoakRow(
        part,
        done,
        round(int(status["VmRSS"].split()[0]) / 1024, 1),
        len(list(Path("/proc/self/fd").iterdir())),
        threading.active_count(),
        round(journal / 2**20, 2),
    )
    sys.__stdout__.write(f"{json.dumps(asdict(row))}\n")  # type: ignore[union-attr]  # a pipe
    sys.__stdout__.flush()  # type: ignore[union-attr]


def line(options: SoakOptions, row: SoakRow) -> str:
    """Return one moment in a line."""
    return f"{row.part}, {row.done}: {row.mib} MiB, {row.handles} handles, {row.threads} threads"


def passed(options: SoakOptions, rows: Sequence[SoakRow]) -> bool:
    """Return whether compiles leave no handles and no threads behind: the last as many as the
    second.
    """
    compiles = [row for row in rows if row.part == "compiles"]
    return len(compiles) < 2 or all(
        getattr(compiles[-1], what) <= getattr(compiles[1], what) for what in ("handles", "threads")
    )


def table(options: SoakOptions, rows: Sequence[SoakRow]) -> Table:
    """Return the moments as a table."""
    heads = ("<part", "done", "memory, MiB", "handles", "threads", "journal, MiB")
    cells = [
        (
            row.part,
            f"{row.done:,}",
            f"{row.mib:,.1f}",
            str(row.handles),
            str(row.threads),
            f"{row.journal_mib:,.2f}",
        )
        for row in rows
        if row.part == "one run" or row.done in (1, 2) or row.done % 5 == 0 or row is rows[-1]
    ]
    notes = (
        (
            f"{options.faults:.0%} of the attempts fail: HTTP 500, 429, no field that was asked"
            " for, half an answer."
        ),
    )
    return by_rows(f"Soaked ({LABEL})", heads, cells, notes)


if __name__ == "__main__":
    _soaked(json.loads(sys.argv[1]))
