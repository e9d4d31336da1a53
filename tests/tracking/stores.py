"""A stand-in for MLflow's store, which may be down, or die at any write."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
from mlflow.exceptions import MlflowException

from tests.tracking.journals import KEY


class Killed(BaseException):
    """The process is gone."""


class Store:
    """What a store keeps, by MlflowClient's own methods.

    Attributes:
        writes: How many there were.
        dies_at: The write at which the process dies.
        down: Whether it refuses every connection.
    """

    tracking_uri = ""

    def __init__(self) -> None:
        self.experiments: list[str] = []
        self.runs: dict[str, SimpleNamespace] = {}
        self.models: list[Any] = []
        self.traces: list[str] = []
        self.writes, self.dies_at, self.down = 0, 0, False

    def client(self, tracking_uri: str | None = None) -> Store:
        self._write()
        return self

    def _write(self) -> None:
        if self.down:
            raise MlflowException(f"Connection refused, Bearer {KEY}")
        self.writes += 1
        if self.writes == self.dies_at:
            raise Killed

    def get_experiment_by_name(self, name: str) -> SimpleNamespace | None:
        return SimpleNamespace(experiment_id=name) if name in self.experiments else None

    def create_experiment(self, name: str) -> str:
        self._write()
        self.experiments.append(name)
        return name

    def search_runs(self, experiments: list[str], condition: str, max_results: int) -> list[Any]:
        wanted = condition.split("'")[1]
        here = [run for run in self.runs.values() if run.info.experiment in experiments]
        return [run for run in here if run.data.tags["mlflow.combee.run"] == wanted][:max_results]

    def create_run(self, experiment: str, begun: int, tags: dict[str, str], name: str) -> Any:
        self._write()
        run_id = f"run{len(self.runs)}"
        self.runs[run_id] = SimpleNamespace(
            info=SimpleNamespace(
                run_id=run_id,
                status="RUNNING",
                name=name,
                experiment=experiment,
                experiment_id="home",
            ),
            data=SimpleNamespace(tags=dict(tags), params={}, metrics=set(), files={}, datasets=[]),
            outputs=SimpleNamespace(model_outputs=self.models),
        )
        return self.runs[run_id]

    def get_run(self, run: str) -> SimpleNamespace:
        return self.runs[run]

    def log_batch(
        self,
        run: str,
        metrics: Iterable[Any] = (),
        params: Iterable[Any] = (),
        tags: Iterable[Any] = (),
    ) -> None:
        self._write()
        data = self.runs[run].data
        # As a database's key does, a set keeps a point once.
        data.metrics |= {(point.key, point.step, point.timestamp, point.value) for point in metrics}
        data.params |= {param.key: param.value for param in params}
        data.tags |= {tag.key: tag.value for tag in tags}

    def set_tag(self, run: str, name: str, value: str) -> None:
        self._write()
        self.runs[run].data.tags[name] = value

    def log_artifact(self, run: str, path: str, folder: str) -> None:
        self._write()
        self.runs[run].data.files[f"{folder}/{Path(path).name}"] = Path(path).read_bytes()

    def log_text(self, run: str, text: str, name: str) -> None:
        self._write()
        self.runs[run].data.files[name] = text.encode()

    def log_inputs(self, run: str, datasets: Iterable[Any]) -> None:
        self._write()
        self.runs[run].data.datasets = [entry.dataset.name for entry in datasets]

    def create_logged_model(self, *_: Any, **__: Any) -> SimpleNamespace:
        self._write()
        return SimpleNamespace(model_id="model")

    def log_model_artifact(self, model: str, path: str) -> None:
        self._write()

    def finalize_logged_model(self, model: str, status: str) -> None:
        self._write()

    def log_outputs(self, run: str, models: Iterable[Any]) -> None:
        self._write()
        self.models += models

    def search_traces(self, **_: Any) -> list[SimpleNamespace]:
        return [SimpleNamespace(info=SimpleNamespace(trace_id=trace)) for trace in self.traces]

    def record(self, uri: str, experiment: str, trace: Any) -> None:
        self._write()
        self.traces.append(trace.id)

    def update_run(self, run: str, status: str) -> None:
        self._write()
        self.runs[run].info.status = status

    def set_terminated(self, run: str, status: str, end_time: int) -> None:
        self.update_run(run, status)

    def only(self) -> SimpleNamespace:
        """Return the only run."""
        (run,) = self.runs.values()
        return run

    def rows(self, folder: str = "rollouts") -> list[dict[str, Any]]:
        """Return the rows of the Parquet files of the only run."""
        files = self.only().data.files
        tables = [
            pq.read_table(io.BytesIO(files[name]))
            for name in sorted(files)
            if name.startswith(f"{folder}/")
        ]
        return [row for table in tables for row in table.to_pylist()]

    def metrics(self) -> list[tuple[str, int, int, float]]:
        """Return the points of the only run."""
        return sorted(self.only().data.metrics)

    def points(self) -> dict[tuple[str, int], float]:
        """Return the values of the only run by metric and step."""
        return {(name, step): value for name, step, _, value in self.metrics()}
