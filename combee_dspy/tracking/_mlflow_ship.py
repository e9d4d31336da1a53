"""Tells MLflow of one run: what is new at the end of an update, and what it leaves at its own."""

from __future__ import annotations

import json
import logging
import shlex
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from combee_dspy.events import UpdateEnded
from combee_dspy.journal import Reader, RunHistory
from combee_dspy.tracking._base import Follower
from combee_dspy.tracking._candidates import candidates_of, chosen_of
from combee_dspy.tracking._metrics import description, end_metrics, update_metrics
from combee_dspy.tracking._mlflow_end import Legacy, datasets_of, registered
from combee_dspy.tracking._mlflow_store import open_run
from combee_dspy.tracking._params import params
from combee_dspy.tracking._runs import figures_of
from combee_dspy.tracking._sql import CALLS, ROLLOUT
from combee_dspy.tracking._text import clean_values, cleaner, one_line
from combee_dspy.verdicts import NO_HELDOUT

if TYPE_CHECKING:
    from combee_dspy.tracking._mlflow import MLflowTracker

__all__ = ["Shipper"]

_logger = logging.getLogger(__name__)

# Tags of MLflow's own prefix are not shown: how far a run has come is nobody's label.
_CURSOR, _PENDING = "mlflow.combee.cursor", "mlflow.combee.pending"
_VERDICT, _NOTE = "combee.heldout", "mlflow.note.content"
_STATUS = {"finished": "FINISHED", "failed": "FAILED"}
_AGAIN = 15.0  # seconds until a store that did not answer is asked again
_SUMMED = (
    ("lessons/", "tokens/", "dollars/"),
    ("cost/dollars", "cost/rollouts", "cost/unpriced_calls"),
)
_BATCH = 1_000  # metrics in one call, MLflow's limit
_COUNTS = (
    *("id", "run", "step", "replicate", "calls", "errors", "cached"),
    *("tokens", "tokens_task", "tokens_evaluator", "prompt_tokens", "completion_tokens"),
)
_AMOUNTS = ("score", "started", "ended", "queued", "seconds", "dollars", "gpu_seconds")
_TYPES = {**dict.fromkeys(_COUNTS, "int64"), **dict.fromkeys(_AMOUNTS, "float64")}
"""Types of the columns of a Parquet file; the others are texts."""


@dataclass(frozen=True, slots=True)
class _Cursor:
    """How far MLflow knows a run: the last event, the last effect, and when it ended (0 where that
    is not told yet).
    """

    event: int = 0
    effect: int = 0
    ended: float = 0.0


