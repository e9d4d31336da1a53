"""One MLflow run: finding or making it."""

from __future__ import annotations

import contextlib
import getpass
import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.tracking._redact import Redactor, store_error

__all__ = [
    "PLACE",
    "Place",
    "client_of",
    "connect",
    "load_place",
    "read_json",
    "save_place",
    "taken_up",
    "write_json",
]

PLACE = "mlflow.json"
"""Where a journal says which MLflow run it goes to."""

_logger = logging.getLogger(__name__)

# MLflow's own defaults block for minutes on a server that is down. Seconds, and tries after the first.
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
_JOINED = "combee.joined"
_PARENT = "mlflow.parentRunId"
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
    named: bool = False


def connect(
    experiment: str,
    tracking_uri: str | None,
    run_name: str | None,
    *,
    nested: bool = False,
    known: str | None = None,
    join: bool = True,
    parent: str | None = None,
) -> Place:
    """Find or make the run, and prove that the store takes writes.

    Of a run that is known, :func:`taken_up` adds what was noted when it was first opened.

    The store is ``tracking_uri``; else the one the user has set for MLflow
    (``mlflow.set_tracking_uri`` or ``MLFLOW_TRACKING_URI``); else SQLite in
    ``combee_runs/mlflow.db`` under the working directory, with artifacts
    beside it. A run that is active in the calling thread is joined where no
    other store is asked for; if an earlier compile has joined it already, a
    run nested in it is made.

    A run that is known is taken up again whatever run is active, and that one
    is left as it is: the journal's beginning lies in the first, and told to
    another, it would be recorded twice.

    Args:
        experiment: The experiment's name.
        tracking_uri: The store, if one is asked for.
        run_name: The run's name, if it is given one.
        nested: Whether to make a nested run inside an active one instead of joining it.
        known: Id of the run that this journal went to before; it is taken up again where the store has it.
        join: Whether an active run counts.
        parent: Id of the run that a new one is nested in, whatever run is active.

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
            active = mlflow.active_run() if join and parent is None else None
            if active is not None and (uri is None or uri == mlflow.get_tracking_uri()):
                uri, run_id = mlflow.get_tracking_uri(), active.info.run_id
                found = None if known is None else _again(mlflow, uri, known)
                return found or _join(mlflow, run_id, run_name, nested)
            artifacts = None
            if uri is None and mlflow.is_tracking_uri_set():
                uri = mlflow.get_tracking_uri()
            elif uri is None:
                uri, artifacts = _default_store()
            found = None if known is None else _again(mlflow, uri, known)
            return found or _create(mlflow, uri, artifacts, experiment, run_name, parent)
    except (MlflowException, OSError) as error:
        remedy = (
            "Start the server or correct the address (MLFLOW_TRACKING_URI), or pass tracker=None. Nothing was spent."
        )
        raise store_error(uri, "cannot be written to", error, remedy) from None


def client_of(uri: str) -> Any:
    """Return an ``MlflowClient`` of a store. Nothing is asked of it yet."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def _default_store() -> tuple[str, str]:
    folder = Path.cwd() / "combee_runs"
    folder.mkdir(exist_ok=True)
    return f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri()


def _again(mlflow: Any, uri: str, run_id: str) -> Place | None:
    client = mlflow.MlflowClient(tracking_uri=uri)
    try:
        run = client.get_run(run_id)
    except mlflow.exceptions.MlflowException as error:
        # Not there, or not answering; in the second case making a run says so.
        _logger.debug("run %s not found: %s", run_id, Redactor().text(str(error)))
        return None
    if run.info.lifecycle_stage != "active":
        return None
    return Place(client, uri, run_id, run.info.experiment_id)


def _join(mlflow: Any, run_id: str, run_name: str | None, nested: bool) -> Place:
    uri = mlflow.get_tracking_uri()
    client = mlflow.MlflowClient(tracking_uri=uri)
    run = client.get_run(run_id)
    experiment_id = run.info.experiment_id
    if nested or _JOINED in run.data.tags:
        made = client.create_run(experiment_id, run_name=run_name, tags={**_origin(), _PARENT: run_id})
        return Place(client, uri, made.info.run_id, experiment_id, named=run_name is not None)
    client.set_tag(run_id, _JOINED, "true")
    described = bool(run.data.tags.get("mlflow.note.content"))
    return Place(client, uri, run_id, experiment_id, True, frozenset(run.data.params), described, named=True)


