"""Sends one run to MLflow: what is new at the end of an update, and what it leaves at its own."""

from __future__ import annotations

import json
import logging
import shlex
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from combee_dspy.events import UpdateEnded
from combee_dspy.journal import Reader, RunHistory
from combee_dspy.tracking._base import Follower
from combee_dspy.tracking._candidates import chosen_of, read_candidates
from combee_dspy.tracking._metrics import description, end_metrics, update_metrics
from combee_dspy.tracking._mlflow_end import log_lessons, log_program, log_traces, plain_name
from combee_dspy.tracking._mlflow_store import MLflowRun, datasets_of, open_run
from combee_dspy.tracking._params import params
from combee_dspy.tracking._runs import figures_of
from combee_dspy.tracking._sql import CALLS, ROLLOUT
from combee_dspy.tracking._text import clean_values, cleaner, one_line
from combee_dspy.verdicts import NO_HELDOUT

if TYPE_CHECKING:
    from mlflow.entities import Metric

    from combee_dspy.tracking._mlflow import MLflowTracker

_logger = logging.getLogger(__name__)

# Tags of MLflow's own prefix are not shown: how far a run has come is nobody's label.
_CURSOR = "mlflow.combee.cursor"
_VERDICT, _NOTE = "combee.heldout", "mlflow.note.content"
_STATUS = {"finished": "FINISHED", "failed": "FAILED"}
_AGAIN = 15.0  # seconds until a store that did not answer is asked again
_BATCH = 1_000  # metrics in one call, MLflow's limit
_COUNTS = (
    *("id", "run", "step", "replicate", "calls", "errors", "cached"),
    *("tokens", "tokens_task", "tokens_evaluator", "prompt_tokens", "completion_tokens"),
)
_AMOUNTS = ("score", "started", "ended", "queued", "seconds", "dollars", "gpu_seconds")
# Of the columns of a Parquet file; the others are texts.
_TYPES = {**dict.fromkeys(_COUNTS, "int64"), **dict.fromkeys(_AMOUNTS, "float64")}
# How far a run has come, read at one moment.
_NEWEST = """SELECT coalesce((SELECT max(id) FROM event WHERE run = r.id), 0),
    coalesce((SELECT max(id) FROM effect WHERE run = r.id), 0),
    coalesce(r.finished, (SELECT max(ended) FROM effect WHERE run = r.id), r.created)
FROM run r WHERE r.id = ?"""
# Metrics of updates that have one more point at the end of the run: tests after the last update
# change the books, and the held-out set is read.
_LATER = ("cost/dollars", "cost/rollouts", "cost/unpriced_calls")
_LATER_GROUPS = ("lessons/", "tokens/", "dollars/")


@dataclass(frozen=True, slots=True)
class _Cursor:
    """How far MLflow knows a run.

    Attributes:
        event: The last event.
        effect: The last effect.
        ended: When the run ended, in Unix time; 0 where MLflow does not know that it has.
    """

    event: int = 0
    effect: int = 0
    ended: float = 0.0