class Shipper(Follower):
    """Tells MLflow of one run.

    A step is first pinned (which rows it is about), then done, then
    acknowledged. What is done twice is the same both times: files have the name
    of their rows, metrics the time of their events.
    """

    def __init__(self, tracker: MLflowTracker, reader: Reader, run: int) -> None:
        self._tracker, self._reader, self._run = tracker, reader, run
        self._history = RunHistory(reader, run)
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
        over = self._history.record.state != "running"
        if self._complete or (time.monotonic() < self._again and not over):
            return
        try:
            self.ship(over=over)
            self._failing, self._complete = False, over
        except Exception as error:  # noqa: BLE001 - a server that answers nonsense makes MLflow fail in any way
            self._again = time.monotonic() + _AGAIN
            if not self._failing:
                _logger.warning(
                    "MLflow takes nothing, and is asked again: %s",
                    one_line(self._clean(str(error)), 300),
                )
            self._failing = True

    def close(self) -> None:
        """Say how to complete what is not complete."""
        if not self._complete:
            options = ["--tracking-uri", self.uri] if self.uri else []
            options += (
                ["--experiment", self._tracker.experiment] if self._tracker.experiment else []
            )
            command = shlex.join([str(self._reader.path.parent), *options])
            _logger.warning(
                "MLflow has not got all of the run. With a log_dir: combee track replay %s", command
            )

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
            self._send_rows(pinned, "rollouts", ROLLOUT)
            self._send_rows(pinned, "calls", CALLS)
            metrics = self._metrics(pinned)
            for begin in range(0, len(metrics), _BATCH):
                self._client.log_batch(self._id, metrics=metrics[begin : begin + _BATCH])
            if pinned.ended:
                self._send_end(pinned)
            self._tag({_CURSOR: json.dumps(asdict(pinned)), _PENDING: ""})
            self._cursor, self._pending = pinned, None

    def _number(self, sql: str) -> Any:
        return self._reader.rows(sql, (self._run,))[0][0]

    def _tag(self, tags: dict[str, str]) -> None:
        from mlflow.entities import RunTag

        self._client.log_batch(self._id, tags=[RunTag(name, value) for name, value in tags.items()])

    def _pin(self, over: bool) -> _Cursor | None:
        """Say in the run's tags what is told next; ``None`` where there is nothing to tell."""
        if not over and not any(self._history.entries(UpdateEnded, after=self._cursor.event)):
            return None
        # Events first: the effects that they rest on are then there as well.
        event = self._number("SELECT coalesce(max(id), 0) FROM event WHERE run = ?")
        effect = self._number("SELECT coalesce(max(id), 0) FROM effect WHERE run = ?")
        last = (
            "SELECT coalesce(r.finished, (SELECT max(ended) FROM effect WHERE run = r.id),"
            " r.created) FROM run r WHERE r.id = ?"
        )
        pinned = _Cursor(event, effect, self._number(last) if over else 0.0)
        if pinned == self._cursor:
            return None
        self._tag({_PENDING: json.dumps(asdict(pinned))})
        return pinned

    def _connect(self) -> None:
        opened = open_run(self._tracker, self._history, self._clean)
        self._id, self.uri, self.where = opened.id, opened.uri, opened.where
        tags, record = opened.tags, self._history.record
        if _CURSOR in tags:
            self._cursor = _Cursor(**json.loads(tags[_CURSOR]))
            self._pending = _Cursor(**json.loads(tags[_PENDING])) if tags.get(_PENDING) else None
            if self._pending is not None and record.state == "running":
                # Its end was pinned, and it has been taken up again since: that was not its end.
                self._pending = replace(self._pending, ended=0.0)
        else:
            from mlflow.entities import Param, RunTag

            values = params(record.name, record.seed, self._history.description)
            opened.client.log_inputs(self._id, datasets=datasets_of(self._history.about))
            opened.client.log_batch(
                self._id,
                params=[Param(*pair) for pair in clean_values(values, self._clean).items()],
                tags=[RunTag(_CURSOR, json.dumps(asdict(self._cursor)))],
            )
        self._client = opened.client

    def _send_rows(self, pinned: _Cursor, folder: str, select: str) -> None:
        import pyarrow
        import pyarrow.parquet

        bounds = (self._run, self._cursor.effect, pinned.effect)
        rows = self._reader.rows(
            f"{select} AND e.run = ? AND e.id > ? AND e.id <= ? ORDER BY e.id", bounds
        )
        if not rows:
            return
        schema = pyarrow.schema([(name, _TYPES.get(name, "string")) for name in rows[0].keys()])  # noqa: SIM118 - no mapping
        table = pyarrow.Table.from_pylist(
            clean_values([dict(row) for row in rows], self._clean), schema=schema
        )
        with tempfile.TemporaryDirectory(prefix="combee-") as place:
            file = Path(place, f"{self._cursor.effect + 1:08d}-{pinned.effect:08d}.parquet")
            pyarrow.parquet.write_table(table, file)
            self._client.log_artifact(self._id, str(file), folder)

    def _metrics(self, pinned: _Cursor) -> list[Any]:
        from mlflow.entities import Metric

        points = []
        for entry in self._history.entries(
            UpdateEnded, after=self._cursor.event, upto=pinned.event
        ):
            bounds = {"event": pinned.event, "effect": pinned.effect}
            values = update_metrics(self._reader, self._run, entry.step, **bounds)
            points += [
                Metric(name, value, round(entry.at * 1000), entry.step)
                for name, value in values.items()
            ]
        if pinned.ended:
            last = max((entry.step for entry in self._history.entries(UpdateEnded)), default=0)
            at, values = round(pinned.ended * 1000), end_metrics(self._reader, self._run)
            # What updates have points of has one more: tests after the last update change the
            # books, and the held-out set is read.
            groups, sums = _SUMMED
            steps = {name: last + (name.startswith(groups) or name in sums) for name in values}
            points += [Metric(name, value, at, steps[name]) for name, value in values.items()]
        return points

    def _send_end(self, pinned: _Cursor) -> None:
        from combee_dspy.tracking.report import render_report

        self._client.log_text(self._id, render_report(self._reader, self._run), "report.html")
        chosen = chosen_of(candidates_of(self._reader, self._run))
        for component, text in chosen.get("texts", {}).items():
            self._client.log_text(self._id, text, f"prompts/{registered(component)}.txt")
        left = Legacy(self._client, self._reader, self._run, self._id, self._clean)
        left.lessons()
        left.program(chosen)
        left.traces(chosen.get("candidate", ""))
        note = self._clean(description(self._reader, self._run))
        verdict = figures_of(self._reader, self._run).verdict
        self._tag({_VERDICT: str(verdict or NO_HELDOUT), _NOTE: note})
        status = _STATUS.get(self._history.record.state, "KILLED")
        self._client.set_terminated(self._id, status, end_time=round(pinned.ended * 1000))
