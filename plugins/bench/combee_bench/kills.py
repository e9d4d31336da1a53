"""Does a run that is killed again and again end as one that never was, and what did the kills
cost?
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy
from rich.table import Table

from combee_bench.options import KillsOptions
from combee_bench.surroundings import LABEL, load_rows, quietly
from combee_bench.tables import by_rows
from combee_dspy import Budget, Combee, Search, Task, Validation, compile_many
from combee_dspy.exceptions import CombeeError, ServiceError
from combee_dspy.journal import Reader, journal_file
from combee_dspy.streams import derive
from combee_simulator import SimulatedConfig, SimulatedService, benchmark_task

__all__ = ["KillsRow", "child", "line", "passed", "run", "table"]

_EVERY = 0.002

_RUNS: dict[str, dict[str, Any]] = {
    "pareto": {"search": Search(keep="pareto", staleness=1)},
    "trunk": {"search": Search(keep="trunk", staleness=1)},
    "scan": {"search": Search(keep="trunk", staleness=1), "aggregator": "parallel-scan"},
    "commit": {"search": Search(keep="pareto", staleness=1)},
    "mlflow": {"search": Search(keep="trunk", staleness=1), "tracker": "mlflow"},
    "playbook": {"artifact": "playbook", "search": Search(staleness=1)},
    "many": {"search": Search(keep="pareto", staleness=1)},
}
_WHERE = {
    "scan": "after a call of a scan",
    "commit": "in a commit",
    "mlflow": "while MLflow is told",
}


@dataclass(frozen=True, slots=True)
class KillsRow:
    """One run that was killed, beside the same run left alone.

    Attributes:
        run: What it was.
        where: Where it was killed (SIGKILL).
        kills: How often.
        same_program: Whether it ended with the same texts, scores and reason.
        same_effects: Whether its journal holds the same effects, each once.
        same_books: Whether its books say the same calls and tokens.
        same_mlflow: Whether MLflow has each rollout and each metric once; ``None`` where it was not
            told.
        calls: Calls that the books name.
        answered: Calls that the service answered; those in flight at a kill reached nobody.
        in_flight: Calls that may be on the way at a kill at most, over all kills: as many as there
            are workers at the service, and as many that it has answered just now and that are not
            on disk yet.
    """

    run: str
    where: str
    kills: int
    same_program: bool
    same_effects: bool
    same_books: bool
    same_mlflow: bool | None
    calls: int
    answered: int
    in_flight: int


def run(options: KillsOptions) -> Iterator[KillsRow]:
    """Kill runs of each kind at moments drawn by the seed, and compare each with one that was left
    alone.
    """
    source = (
        ("formula-mini", {"task": "compute"})
        if options.path is None
        else ("formula", {"path": str(options.path.absolute())})
    )
    rows = load_rows(*source, train=options.examples, validation=options.validation, heldout=1)
    task = benchmark_task(rows, options.seed, params=source[1], base_rate=0.0)
    config = SimulatedConfig(
        seed=options.seed, slots=options.workers, time_scale=options.time_scale
    )
    with SimulatedService(config, task) as service, tempfile.TemporaryDirectory() as folder:
        for name in options.runs:
            arguments: dict[str, Any] = {
                "folder": f"{folder}/{name}-whole",
                "api_base": service.api_base,
                "run": name,
                "source": source,
                "workers": options.workers,
                "seed": options.seed,
                "sizes": [options.examples, options.validation],
            }
            _started(arguments).wait()
            whole = _ended(Path(arguments["folder"]))
            service.reset_stats()
            arguments["folder"] = f"{folder}/{name}"
            kills = _killed(
                arguments, whole["counts"], options.kills, derive(options.seed, "kills", name)
            )
            again = _ended(Path(arguments["folder"]))
            program, effects, books = (
                again[what] == whole[what] for what in ("results", "effects", "books")
            )
            told = again["told"] == whole["told"] and again["told"]["rows"] == again["rollouts"]
            yield KillsRow(
                name,
                _WHERE.get(name, "anywhere"),
                kills,
                program,
                effects,
                books,
                told if name == "mlflow" else None,
                again["books"][0],
                service.stats().calls,
                2 * kills * options.workers,
            )


def _killed(
    arguments: dict[str, Any], counts: dict[str, int], kills: int, stream: random.Random
) -> int:
    """Run to the end, killed so often on the way; return how often it was."""
    folder, died = Path(arguments["folder"]), 0
    most = counts.get(arguments["run"], 0)
    for at in sorted(stream.sample(range(1, counts["effects"] - arguments["workers"]), kills)):
        # In each part a few of what it dies at, so that every part comes to it.
        inside = {"dies_at": stream.randint(1, max(1, most // (kills + 1)))} if most else {}
        process = _started(arguments | inside)
        while process.poll() is None and (most or _kept(folder) < at):
            time.sleep(_EVERY)
        process.send_signal(signal.SIGKILL)
        died += process.wait() == -signal.SIGKILL
    _started(arguments).wait()
    return died


def _started(arguments: dict[str, Any]) -> subprocess.Popen[bytes]:
    code = "import sys; from combee_bench.kills import child; child(sys.argv[1])"
    # MLflow puts what it is given below the folder that it finds itself in.
    place = Path(arguments["folder"]).parent
    return subprocess.Popen([sys.executable, "-c", code, json.dumps(arguments)], cwd=place)  # noqa: S603 - our own code


def child(arguments: str) -> None:
    """Compile once; what the started process runs.

    Args:
        arguments: JSON of what :func:`run` decided.
    """
    given = json.loads(arguments)
    train, validation = given["sizes"]
    if "dies_at" in given:
        _die(given["run"], given["dies_at"])
    rows = load_rows(*given["source"], train=train, validation=validation, heldout=1)
    lm = dspy.LM(
        "openai/simulated",
        api_base=given["api_base"],
        api_key="simulated",
        cache=False,
        temperature=0.0,
    )
    settings = {"tracker": (), **_RUNS[given["run"]]}
    if settings["tracker"]:
        from combee_dspy.tracking import MLflowTracker

        settings["tracker"] = MLflowTracker(tracking_uri=_store(Path(given["folder"])))
    combee = Combee(
        rows.metric,
        reflection_lm=lm,
        budget=Budget(epochs=1),
        reflection_minibatch_size=-(-train // 4),
        num_threads=given["workers"],
        seed=given["seed"],
        log_dir=given["folder"],
        validation=Validation(probe=False),
        **settings,
    )
    examples, checked = list(rows.train.examples), list(rows.validation.examples)
    with dspy.context(lm=lm), quietly():
        if given["run"] == "many":
            tasks = [
                Task(f"part {part}", rows.program(), examples[part::3], checked)
                for part in range(3)
            ]
            compile_many(tasks, combee=combee)
        else:
            combee.compile(rows.program(), trainset=examples, valset=checked)


def _die(where: str, times: int) -> None:
    """Have this process die, as if it was killed, where it comes to a place for so many times."""
    from combee_dspy.journal import _writer

    left = [times]

    def dies() -> None:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    def written(self: Any, connection: Any, statements: Any) -> None:
        rows = [row for sql, row in statements if "INTO effect" in sql]
        transact(
            self,
            connection,
            list(statements) if where != "commit" else _Armed(statements, [dies] * len(rows)),
        )
        for row in rows:
            if where == "scan" and row[2] == "call":
                dies()

    def told(self: Any, *given: Any, **more: Any) -> None:
        if left[0] % 2:
            dies()
        log_batch(self, *given, **more)
        dies()

    if where == "mlflow":
        import mlflow

        log_batch = mlflow.MlflowClient.log_batch
        mlflow.MlflowClient.log_batch = told  # the point of it
    else:
        transact = _writer.Writer._transact
        _writer.Writer._transact = written  # type: ignore[method-assign]  # the point of it


class _Armed(list[Any]):
    """Statements that spring traps when all are done and nothing is committed."""

    def __init__(self, statements: Any, traps: Sequence[Callable[[], None]]) -> None:
        super().__init__(statements)
        self._traps = traps

    def __iter__(self) -> Iterator[Any]:
        yield from super().__iter__()
        for trap in self._traps:
            trap()


def _kept(folder: Path) -> int:
    try:
        with Reader(journal_file(folder)) as reader:
            return int(reader.rows("SELECT count(*) FROM effect")[0][0])
    except (CombeeError, sqlite3.Error):
        return 0  # not made yet


def _store(folder: Path) -> str:
    return f"sqlite:///{folder.parent}/{folder.name}-mlflow.db"


def _ended(folder: Path) -> dict[str, Any]:
    with Reader(journal_file(folder), checked=True) as reader:
        results = {}
        for name, state, result in reader.rows("SELECT name, state, result FROM run ORDER BY name"):
            if state != "finished":
                raise ServiceError(f"the run {name!r} in {folder} ended as {state!r}")
            results[name] = {**json.loads(result), "seconds": None}
        effects = sorted(
            tuple(row)
            for row in reader.rows("SELECT r.name, key FROM effect JOIN run r ON r.id = run")
        )
        books = tuple(
            reader.rows("SELECT sum(calls), sum(prompt_tokens), sum(completion_tokens) FROM usage")[
                0
            ]
        )
        kinds = dict(map(tuple, reader.rows("SELECT kind, count(*) FROM effect GROUP BY kind")))
    told = (
        _told(folder)
        if folder.with_name(f"{folder.name}-mlflow.db").exists()
        else {"rows": 0, "points": 0}
    )
    counts = {
        "effects": len(effects),
        "commit": len(effects),
        "scan": kinds["call"],
        "mlflow": told["points"],
    }
    told.pop("points")
    return {
        "results": results,
        "effects": effects,
        "books": books,
        "counts": counts,
        "told": told,
        "rollouts": kinds["rollout"],
    }


def _told(folder: Path) -> dict[str, Any]:
    """Return what MLflow has: how many rollouts, each of which must be another, and the steps of
    each metric.
    """
    import mlflow
    import pyarrow.parquet

    client = mlflow.MlflowClient(tracking_uri=_store(folder))
    experiment = client.get_experiment_by_name("combee_dspy")
    (found,) = client.search_runs([experiment.experiment_id])
    files = [one.path for one in client.list_artifacts(found.info.run_id, "rollouts")]
    tables = [
        pyarrow.parquet.read_table(client.download_artifacts(found.info.run_id, file))
        for file in files
    ]
    ids = [row["id"] for one in tables for row in one.to_pylist()]
    if len(ids) != len(set(ids)):
        raise ServiceError(f"MLflow has {len(ids)} rollouts for {len(set(ids))}")
    steps = {
        name: [point.step for point in client.get_metric_history(found.info.run_id, name)]
        for name in found.data.metrics
    }
    return {"rows": len(ids), "points": 3 * len(files), "steps": steps, "status": found.info.status}


def line(options: KillsOptions, row: KillsRow) -> str:
    """Return one run in a line."""
    return f"{row.run}: {row.kills} kills, the same program: {row.same_program}"


def passed(options: KillsOptions, rows: Sequence[KillsRow]) -> bool:
    """Return whether every run ended as the one that was left alone, and bought again no more than
    was on the way.
    """
    return all(
        one.same_program
        and one.same_effects
        and one.same_books
        and one.same_mlflow is not False
        and one.answered - one.calls <= one.in_flight
        for one in rows
    )


def table(options: KillsOptions, rows: Sequence[KillsRow]) -> Table:
    """Return the runs as a table."""
    heads = (
        "<run",
        "<killed",
        "kills",
        "same program",
        "same effects",
        "same books",
        "same in MLflow",
        "calls in the books",
        "answered",
        "lost",
    )
    cells = [(one.run, one.where, str(one.kills), *_cells(one)) for one in rows]
    notes = (
        (
            "lost: calls that the service answered and that were not on disk yet at a kill; they"
            " were bought again."
        ),
    )
    return by_rows(f"Killed and resumed ({LABEL})", heads, cells, notes)


def _cells(row: KillsRow) -> list[str]:
    every = (row.same_program, row.same_effects, row.same_books, row.same_mlflow)
    same = ["–" if one is None else "yes" if one else "NO" for one in every]
    return [*same, f"{row.calls:,}", f"{row.answered:,}", f"{row.answered - row.calls:,}"]
