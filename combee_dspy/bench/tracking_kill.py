"""Whether a record is exact after its writer was killed and its server was gone."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy

from combee_dspy.events import IterationFinished, IterationStarted, RolloutFinished, RunFinished, RunStarted
from combee_dspy.exceptions import ServiceError
from combee_dspy.records import Rollout
from combee_dspy.streams import derive
from combee_dspy.tracking import EventBus, Journal, MLflowTracker, entries_of, replay
from combee_dspy.tracking._store import client_of

__all__ = ["Server", "Struck", "strike"]

_BATCH = 20
_START_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Struck:
    """What became of one run whose writer was killed.

    Attributes:
        killed_after: Seconds of writing.
        server_gone: Seconds for which the server did not answer.
        shipped: Rollouts that MLflow had then.
        journal: Rollouts that the journal holds.
        table: Rollouts in MLflow after the replay.
        repeated: Rollouts that are there more than once.
        missing: Rollouts of the journal that are not there.
        doubled: Pairs of metric and step with two values.
    """

    killed_after: float
    server_gone: float
    shipped: int
    journal: int
    table: int
    repeated: int
    missing: int
    doubled: int

    @property
    def exact(self) -> bool:
        """Whether every rollout of the journal is in MLflow once, and no metric has two values at one step."""
        return self.journal == self.table and not (self.repeated or self.missing or self.doubled)


class Server:
    """An MLflow server of its own on the loopback interface, with a store in a temporary folder.

    Example:
        >>> with Server() as server:  # doctest: +SKIP
        ...     server.stop()
    """

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="combee-mlflow-")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{port}"
        store = f"sqlite:///{self._folder}/mlflow.db"
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--workers", "1", "--backend-store-uri", store, "--artifacts-destination", self._folder]
        # Its runner of background jobs takes minutes to start on a busy machine, and is not needed.
        own = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        environment = {**os.environ, **own}
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, env=environment
        )

    def __enter__(self) -> Server:
        until = time.monotonic() + _START_SECONDS
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while time.monotonic() < until:
            with contextlib.suppress(OSError), direct.open(f"{self.uri}/health", timeout=5):
                return self
            time.sleep(0.5)
        self.__exit__()
        raise ServiceError(f"the MLflow server did not answer within {_START_SECONDS:g} s")

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def stop(self) -> None:
        """Let it answer nothing more. What it is asked now may take effect when it goes on: the worst case."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it answer again."""
        os.killpg(self._process.pid, signal.SIGCONT)


def strike(times: int, folder: Path, server: Server, *, gone: float = 60.0, seed: int = 0) -> Iterator[Struck]:
    """Stop the server and kill a writing process at random moments; replay once the server is back, and count.

    Every process that talks to MLflow is forked from this one, which does not:
    nothing is shared between them but the server and the journal.

    Args:
        times: How often.
        folder: Where the journals lie.
        server: The server.
        gone: Seconds for which the server does not answer.
        seed: Seed of the moments.
    """
    # MLflow is imported before the forks, so that each does not pay for it.
    client_of(server.uri)
    for number in range(times):
        stream = derive(seed, "strike", number)
        yield _one(folder / f"run-{number:02d}", server, gone, stream)


def _one(folder: Path, server: Server, gone: float, stream: random.Random) -> Struck:
    writer, started = _fork(lambda: _write(folder, server.uri))
    _read(started)
    stopped_after, killed_after = stream.uniform(0.2, 4.0), stream.uniform(0.2, 6.0)
    begun = time.monotonic()
    stops = sorted([(stopped_after, server.stop), (killed_after, lambda: os.kill(writer, signal.SIGKILL))], key=_first)
    for moment, act in stops:
        time.sleep(max(0.0, moment - (time.monotonic() - begun)))
        act()
    os.waitpid(writer, 0)
    time.sleep(max(0.0, gone - max(0.0, killed_after - stopped_after)))
    server.go_on()
    facts = _call(lambda: _count(folder))
    shipped = int(facts["table"])
    _call(lambda: _replayed(folder))
    facts = _call(lambda: _count(folder))
    return Struck(killed_after, gone, shipped, **facts)


