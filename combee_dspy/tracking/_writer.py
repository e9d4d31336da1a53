"""Writes to one MLflow run."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping
from functools import singledispatchmethod
from pathlib import Path
from typing import Any

from combee_dspy.tracking._rows import parquet_of
from combee_dspy.tracking._store import Place
from combee_dspy.tracking._text import clean, cut
from combee_dspy.tracking._traces import write_traces
from combee_dspy.tracking._writes import Batch, Datasets, Name, Part, Register, Report, Status, Text, Traces, Write
from combee_dspy.tracking.slug import METRIC_PART, PROMPT_NAME, shorten, to_slug

__all__ = ["Writer", "prompt_name", "refused_for_good"]

_logger = logging.getLogger(__name__)

_BATCH = 100
# MLflow keeps 36 characters of a dataset's digest.
_DIGEST = 36


def prompt_name(experiment: str, component: str) -> str:
    """Return the registered name of a component's prompt: both parts as slugs, joined by the first dot."""
    return f"{shorten(to_slug(experiment, METRIC_PART), 80)}.{shorten(to_slug(component, PROMPT_NAME), 160)}"


class Writer:
    """Does writes. Used by one thread.

    Args:
        place: The run.
        experiment: The experiment's name, for the names of prompts.
        links: Name and version of the prompts registered before, by component.
    """

    def __init__(self, place: Place, experiment: str, links: Mapping[str, Any] | None = None) -> None:
        self.place = place
        self._experiment = experiment
        self.links: dict[str, Any] = dict(links or {})
        self._tracing: Any = None
        self._steps: dict[str, set[int]] = {}

    @singledispatchmethod
    def do(self, write: Write, again: bool) -> None:
        """Do one write.

        Args:
            write: The write.
            again: Whether it may have been done before, in part or as a whole: then it is looked for first
                where MLflow would take it twice.

        Raises:
            MlflowException: MLflow did not take it.
            OSError: The store cannot be reached.
        """
        raise NotImplementedError(type(write).__name__)

    @do.register
    def _(self, write: Batch, again: bool) -> None:
        from mlflow.entities import Metric, Param, RunTag

        names = {name for name, *_ in write.points}
        known = {name: self._taken(name) for name in names} if again else {}
        points = [Metric(*point) for point in write.points if point[3] not in known.get(point[0], ())]
        params = [Param(name, value) for name, value in write.params.items()]
        tags = [RunTag(name, value) for name, value in write.tags.items()]
        client, run_id = self.place.client, self.place.run_id
        for name in names:
            # Until MLflow has answered, nobody knows what it took.
            self._steps.pop(name, None)
        for start in range(0, max(len(points), len(params), len(tags)), _BATCH):
            part = slice(start, start + _BATCH)
            client.log_batch(run_id, metrics=points[part], params=params[part], tags=tags[part])
        if again:
            for point in points:
                known[point.key].add(point.step)
            self._steps.update(known)

    def _taken(self, name: str) -> set[int]:
        """Return the steps that a metric has: asked once, for a whole journal may be told again."""
        if name not in self._steps:
            history = self.place.client.get_metric_history(self.place.run_id, name)
            self._steps[name] = {int(point.step) for point in history}
        return self._steps[name]

    @do.register
    def _(self, write: Text, again: bool) -> None:
        self.place.client.log_text(self.place.run_id, clean(write.text), write.path)

    @do.register
    def _(self, write: Part, again: bool) -> None:
        content = parquet_of(write.rows)
        if content is None:
            _logger.debug("pyarrow is not installed: the rollouts stay in the journal")
            return
        folder, _, name = write.path.rpartition("/")
        with tempfile.TemporaryDirectory() as temporary:
            file = Path(temporary, name)
            file.write_bytes(content)
            self.place.client.log_artifact(self.place.run_id, str(file), folder or None)

    @do.register
    def _(self, write: Report, again: bool) -> None:
        from combee_dspy.tracking.report import render

        self.place.client.log_text(self.place.run_id, clean(render(write.data)), "report.html")

    @do.register
    def _(self, write: Name, again: bool) -> None:
        self.place.client.update_run(self.place.run_id, name=write.name)

    @do.register
    def _(self, write: Status, again: bool) -> None:
        if write.status == "RUNNING":
            self.place.client.update_run(self.place.run_id, status=write.status)
        else:
            self.place.client.set_terminated(self.place.run_id, write.status, end_time=write.at)

    @do.register
    def _(self, write: Datasets, again: bool) -> None:
        import json

        from mlflow.entities import Dataset, DatasetInput, InputTag

        inputs = []
        for split, size in write.sizes.items():
            digest = write.digests.get(split, "")
            if not size or not digest:
                continue
            facts = json.dumps({"num_rows": size, "sha256": digest})
            dataset = Dataset(cut(split, 500), digest[:_DIGEST], "code", json.dumps({"tags": {}}), profile=facts)
            inputs.append(DatasetInput(dataset, [InputTag("mlflow.data.context", split)]))
        if inputs:
            self.place.client.log_inputs(self.place.run_id, inputs)

    @do.register
    def _(self, write: Register, again: bool) -> None:
        import json

        name = prompt_name(self._experiment, write.component)
        before = self.links.get(write.component)
        own = {"combee.run_id": self.place.run_id, "_mlflow_experiment_ids": f",{self.place.experiment_id},"}
        tags = {**write.tags, **own}
        if before is not None:
            tags["combee.parent_version"] = str(before[1])
        version = self._registered(name, tags) if again else None
        if version is None:
            version = int(self.place.client.register_prompt(name, clean(write.text), tags=tags).version)
        self.links[write.component] = [name, version]
        links = [{"name": name, "version": str(version)} for name, version in self.links.values()]
        # MLflow's own way to link prompts goes through its global store, which may be another one.
        self.place.client.set_tag(self.place.run_id, "mlflow.linkedPrompts", json.dumps(links))

    def _registered(self, name: str, tags: Mapping[str, str]) -> int | None:
        from mlflow.exceptions import MlflowException

        try:
            versions = self.place.client.search_prompt_versions(name, max_results=_BATCH)
        except MlflowException as error:
            if refused_for_good(error):  # There is no such prompt yet.
                return None
            raise
        same = ("combee.run_id", "combee.candidate_id")
        found = [int(one.version) for one in versions if all(one.tags.get(tag) == tags[tag] for tag in same)]
        return max(found, default=None)

    @do.register
    def _(self, write: Traces, again: bool) -> None:
        if self._tracing is None:
            from mlflow.tracing.client import TracingClient

            self._tracing = TracingClient(self.place.uri)
        write_traces(self._tracing, write.rollouts, self.place.run_id, self.place.experiment_id)


def refused_for_good(error: Exception) -> bool:
    """Whether MLflow understood a write and refused it."""
    code = getattr(error, "get_http_status_code", None)
    status = int(code()) if callable(code) else 500
    return 400 <= status < 500 and status not in (401, 403, 408, 429)
