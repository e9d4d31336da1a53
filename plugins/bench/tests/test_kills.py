"""A run that is killed again and again ends as one that never was."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_bench.surroundings import load_rows, quietly
from combee_dspy import (
    Budget,
    Combee,
    Search,
    Task,
    Validation,
    compile_many,
    learn_lessons,
)
from combee_dspy.artifacts import OnlinePlaybook, read_text
from combee_dspy.journal import Reader, journal_file
from combee_dspy.streams import derive
from combee_dspy.traces import Trace
from combee_simulator import SimulatedConfig, SimulatedService, benchmark_task
from plugins.bench.tests.killing import EVERY, Processes
from plugins.bench.tests.sizes import show, size

SEED = 0
RUNS: dict[str, dict[str, Any]] = {
    "pareto": {"search": Search(keep="pareto", staleness=1)},
    "trunk": {"search": Search(keep="trunk", staleness=1)},
    "playbook": {"artifact": "playbook", "search": Search(staleness=1)},
    # Recorded rollouts are read, and none is run.
    "traces": {},
    # Three tasks in one journal.
    "many": {"search": Search(keep="pareto", staleness=1)},
    # Killed after a call of a scan, in a commit, and while MLflow hears of it; others anywhere.
    "scan": {"search": Search(keep="trunk", staleness=1), "aggregator": "parallel-scan"},
    "commit": {"search": Search(keep="pareto", staleness=1)},
    "mlflow": {"search": Search(keep="trunk", staleness=1), "tracker": "mlflow"},
}


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with Processes(compile_once) as processes:
        yield processes


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_is_killed_ends_as_one_that_is_not(
    name: str, processes: Processes, tmp_path: Path
) -> None:
    train, validation, workers = size("examples", 16), size("validation", 4), size("workers", 4)
    source = ("formula-mini", {"task": "compute"})
    rows = load_rows(*source, train=train, validation=validation, heldout=1)
    task = benchmark_task(rows, SEED, params=source[1], base_rate=0.0)
    with SimulatedService(
        SimulatedConfig(seed=SEED, slots=workers, time_scale=0.02), task
    ) as service:
        arguments: dict[str, Any] = {
            "folder": str(tmp_path / "whole"),
            "api_base": service.api_base,
            "run": name,
            "source": source,
            "workers": workers,
            "sizes": [train, validation],
        }
        assert processes.start(arguments).wait() == 0
        whole = read_run(tmp_path / "whole")
        service.reset_stats()
        arguments["folder"] = str(tmp_path / "killed")
        stream = derive(SEED, "kills", name)
        kills = kill(processes, arguments, whole["counts"], size("kills", 1), stream)
        killed = read_run(tmp_path / "killed")
        answered = service.stats().calls
    bought = killed["books"][0]
    show({"run": name, "kills": kills, "calls": bought, "answered": answered})
    for facts in (whole, killed):
        assert set(facts["states"].values()) == {"finished"}
    # The number of files depends on when a run was killed.
    for facts in (whole, killed):
        facts["mlflow"].pop("files", None)
    for fact in ("results", "effects", "books", "mlflow"):
        assert killed[fact] == whole[fact], fact
    if name == "mlflow":
        assert killed["mlflow"]["rows"] == killed["rollouts"]
    if name in ("scan", "commit", "mlflow"):
        assert kills
    # As many as there are workers may be on the way, and as many answered and not on disk yet.
    assert answered - bought <= 2 * kills * workers


@pytest.mark.slow
def test_a_playbook_that_is_served_outlives_its_servers(
    processes: Processes, tmp_path: Path
) -> None:
    """Whatever moment a server is killed in, the next one goes on with a whole playbook."""
    examples, workers, kills = size("examples", 16), size("workers", 4), size("kills", 1)
    source = ("formula-mini", {"task": "compute"})
    rows = load_rows(*source, train=examples, validation=4, heldout=1)
    task = benchmark_task(rows, SEED, params=source[1], base_rate=0.0)
    config = SimulatedConfig(seed=SEED, slots=workers, time_scale=0.02)
    stream, books, died = derive(SEED, "kills", "online"), [], 0
    with SimulatedService(config, task) as service:
        for name, times in (("whole", 0), ("killed", kills)):
            folder = tmp_path / name
            folder.mkdir()
            arguments: dict[str, Any] = {
                "folder": str(folder),
                "api_base": service.api_base,
                "run": "online",
                "source": source,
                "workers": workers,
                "sizes": [examples, 4],
            }
            for _ in range(times):
                before, process = served(folder), processes.start(arguments)
                while process.poll() is None and served(folder) == before:
                    time.sleep(EVERY)
                time.sleep(stream.uniform(0.0, 0.2))
                died += process.kill()
            assert processes.start(arguments).wait() == 0
            text = (folder / "playbook.txt").read_text(encoding="utf-8")
            books.append({bullet.content for bullet in read_text(text).bullets})
    show({"run": "online", "kills": died, "bullets": len(books[1])})
    assert books[0]
    assert books[1] == books[0]


def served(folder: Path) -> int:
    """Return how many batches were learned from."""
    done = folder / "done"
    return len(done.read_text(encoding="utf-8").splitlines()) if done.exists() else 0


def serve(rows: Any, lm: dspy.LM, arguments: dict[str, Any]) -> None:
    """Answer and learn, batch after batch, from where the last server was."""
    folder = Path(arguments["folder"])
    online = OnlinePlaybook(
        rows.program(),
        rows.metric,
        reflection_lm=lm,
        num_threads=arguments["workers"],
        path=folder / "playbook.txt",
    )
    batches = [rows.train.examples[at : at + 4] for at in range(0, len(rows.train.examples), 4)]
    for batch in batches[served(folder) :]:
        online.predict(batch)
        online.learn()
        with (folder / "done").open("a", encoding="utf-8") as done:
            done.write("a batch\n")


def kill(
    processes: Processes,
    arguments: dict[str, Any],
    counts: dict[str, int],
    kills: int,
    stream: random.Random,
) -> int:
    """Run to the end, killed so often on the way; return how often it was."""
    died, most = 0, counts.get(arguments["run"], 0)
    for at in sorted(stream.sample(range(1, counts["effects"] - arguments["workers"]), kills)):
        # In each part a few of what it dies at, so that every part comes to it.
        inside = {"dies_at": stream.randint(1, max(1, most // (kills + 1)))} if most else {}
        died += processes.kill_at(arguments | inside, None if most else at)
    assert processes.start(arguments).wait() == 0
    return died


def compile_once(arguments: dict[str, Any]) -> None:
    """Compile in a process of its own."""
    train, validation = arguments["sizes"]
    if "dies_at" in arguments:
        die(arguments["run"], arguments["dies_at"])
    rows = load_rows(*arguments["source"], train=train, validation=validation, heldout=1)
    lm = dspy.LM(
        "openai/simulated",
        api_base=arguments["api_base"],
        api_key="simulated",
        cache=False,
        temperature=0.0,
    )
    if arguments["run"] == "traces":
        traces = [as_trace(rows.metric, example) for example in rows.train.examples]
        with quietly():
            learn_lessons(
                traces,
                reflection_lm=lm,
                num_threads=arguments["workers"],
                log_dir=arguments["folder"],
            )
        return
    if arguments["run"] == "online":
        with dspy.context(lm=lm), quietly():
            serve(rows, lm, arguments)
        return
    settings = {"tracker": (), **RUNS[arguments["run"]]}
    if settings["tracker"]:
        from combee_dspy.tracking import MLflowTracker, _base

        # A machine with other work makes MLflow's store for longer than a run waits for it.
        _base._LONGEST = 300.0
        settings["tracker"] = MLflowTracker(
            tracking_uri=f"sqlite:///{store_file(Path(arguments['folder']))}"
        )
    combee = Combee(
        rows.metric,
        reflection_lm=lm,
        budget=Budget(epochs=1),
        reflection_minibatch_size=-(-train // 4),
        num_threads=arguments["workers"],
        seed=SEED,
        log_dir=arguments["folder"],
        validation=Validation(probe=False),
        **settings,
    )
    examples, checked = list(rows.train.examples), list(rows.validation.examples)
    with dspy.context(lm=lm), quietly():
        if arguments["run"] == "many":
            tasks = [
                Task(f"part {part}", rows.program(), examples[part::3], checked)
                for part in range(3)
            ]
            compile_many(tasks, combee=combee)
        else:
            combee.compile(rows.program(), trainset=examples, valset=checked)


def as_trace(metric: Callable[..., Any], example: dspy.Example) -> Trace:
    """Return the record of a wrong answer."""
    answer = {"answer": "0"}
    verdict = metric(example, dspy.Prediction(**answer), None, None, None)
    name = str(example.question)
    return Trace(name, {"question": name}, answer, score=0.0, feedback=verdict.feedback)


def die(where: str, times: int) -> None:
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
            list(statements) if where != "commit" else Armed(statements, [dies] * len(rows)),
        )
        for row in rows:
            if where == "scan" and row[2] == "call":
                dies()

    def log(self: Any, *values: Any, **options: Any) -> None:
        if left[0] % 2:
            dies()
        log_batch(self, *values, **options)
        dies()

    if where == "mlflow":
        import mlflow

        log_batch = mlflow.MlflowClient.log_batch
        mlflow.MlflowClient.log_batch = log  # the point of it
    else:
        transact = _writer.Writer._transact
        _writer.Writer._transact = written  # type: ignore[method-assign]  # the point of it


class Armed(list[Any]):
    """Statements that spring traps when all are done and nothing is committed."""

    def __init__(self, statements: Any, traps: Sequence[Callable[[], None]]) -> None:
        super().__init__(statements)
        self._traps = traps

    def __iter__(self) -> Iterator[Any]:
        yield from super().__iter__()
        for trap in self._traps:
            trap()


def read_run(folder: Path) -> dict[str, Any]:
    """Return what a run came to, of its journal and of MLflow's store."""
    with Reader(journal_file(folder), checked=True) as reader:
        runs = reader.rows("SELECT name, state, result FROM run ORDER BY name")
        effects = sorted(
            tuple(row)
            for row in reader.rows("SELECT r.name, key FROM effect JOIN run r ON r.id = run")
        )
        sums = "SELECT sum(calls), sum(prompt_tokens), sum(completion_tokens) FROM usage"
        books = tuple(reader.rows(sums)[0])
        kinds = dict(map(tuple, reader.rows("SELECT kind, count(*) FROM effect GROUP BY kind")))
    mlflow = read_mlflow(folder) if store_file(folder).exists() else {}
    return {
        "states": {name: state for name, state, _ in runs},
        "results": {
            name: {**json.loads(result or "{}"), "seconds": None} for name, _, result in runs
        },
        "effects": effects,
        "books": books,
        "mlflow": mlflow,
        "rollouts": kinds.get("rollout", 0),
        # How often a run comes to each place where it can die.
        "counts": {
            "effects": len(effects),
            "commit": len(effects),
            "scan": kinds["call"],
            "mlflow": 3 * mlflow.get("files", 0),
        },
    }


def store_file(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-mlflow.db")


def read_mlflow(folder: Path) -> dict[str, Any]:
    """Return how many rollouts MLflow has, each another, and the steps of each metric."""
    import mlflow
    import pyarrow.parquet

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{store_file(folder)}")
    experiment = client.get_experiment_by_name("combee_dspy")
    (run,) = client.search_runs([experiment.experiment_id])
    files = [file.path for file in client.list_artifacts(run.info.run_id, "rollouts")]
    ids = [
        row["id"]
        for file in files
        for row in pyarrow.parquet.read_table(
            client.download_artifacts(run.info.run_id, file)
        ).to_pylist()
    ]
    assert len(ids) == len(set(ids))
    steps = {
        name: [point.step for point in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }
    status = run.info.status
    return {"rows": len(ids), "files": len(files), "steps": steps, "status": status}
