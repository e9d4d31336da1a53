"""Where a run goes in MLflow: the store, the experiment, and the MLflow run, made where they are
missing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from combee_dspy.files import check_database, make_folder, make_private
from combee_dspy.journal import Description, RunHistory
from combee_dspy.tracking._caller import active_run
from combee_dspy.tracking._params import title

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput

    from combee_dspy.tracking._mlflow import MLflowTracker

# MLflow's own defaults block for minutes on a server that is down. Seconds, and tries after the
# first.
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
# Tags of MLflow's own prefix are not shown.
_RUN = "mlflow.combee.run"
_SQLITE = "sqlite:///"
_EXPERIMENT = "combee_dspy"


def make_store(uri: str) -> None:
    """Make a store that is a SQLite file elsewhere, and put it into its place when it is whole.

    MLflow makes it table by table for seconds, and refuses for ever one whose making was cut short.

    Raises:
        NotPlainFileError: A link or a special file lies in its place.
    """
    path = Path(uri.removeprefix(_SQLITE))
    if not uri.startswith(_SQLITE) or "?" in uri or path.name == ":memory:":
        return
    # Another run that has just made it has a second name for it, for a moment.
    check_database(path, in_place=False)
    if path.exists():
        return
    import mlflow

    make_folder(path.parent)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder:
        whole = Path(folder, path.name)
        make_private(whole)  # a store holds prompts, and MLflow would let others read it
        mlflow.MlflowClient(tracking_uri=f"{_SQLITE}{whole}").search_experiments(max_results=1)
        with suppress(FileExistsError):  # another run has made it meanwhile
            os.link(whole, path)


@dataclass(frozen=True, slots=True)
class MLflowRun:
    """An MLflow run that one of ours is recorded in.

    Attributes:
        client: Of its store.
        id: Its id.
        tags: Its tags, as they were when it was opened.
        uri: The store, without keys.
        where: What a person opens or runs to look at it.
    """

    client: MlflowClient
    id: str
    tags: Mapping[str, str]
    uri: str
    where: str

    def log_text(self, name: str, text: str) -> None:
        """Write a text as an artifact, in the place of one of that name."""
        self.client.log_text(self.id, text, name)

    def tag(self, tags: Mapping[str, str]) -> None:
        """Set tags, all at once."""
        from mlflow.entities import RunTag

        self.client.log_batch(self.id, tags=[RunTag(name, value) for name, value in tags.items()])


def open_run(tracker: MLflowTracker, history: RunHistory, clean: Callable[[str], str]) -> MLflowRun:
    """Return the MLflow run of one of our runs, made where its store has none.

    Raises:
        MlflowException: The store does not answer, or refuses.
        NotPlainFileError: A link or a special file lies in the store's place.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import mlflow

    record = history.record
    named = json.dumps([record.name, record.created, record.seed, record.identity])
    identity = hashlib.sha256(named.encode()).hexdigest()[:32]
    store = tracker.tracking_uri or mlflow.get_tracking_uri()
    make_store(store)
    client = mlflow.MlflowClient(tracking_uri=tracker.tracking_uri)
    parent = tracker.parent or active_run(tracker.tracking_uri)
    experiment = _experiment_of(client, tracker, parent)
    runs = client.search_runs([experiment], f"tags.`{_RUN}` = '{identity}'", max_results=1)
    if runs:
        tags, number = runs[0].data.tags, runs[0].info.run_id
        if runs[0].info.status != "RUNNING" and record.state == "running":
            client.update_run(number, status="RUNNING")
    else:
        tags = {
            _RUN: identity,
            "mlflow.source.name": "combee_dspy",
            "mlflow.source.type": "LOCAL",
            **({"mlflow.parentRunId": parent} if parent else {}),
        }
        name = clean(tracker.run_name or title(history))
        run = client.create_run(experiment, round(record.created * 1000), tags, name)
        number = run.info.run_id
    uri = clean(store)
    where = f"mlflow ui --backend-store-uri {shlex.quote(uri)}  # run {number}"
    if uri.startswith(("http://", "https://")):
        where = f"{uri}/#/experiments/{experiment}/runs/{number}"
    return MLflowRun(client, number, tags, uri, where)


def datasets_of(about: Description) -> list[DatasetInput]:
    """Return the splits of a run as MLflow's datasets. Their rows stay where they are."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    inputs = []
    for split, digest in about.digests.items():
        if digest:
            profile = json.dumps({"num_rows": about.sizes.get(split)})
            dataset = Dataset(split, digest[:36], "local", "{}", profile=profile)
            inputs.append(DatasetInput(dataset, [InputTag("mlflow.data.context", split)]))
    return inputs


def _experiment_of(client: MlflowClient, tracker: MLflowTracker, parent: str | None) -> str:
    """Return the id of the experiment that a run belongs to."""
    experiment: str | None = None
    if tracker.experiment is None and parent is not None:
        # MLflow shows a run below its parent only where both are in one experiment.
        experiment = client.get_run(parent).info.experiment_id
    elif tracker.experiment is None and tracker.tracking_uri is None:
        # mlflow.set_experiment leaves its choice there, which holds for the store that MLflow
        # itself is set to.
        experiment = os.environ.get("MLFLOW_EXPERIMENT_ID")
    if experiment is None:
        name = tracker.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or _EXPERIMENT
        home = client.get_experiment_by_name(name)
        experiment = client.create_experiment(name) if home is None else home.experiment_id
    return str(experiment)