def _create(
    mlflow: Any, uri: str, artifacts: str | None, experiment: str, run_name: str | None, parent: str | None
) -> Place:
    client = mlflow.MlflowClient(tracking_uri=uri)
    tags = _origin()
    if parent is None:
        experiment_id = _experiment(mlflow, client, artifacts, experiment)
    else:
        experiment_id = client.get_run(parent).info.experiment_id
        tags[_PARENT] = parent
    run = client.create_run(experiment_id, run_name=run_name, tags=tags)
    return Place(client, uri, run.info.run_id, experiment_id, named=run_name is not None)


def _experiment(mlflow: Any, client: Any, artifacts: str | None, experiment: str) -> str:
    """Return an experiment's id; it is made where it is missing."""
    found = client.get_experiment_by_name(experiment)
    if found is None:
        try:
            client.create_experiment(experiment, artifact_location=artifacts)
        except mlflow.exceptions.MlflowException as error:
            # Another process may have been quicker; any other failure shows again below.
            _logger.debug("experiment not made: %s", Redactor().text(str(error)))
        found = client.get_experiment_by_name(experiment)
    if found is None or found.lifecycle_stage != "active":
        raise ArgumentValueError(
            "experiment", experiment, "is deleted in this MLflow store", "Restore it, or choose another name."
        )
    return str(found.experiment_id)


def _origin() -> dict[str, str]:
    """Return who made a run and with what, as MLflow's own functions note it, but without paths."""
    main = sys.modules.get("__main__")
    module = getattr(getattr(main, "__spec__", None), "name", None)
    script = getattr(main, "__file__", None)
    name = str(module).removesuffix(".__main__") if module else Path(script).name if script else "interactive"
    tags = {"mlflow.source.name": name, "mlflow.source.type": "LOCAL"}
    # A process without a user's name has none to note.
    with contextlib.suppress(OSError, KeyError, ImportError):
        tags["mlflow.user"] = getpass.getuser()
    return {key: Redactor().text(value) for key, value in tags.items()}


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


def save_place(folder: Path, place: Place, options: Mapping[str, Any]) -> None:
    """Note beside a journal where it goes, for whoever completes it later. User and password are left out.

    Args:
        folder: The journal's.
        place: The run.
        options: What else decides what is written, as JSON data.
    """
    data = {
        "uri": Redactor().text(place.uri),
        "run_id": place.run_id,
        "experiment_id": place.experiment_id,
        "joined": place.joined,
        "params": sorted(place.params),
        "described": place.described,
        "named": place.named,
        "options": dict(options),
    }
    write_json(folder / PLACE, data)


def load_place(folder: Path) -> dict[str, Any] | None:
    """Return what :func:`save_place` noted; ``None`` where it noted nothing that can be read."""
    return read_json(folder / PLACE)


def taken_up(found: Place, saved: Mapping[str, Any]) -> Place:
    """Return a place with what was noted of it when it was first opened; as it is where that was another run.

    Args:
        found: What :func:`connect` found or made.
        saved: From :func:`load_place`.
    """
    if found.run_id != saved.get("run_id"):
        return found
    return replace(
        found,
        joined=bool(saved.get("joined")),
        params=frozenset(saved.get("params") or ()),
        described=bool(saved.get("described")),
        named=bool(saved.get("named")),
    )


def write_json(file: Path, data: Mapping[str, Any]) -> None:
    """Write a small file in one step that is never half done, after a power failure neither."""
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    with partial.open("w", encoding="utf-8") as stream:
        stream.write(json.dumps(data, ensure_ascii=False))
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(file)


def read_json(file: Path) -> dict[str, Any] | None:
    """Return what :func:`write_json` wrote; ``None`` where there is nothing that can be read."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None