class Shipper(Follower):
    """Sends one run to MLflow.

    What is new is sent first and acknowledged then, so it may be sent twice. Each row arrives once
    all the same: a file has the name of its first row and is replaced by one that holds at least
    as many, and a metric has the time of its event.
    """

    def __init__(self, tracker: MLflowTracker, reader: Reader, run: int) -> None:
        self._tracker = tracker
        self._history = RunHistory(reader, run)
        self._clean = cleaner()
        self._there: MLflowRun | None = None
        self._cursor = _Cursor()
        self._again = 0.0
        self._failing = self._complete = False
        self.uri = self._clean(tracker.tracking_uri or "")

    def follow(self) -> None:
        """Send the updates that have ended since, and the run's end."""
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
        """Log how to complete what is not complete."""
        if self._complete:
            return
        command = [str(self._history.reader.path.parent)]
        command += ["--tracking-uri", self.uri] if self.uri else []
        command += ["--experiment", self._tracker.experiment] if self._tracker.experiment else []
        _logger.warning(
            "MLflow has not got all of the run. With a log_dir: combee track replay %s",
            shlex.join(command),
        )

    def ship(self, *, over: bool) -> None:
        """Send what there is to send.

        Raises:
            MlflowException: The store does not answer, or refuses.
            OSError: The same.
        """
        there = self._there or self._connect()
        newest = self._newest(over)
        if newest is None:
            return
        self._send_rows(there, newest, "rollouts", ROLLOUT)
        self._send_rows(there, newest, "calls", CALLS)
        metrics = self._metrics(newest)
        for begin in range(0, len(metrics), _BATCH):
            there.client.log_batch(there.id, metrics=metrics[begin : begin + _BATCH])
        if newest.ended:
            self._send_end(there, newest)
        there.tag({_CURSOR: json.dumps(asdict(newest))})
        self._cursor = newest

    def _connect(self) -> MLflowRun:
        """Open the MLflow run, and read from its tags how far it has come."""
        there = open_run(self._tracker, self._history, self._clean)
        self.uri, self.where = there.uri, there.where
        if _CURSOR in there.tags:
            self._cursor = _Cursor(**json.loads(there.tags[_CURSOR]))
        else:
            from mlflow.entities import Param, RunTag

            record = self._history.record
            values = params(record.name, record.seed, self._history.description)
            there.client.log_inputs(there.id, datasets=datasets_of(self._history.about))
            there.client.log_batch(
                there.id,
                params=[Param(*pair) for pair in clean_values(values, self._clean).items()],
                tags=[RunTag(_CURSOR, json.dumps(asdict(self._cursor)))],
            )
        self._there = there
        return there

    def _newest(self, over: bool) -> _Cursor | None:
        """Return how far the journal is; ``None`` where there is nothing to send."""
        if not over and not any(self._history.entries(UpdateEnded, after=self._cursor.event)):
            return None
        ((event, effect, ended),) = self._history.reader.rows(_NEWEST, (self._history.run,))
        # MLflow may know more than an older copy of the journal holds.
        event, effect = max(event, self._cursor.event), max(effect, self._cursor.effect)
        newest = _Cursor(event, effect, ended if over else 0.0)
        return None if newest == self._cursor else newest

    def _send_rows(self, there: MLflowRun, newest: _Cursor, folder: str, select: str) -> None:
        import pyarrow
        import pyarrow.parquet

        bounds = (self._history.run, self._cursor.effect, newest.effect)
        sql = f"{select} AND e.run = ? AND e.id > ? AND e.id <= ? ORDER BY e.id"
        rows = clean_values(self._history.reader.rows(sql, bounds), self._clean)
        if not rows:
            return
        schema = pyarrow.schema([(name, _TYPES.get(name, "string")) for name in rows[0]])
        with tempfile.TemporaryDirectory(prefix="combee-") as place:
            file = Path(place, f"{self._cursor.effect + 1:08d}.parquet")
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), file)
            there.client.log_artifact(there.id, str(file), folder)

    def _metrics(self, newest: _Cursor) -> list[Metric]:
        from mlflow.entities import Metric

        points = []
        ends = self._history.entries(UpdateEnded, after=self._cursor.event, upto=newest.event)
        for entry in ends:
            at = round(entry.at * 1000)
            for name, value in update_metrics(self._history, entry).items():
                points.append(Metric(name, value, at, entry.step))
        if newest.ended:
            at = round(newest.ended * 1000)
            last = max((entry.step for entry in self._history.entries(UpdateEnded)), default=0)
            for name, value in end_metrics(self._history).items():
                later = name in _LATER or name.startswith(_LATER_GROUPS)
                points.append(Metric(name, value, at, last + later))
        return points

    def _send_end(self, there: MLflowRun, newest: _Cursor) -> None:
        from combee_dspy.tracking.report import render_report

        history, clean = self._history, self._clean
        there.log_text("report.html", render_report(history))
        log_lessons(there, history, clean)
        chosen = chosen_of(read_candidates(history))
        if chosen is not None:
            for component, text in clean_values(chosen.texts, clean).items():
                there.log_text(f"prompts/{plain_name(component)}.txt", text)
            log_traces(there, history, chosen, clean)
        log_program(there, history, chosen.score if chosen else None, clean)
        note = clean(description(history))
        verdict = str(figures_of(history).verdict or NO_HELDOUT)
        there.tag({_VERDICT: verdict, _NOTE: note})
        status = _STATUS.get(history.record.state, "KILLED")
        there.client.set_terminated(there.id, status, end_time=round(newest.ended * 1000))
