"""One MLflow run: finding where it lives, and writing to it without ever hanging."""

from __future__ import annotations

import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.tracking._redact import Redactor

__all__ = ["Outbox", "Place", "connect"]

_logger = logging.getLogger(__name__)

# MLflow's own defaults block for minutes on a server that is down. Seconds, and tries after the first.
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
_JOINED = "combee.joined"
_PARENT = "mlflow.parentRunId"
_PAUSE = 30.0
_CHATTY = ("alembic", "mlflow.store.db.utils")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run is recorded.

    Attributes:
        client: An ``MlflowClient`` bound to the store, whatever MLflow's global state becomes.
        uri: The store, as MLflow names it.
        run_id: The run.
        experiment_id: Its experiment.
        joined: Whether it is a run that the user had started and will end.
        params: Parameters that were already there.
        described: Whether it already had a description.
    """

    client: Any
    uri: str
    run_id: str
    experiment_id: str
    joined: bool = False
    params: frozenset[str] = frozenset()
    described: bool = False


def connect(experiment: str, tracking_uri: str | None, run_name: str | None) -> Place:
    """Find or make the run, and prove that the store takes writes.

    The store is ``tracking_uri``; else the one the user has set for MLflow
    (``mlflow.set_tracking_uri`` or ``MLFLOW_TRACKING_URI``); else SQLite in
    ``combee_runs/mlflow.db`` under the working directory, with artifacts
    beside it. A run that is active in the calling thread is joined where no
    other store is asked for; if an earlier compile has joined it already, a
    run nested in it is made.

    Raises:
        ArgumentValueError: MLflow is not installed, or the store cannot be used.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import mlflow
        from mlflow.exceptions import MlflowException
    except ImportError as error:
        raise ArgumentValueError(
            "tracker",
            "mlflow",
            f"needs MLflow, which cannot be imported: {error}",
            "Install it with `pip install combee-dspy[mlflow]`, or pass tracker=None.",
        ) from error
    uri = tracking_uri
    try:
        with _quiet():
            active = mlflow.active_run()
            if active is not None and (uri is None or uri == mlflow.get_tracking_uri()):
                return _join(mlflow, active.info.run_id, run_name)
            artifacts = None
            if uri is None and mlflow.is_tracking_uri_set():
                uri = mlflow.get_tracking_uri()
            elif uri is None:
                uri, artifacts = _default_store()
            return _create(mlflow, uri, artifacts, experiment, run_name)
    except (MlflowException, OSError) as error:
        shown = Redactor().text(str(uri))
        raise ArgumentValueError(
            "tracking_uri",
            shown,
            f"cannot be written to: {Redactor().text(str(error))[:300]}",
            "Start the server or correct the address (MLFLOW_TRACKING_URI), or pass tracker=None. Nothing was spent.",
        ) from error


def _default_store() -> tuple[str, str]:
    folder = Path.cwd() / "combee_runs"
    folder.mkdir(exist_ok=True)
    return f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri()


def _join(mlflow: Any, run_id: str, run_name: str | None) -> Place:
    uri = mlflow.get_tracking_uri()
    client = mlflow.MlflowClient(tracking_uri=uri)
    run = client.get_run(run_id)
    experiment_id = run.info.experiment_id
    if _JOINED in run.data.tags:
        nested = client.create_run(experiment_id, run_name=run_name, tags={_PARENT: run_id})
        return Place(client, uri, nested.info.run_id, experiment_id)
    client.set_tag(run_id, _JOINED, "true")
    described = bool(run.data.tags.get("mlflow.note.content"))
    return Place(client, uri, run_id, experiment_id, True, frozenset(run.data.params), described)