def _first(pair: tuple[float, Callable[[], None]]) -> float:
    return pair[0]


def _replayed(folder: Path) -> dict[str, int]:
    done = replay(folder)
    return {"rollouts": done.rollouts}


def _write(folder: Path, uri: str) -> dict[str, int]:
    """Tell of rollouts until somebody kills this process."""
    journal = Journal(folder)
    tracker = MLflowTracker("struck", uri, registry=False, traces=0, every=0.0)
    bus = EventBus([tracker.open(journal)], journal=journal)
    _say({"on": 1})
    texts = {"self": "Answer."}
    bus.emit(
        RunStarted(name="struck", seed=0, sizes={}, digests={}, specs={}, models={"task": "none"}, components=texts)
    )
    example = dspy.Example(question="?", answer="!").with_inputs("question")
    for serial in range(1_000_000):
        iteration = serial // _BATCH + 1
        if serial % _BATCH == 0:
            bus.emit(IterationStarted(iteration=iteration))
        rollout = Rollout(f"{serial % 50:064x}", example, dspy.Prediction(answer="!"), (), serial % 2, seconds=0.1)
        bus.emit(
            RolloutFinished(
                iteration=iteration,
                rollout=rollout,
                rollout_id=f"{serial:08d}",
                candidate_id=f"{iteration:016x}",
                split="train",
                purpose="parent",
            )
        )
        if serial % _BATCH == _BATCH - 1:
            bus.emit(
                IterationFinished(
                    iteration=iteration, accepted=False, rollouts=serial + 1, best_score=serial % 7, seconds=1.0
                )
            )
        time.sleep(0.01)
    bus.emit(RunFinished(reason="", best_index=0, best_score=0.0, texts=texts, rollouts=0, seconds=0.0))
    return {}


def _count(folder: Path) -> dict[str, int]:
    from pyarrow import parquet

    known = json.loads((folder / "mlflow.json").read_text(encoding="utf-8"))
    client, run_id = client_of(known["uri"]), known["run_id"]
    ids: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        for part in client.list_artifacts(run_id, "rollouts"):
            file = client.download_artifacts(run_id, part.path, temporary)
            ids += parquet.read_table(file, columns=["rollout_id"])["rollout_id"].to_pylist()
    journal = {entry.data["rollout_id"] for entry in entries_of(folder) if entry.kind == "rollout"}
    points: Counter[tuple[str, int]] = Counter()
    for name in client.get_run(run_id).data.metrics:
        points.update((name, point.step) for point in client.get_metric_history(run_id, name))
    return {
        "journal": len(journal),
        "table": len(set(ids)),
        "repeated": len(ids) - len(set(ids)),
        "missing": len(journal - set(ids)),
        "doubled": sum(count > 1 for count in points.values()),
    }


_OUT: list[int] = []


def _say(data: dict[str, int]) -> None:
    os.write(_OUT[-1], json.dumps(data).encode() + b"\n")


def _fork(work: Callable[[], dict[str, int]]) -> tuple[int, int]:
    """Start work in a forked process; return its id and where to read what it says."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        return child, reader
    try:
        os.close(reader)
        _OUT.append(writer)
        _say(work())
    except Exception as error:  # noqa: BLE001 - said on standard error; the parent reads nothing, and says so
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    finally:
        # Never back into the parent's code, and none of what it would do at its own end.
        os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a process outlived its SIGKILL")


def _read(reader: int) -> dict[str, int]:
    with os.fdopen(reader) as stream:
        line = stream.readline()
    if not line:
        raise ServiceError("a forked process ended before it said anything")
    found: dict[str, int] = json.loads(line)
    return found


def _call(work: Callable[[], dict[str, int]]) -> dict[str, Any]:
    child, reader = _fork(work)
    found = _read(reader)
    os.waitpid(child, 0)
    return found
