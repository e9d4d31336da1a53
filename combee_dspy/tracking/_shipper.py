"""Tells MLflow what a journal says: exactly once, whoever dies in between."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shlex
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from combee_dspy.journal import Reader
from combee_dspy.tracking._base import Follower
from combee_dspy.tracking._metrics import description, end_metrics, params, update_metrics
from combee_dspy.tracking._queries import candidates_of, chosen_of
from combee_dspy.tracking._sql import ROLLOUT
from combee_dspy.tracking._text import clean_values, cleaner, one_line

if TYPE_CHECKING:
    from combee_dspy.tracking._mlflow import MLflowTracker

__all__ = ["Shipper"]

_logger = logging.getLogger(__name__)

# MLflow's own defaults block for minutes on a server that is down. Seconds, and tries after the first.
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
_RUN, _CURSOR, _PENDING = "combee.run", "combee.cursor", "combee.pending"
_STATUS = {"finished": "FINISHED", "failed": "FAILED"}
_AGAIN = 15.0  # seconds until a store that did not answer is asked again
_BATCH = 1_000  # metrics in one call, MLflow's limit
_INTEGERS = frozenset({"id", "run", "step", "replicate", "calls", "tokens"})
_FLOATS = frozenset({"score", "started", "ended", "queued", "seconds", "dollars"})


@dataclass(frozen=True, slots=True)
class _Cursor:
    """How far MLflow knows a run.

    Attributes:
        event: The last event.
        effect: The last effect.
        ended: When the run ended, as far as that has been told; 0 before.
    """

    event: int = 0
    effect: int = 0
    ended: float = 0.0


class Shipper(Follower):
    """Tells MLflow of one run.

    A step is first pinned (which rows it is about), then done, then
    acknowledged. What is done twice is the same both times: files have the name
    of their rows, metrics the time of their events.

    Args:
        tracker: Where to.
        reader: Borrowed.
        run: The run's id.
    """

    def __init__(self, tracker: MLflowTracker, reader: Reader, run: int) -> None:
        self._tracker, self._reader, self._run = tracker, reader, run
        self._clean = cleaner()
        self._client: Any = None
        self._id = ""
        self._cursor = _Cursor()
        self._pending: _Cursor | None = None
        self._again = 0.0
        self._failing = self._complete = False
        self.uri = self._clean(tracker.tracking_uri or "")

    def follow(self) -> None:
        """Tell of the updates that have ended since, and of the run's end."""
        over = self._one("SELECT state FROM run WHERE id = ?") != "running"
        if self._complete or (time.monotonic() < self._again and not over):
            return
        from mlflow.exceptions import MlflowException

        try:
            self.ship(over=over)
            self._failing = False
            self._complete = over
        except (MlflowException, OSError) as error:
            self._again = time.monotonic() + _AGAIN
            if not self._failing:
                _logger.warning("MLflow takes nothing, and is asked again: %s", one_line(self._clean(str(error)), 300))
            self._failing = True

    def close(self) -> None:
        """Say how to complete what is not complete."""
        if not self._complete:
            given = f" --tracking-uri {shlex.quote(self.uri)}" if self.uri else ""
            given += f" --experiment {shlex.quote(self._tracker.experiment)}"
            where = shlex.quote(str(self._reader.path.parent))
            _logger.warning("MLflow has not got all of the run. With a log_dir: combee track replay %s%s", where, given)

    def ship(self, *, over: bool) -> None:
        """Do what there is to do.

        Raises:
            MlflowException: The store does not answer, or refuses.
            OSError: The same.
        """
        if self._client is None:
            self._connect()
        while (pinned := self._pending or self._pin(over)) is not None:
            self._pending = pinned
            self._send_rollouts(pinned)
            metrics = self._metrics(pinned)
            for begin in range(0, len(metrics), _BATCH):
                self._client.log_batch(self._id, metrics=metrics[begin : begin + _BATCH])
            if pinned.ended:
                self._send_end(pinned)
            self._tag({_CURSOR: json.dumps(asdict(pinned)), _PENDING: ""})
            self._cursor, self._pending = pinned, None

    def _one(self, sql: str, *parameters: Any) -> Any:
        return self._reader.rows(sql, (self._run, *parameters))[0][0]

    def _pin(self, over: bool) -> _Cursor | None:
        """Say in the run's tags what is told next; ``None`` where there is nothing to tell."""
        sql = "SELECT count(*) FROM event WHERE run = ? AND id > ? AND kind = 'update'"
        if not over and not self._one(sql, self._cursor.event):
            return None
        # Events first: the effects that they rest on are then there as well.
        event = self._one("SELECT coalesce(max(id), 0) FROM event WHERE run = ?")
        effect = self._one("SELECT coalesce(max(id), 0) FROM effect WHERE run = ?")
        last = "SELECT coalesce(r.finished, (SELECT max(ended) FROM effect WHERE run = r.id), r.created) FROM run r"
        pinned = _Cursor(event, effect, self._one(f"{last} WHERE r.id = ?") if over else 0.0)
        if pinned == self._cursor:
            return None
        self._tag({_PENDING: json.dumps(asdict(pinned))})
        return pinned

    def _connect(self) -> None:
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        import mlflow

        row = self._reader.rows("SELECT * FROM run WHERE id = ?", (self._run,))[0]
        known = json.dumps([row[name] for name in ("name", "created", "seed", "identity")])
        identity = hashlib.sha256(known.encode()).hexdigest()[:32]
        client = mlflow.MlflowClient(tracking_uri=self._tracker.tracking_uri)
        home = client.get_experiment_by_name(self._tracker.experiment)
        experiment = client.create_experiment(self._tracker.experiment) if home is None else home.experiment_id
        found = client.search_runs([experiment], f"tags.`{_RUN}` = '{identity}'", max_results=1)
        if found:
            tags, self._id = found[0].data.tags, found[0].info.run_id
            if found[0].info.status != "RUNNING" and row["state"] == "running":
                client.update_run(self._id, status="RUNNING")
        else:
            nested = {"mlflow.parentRunId": self._tracker.parent} if self._tracker.parent else {}
            tags = {_RUN: identity, "mlflow.source.name": "combee_dspy", "mlflow.source.type": "LOCAL", **nested}
            name = self._clean(self._tracker.run_name or row["name"])
            self._id = client.create_run(experiment, round(row["created"] * 1000), tags, name).info.run_id
        if _CURSOR in tags:
            self._cursor = _Cursor(**json.loads(tags[_CURSOR]))
            self._pending = _Cursor(**json.loads(tags[_PENDING])) if tags.get(_PENDING) else None
            if self._pending is not None and row["state"] == "running":
                # Its end was pinned, and it has been taken up again since: that was not its end.
                self._pending = replace(self._pending, ended=0.0)
        else:
            decided = [mlflow.entities.Param(*one) for one in clean_values(params(dict(row)), self._clean).items()]
            begun = mlflow.entities.RunTag(_CURSOR, json.dumps(asdict(self._cursor)))
            client.log_batch(self._id, params=decided, tags=[begun])
        self._client = client
        self.uri = self._clean(self._tracker.tracking_uri or mlflow.get_tracking_uri())
        if self.uri.startswith(("http://", "https://")):
            self.where = f"{self.uri}/#/experiments/{experiment}/runs/{self._id}"
        else:
            self.where = f"mlflow ui --backend-store-uri {shlex.quote(self.uri)}  # run {self._id}"

    def _tag(self, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        self._client.log_batch(self._id, tags=[RunTag(name, value) for name, value in tags.items()])

    def _send_rollouts(self, pinned: _Cursor) -> None:
        import pyarrow
        import pyarrow.parquet

        bounds = (self._run, self._cursor.effect, pinned.effect)
        sql = f"{ROLLOUT} AND e.run = ? AND e.id > ? AND e.id <= ? ORDER BY e.id"
        rows = [dict(row) for row in self._reader.rows(sql, bounds)]
        if not rows:
            return
        schema = pyarrow.schema([(name, _type(pyarrow, name)) for name in rows[0]])
        table = pyarrow.Table.from_pylist(clean_values(rows, self._clean), schema=schema)
        with tempfile.TemporaryDirectory(prefix="combee-") as folder:
            file = Path(folder, f"{self._cursor.effect + 1:08d}-{pinned.effect:08d}.parquet")
            pyarrow.parquet.write_table(table, file)
            self._client.log_artifact(self._id, str(file), "rollouts")

    def _metrics(self, pinned: _Cursor) -> list[Any]:
        from mlflow.entities import Metric

        sql = "SELECT step, at FROM event WHERE run = ? AND id > ? AND id <= ? AND kind = 'update' ORDER BY id"
        found = []
        for row in self._reader.rows(sql, (self._run, self._cursor.event, pinned.event)):
            bounds = {"event": pinned.event, "effect": pinned.effect}
            values = update_metrics(self._reader, self._run, row["step"], **bounds)
            found += [Metric(name, value, round(row["at"] * 1000), row["step"]) for name, value in values.items()]
        if pinned.ended:
            last = self._one("SELECT max(step) FROM event WHERE run = ? AND kind = 'update'")
            values = end_metrics(self._reader, self._run)
            found += [Metric(name, value, round(pinned.ended * 1000), last or 0) for name, value in values.items()]
        return found

    def _send_end(self, pinned: _Cursor) -> None:
        from combee_dspy.tracking.report import render_report

        self._client.log_text(self._id, render_report(self._reader, self._run), "report.html")
        chosen = chosen_of(candidates_of(self._reader, self._run))
        for component, text in chosen.get("texts", {}).items():
            file = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in component)
            self._client.log_text(self._id, text, f"prompts/{file}.txt")
        told = self._clean(description(self._reader, self._run))
        self._client.set_tag(self._id, "mlflow.note.content", told)
        status = _STATUS.get(self._one("SELECT state FROM run WHERE id = ?"), "KILLED")
        self._client.set_terminated(self._id, status, end_time=round(pinned.ended * 1000))


def _type(pyarrow: Any, name: str) -> Any:
    return pyarrow.int64() if name in _INTEGERS else pyarrow.float64() if name in _FLOATS else pyarrow.string()