def _create(mlflow: Any, uri: str, artifacts: str | None, experiment: str, run_name: str | None) -> Place:
    client = mlflow.MlflowClient(tracking_uri=uri)
    found = client.get_experiment_by_name(experiment)
    if found is None:
        try:
            client.create_experiment(experiment, artifact_location=artifacts)
        except mlflow.exceptions.MlflowException as error:
            # Another process may have been quicker; any other failure shows again below.
            _logger.debug("experiment not made: %s", error)
        found = client.get_experiment_by_name(experiment)
    if found is None or found.lifecycle_stage != "active":
        raise ArgumentValueError(
            "experiment", experiment, "is deleted in this MLflow store", "Restore it, or choose another name."
        )
    run = client.create_run(found.experiment_id, run_name=run_name)
    return Place(client, uri, run.info.run_id, found.experiment_id)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep a new database's migration log off the user's terminal, unless they set its level."""
    loggers = [logging.getLogger(name) for name in _CHATTY]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        if logger.level in (logging.NOTSET, logging.INFO):
            logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


class Outbox:
    """Writes that MLflow has not taken yet, in order.

    A write that fails stays and is tried again with the next flush, not
    sooner than 30 s later, so that a dead server costs little. A write
    that MLflow refuses for good is reported and left out. Not thread-safe.

    Args:
        place: The run.
        clock: Monotonic seconds.
    """

    def __init__(self, place: Place, clock: Callable[[], float] = time.monotonic) -> None:
        self.place = place
        self._clock = clock
        self._waiting: deque[Callable[[], object]] = deque()
        self._not_before = -float("inf")

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, write: Callable[[], object]) -> None:
        """Add a write. Doing it twice must be the same as doing it once."""
        self._waiting.append(write)

    def flush(self, *, last: bool = False) -> None:
        """Write what is waiting.

        Args:
            last: No flush follows: try even if the server failed a moment ago.
        """
        from mlflow.exceptions import MlflowException

        if not last and self._clock() < self._not_before:
            return
        while self._waiting:
            try:
                self._waiting[0]()
            except (MlflowException, OSError) as error:
                if not _for_good(error):
                    self._not_before = self._clock() + _PAUSE
                    _logger.warning("MLflow does not answer, %d writes wait: %s", len(self._waiting), _said(error))
                    return
                _logger.warning("MLflow refused a write, which is left out: %s", _said(error))
            self._waiting.popleft()

    def batch(self, *, metrics: Mapping[str, float] | None = None, step: int = 0, **tables: Mapping[str, str]) -> None:
        """Add metrics of one step, and ``params`` and ``tags``, in batches of the size MLflow takes."""
        from mlflow.entities import Metric, Param, RunTag

        # The time is taken once, so that a write which is tried again adds no second point.
        now = int(time.time() * 1000)
        points = [Metric(name, value, now, step) for name, value in (metrics or {}).items()]
        params = [Param(name, value) for name, value in tables.get("params", {}).items()]
        tags = [RunTag(name, value) for name, value in tables.get("tags", {}).items()]
        client, run_id = self.place.client, self.place.run_id
        for start in range(0, max(len(points), len(params), len(tags)), 100):
            part = slice(start, start + 100)
            self.add(partial(client.log_batch, run_id, metrics=points[part], params=params[part], tags=tags[part]))

    def text(self, text: str, path: str) -> None:
        """Add a text artifact."""
        client, run_id = self.place.client, self.place.run_id
        self.add(lambda: client.log_text(run_id, text, path))

    def data(self, data: Any, path: str) -> None:
        """Add a JSON artifact."""
        self.text(json.dumps(data, ensure_ascii=False, default=str), path)

    def binary(self, content: bytes, path: str) -> None:
        """Add a binary artifact; ``path`` has a folder."""
        client, run_id = self.place.client, self.place.run_id

        def write() -> None:
            import tempfile

            folder, _, name = path.rpartition("/")
            with tempfile.TemporaryDirectory() as temporary:
                file = Path(temporary, name)
                file.write_bytes(content)
                client.log_artifact(run_id, str(file), folder or None)

        self.add(write)


def _for_good(error: Exception) -> bool:
    """Whether MLflow understood a write and refused it."""
    code = getattr(error, "get_http_status_code", None)
    status = int(code()) if callable(code) else 500
    return 400 <= status < 500 and status not in (401, 403, 408, 429)


def _said(error: Exception) -> str:
    return Redactor().text(str(error))[:300]
