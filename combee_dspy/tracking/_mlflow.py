"""Records runs in MLflow: each row of their journals exactly once, whoever dies in between."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import shlex
import sys
import tempfile
import time
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from combee_dspy.events import UpdateEnded
from combee_dspy.exceptions import ArgumentValueError, CombeeError, MissingDistributionError
from combee_dspy.files import check_database
from combee_dspy.journal import Journal, Reader, RunHistory, journal_file
from combee_dspy.strategies import parameters
from combee_dspy.tracking._base import Follower, Tracker
from combee_dspy.tracking._caller import active_run
from combee_dspy.tracking._candidates import candidates_of, chosen_of
from combee_dspy.tracking._metrics import charted, description, end_metrics, update_metrics
from combee_dspy.tracking._mlflow_end import Legacy, datasets_of, registered
from combee_dspy.tracking._params import params, title
from combee_dspy.tracking._runs import figures_of
from combee_dspy.tracking._sql import CALLS, ROLLOUT
from combee_dspy.tracking._text import clean_values, cleaner, one_line

__all__ = ["MLflowTracker", "replay"]

_logger = logging.getLogger(__name__)

# MLflow's own defaults block for minutes on a server that is down. Seconds, and tries after the
# first.
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
# Tags of MLflow's own prefix are not shown: how far a run has come is nobody's label.
_RUN, _CURSOR, _PENDING = "mlflow.combee.run", "mlflow.combee.cursor", "mlflow.combee.pending"
_GAIN, _NOTE = "combee.heldout", "mlflow.note.content"
_STATUS = {"finished": "FINISHED", "failed": "FAILED"}
_SQLITE = "sqlite:///"
_EXPERIMENT = "combee_dspy"
_AGAIN = 15.0  # seconds until a store that did not answer is asked again
_SUMMED = ("lessons/", "tokens/", "dollars/"), ("cost/dollars", "cost/unpriced_calls")
_BATCH = 1_000  # metrics in one call, MLflow's limit
_COUNTS = (
    *("id", "run", "step", "replicate", "calls", "errors", "cached"),
    *("tokens", "tokens_task", "tokens_evaluator", "prompt_tokens", "completion_tokens"),
)
_AMOUNTS = ("score", "started", "ended", "queued", "seconds", "dollars", "gpu_seconds")
_TYPES = {**dict.fromkeys(_COUNTS, "int64"), **dict.fromkeys(_AMOUNTS, "float64")}
"""Types of the columns of a Parquet file; the others are texts."""


@parameters
class MLflowTracker(Tracker):
    """Records each run as one MLflow run.

    At the end of an update, its metrics and what was bought since the last one, as Parquet files,
    go to MLflow: ``rollouts/`` has a row for each rollout, with the models of task, proposer and
    evaluator, the prompt's hash, split and score, tokens by role, seconds and GPU-seconds;
    ``calls/`` has a row for each role and model that an effect asked: rollouts and their judges,
    readers, merges, writers and reflectors. At the end of the run also ``report.html``, the
    chosen texts and held-out figures. How far it has come stands in the MLflow
    run's tags, so that each row arrives exactly once, whoever dies in between. A
    store that is slow or dead slows nothing: what it missed, ``combee track replay
    FOLDER`` completes later, for a run with a ``log_dir``. Keys are removed from everything.

    Each setting is a parameter of its own name (``aggregator``, ``num_threads``, ``seed``,
    ``search.staleness``); what it ran on comes in the groups ``model/``, ``size/``, ``digest/`` and
    ``version/``. Metrics, with step = update: ``score/best``, ``score/candidate``,
    ``score/train``, ``cost/rollouts``, ``cost/dollars``, ``tokens/<role>``, ``dollars/<role>``,
    ``batch/size``, ``scan/kept``, where a book is kept ``lessons/<state>`` and ``lessons/void``,
    and, at the end, ``score/chosen`` (validation of the program that is returned),
    ``score/heldout_before``, ``score/heldout``, ``cost/seconds``, ``cost/gpu_seconds``
    and ``cost/dollars_a_point``. Tokens and dollars have one more point at the end, with the
    reading of the held-out set (``cost/heldout_rollouts``) included. A model without a price takes
    nothing from the dollars of others: ``cost/unpriced_calls`` counts its calls. All others are in
    ``figures.json``.
    The books are ``books/<component>.json``, every decision about them the table
    ``decisions.json``. The tag ``combee.heldout`` and the description's first line say whether the
    held-out figures are a gain or a loss. Splits are the run's datasets, by name, digest and size.
    The returned program is a logged model whose one file is ``program.json``: what ``program.load``
    reads, no pickle and no LM, so no key. The ten most telling rollouts are traces, with score,
    feedback and tokens: of the returned program on validation rows, those that the student had
    wrong and those that it had right. ``mlflow.dspy.autolog`` changes nothing of it: its own traces
    of a compilation, which cost more than the rollouts, are not made beside this tracker.

    Sets ``MLFLOW_DISABLE_TELEMETRY``, ``MLFLOW_HTTP_REQUEST_TIMEOUT`` (10 s) and
    ``MLFLOW_HTTP_REQUEST_MAX_RETRIES`` (1) where the environment does not.

    Args:
        experiment: The experiment's name, made where it is missing; by default the one that
            ``mlflow.set_experiment`` or MLflow's environment names, else ``"combee_dspy"``.
        tracking_uri: The store; the one that is set for MLflow by default.
        run_name: The MLflow run's name; by default the task's, the aggregator's and the number of
            training rows.
        parent: Id of an MLflow run in the same store that each run is nested in; by default the
            one that is active where ``compile`` is called.
        register: Whether the chosen texts become versions in MLflow's prompt registry, under the
            name of the program's class and the component, such as ``QA.answer``. A text that is the
            latest version already makes no other. The program becomes a version of the registered
            model of its class; its alias ``best`` goes to the version with the best validation
            score on the same rows, and to the newest where the rows are others.
    """

    name: ClassVar[str] = "mlflow"

    experiment: str | None = None
    tracking_uri: str | None = None
    run_name: str | None = None
    parent: str | None = None
    register: bool = False

    def check(self) -> None:
        """Refuse to begin without MLflow.

        Raises:
            MissingDistributionError: MLflow or pyarrow is not installed.
        """
        for module in ("mlflow", "pyarrow"):
            # What is loaded may have no spec to find, as a stand-in in a test has none.
            if module not in sys.modules and importlib.util.find_spec(module) is None:
                raise MissingDistributionError("tracker 'mlflow'", "combee-dspy[mlflow]")

    def open(self, reader: Reader, run: int) -> Follower:
        """Return who records one run. Nothing is asked of MLflow yet."""
        return _Shipper(self, reader, run)


def replay(
    place: Path | str, *, tracking_uri: str | None = None, experiment: str | None = None
) -> tuple[str, ...]:
    """Tell MLflow what it has missed of the runs in a journal, and return where to look at each.

    Args:
        place: A ``log_dir``, or its journal.
        tracking_uri: As given to :class:`MLflowTracker`; with another, a run is recorded once more,
            there.
        experiment: The same.

    Raises:
        ArgumentValueError: There is no journal, or the store cannot be written to.
        JournalHeldError: A run is still writing to the journal.
        MissingDistributionError: MLflow is not installed.
    """
    path = journal_file(place)
    tracker = MLflowTracker(tracking_uri=tracking_uri, experiment=experiment)
    tracker.check()
    places = []
    # To hold the journal is to know that no run goes on, and that nobody else replays it. Nobody
    # writes to a copy.
    held = closing(Journal(path.parent)) if path.name == "journal.sqlite" else nullcontext()
    with held, Reader(path) as reader:
        for row in reader.rows("SELECT id FROM run ORDER BY id"):
            shipper = _Shipper(tracker, reader, row["id"])
            try:
                shipper.ship(over=True)
            except CombeeError:
                raise
            except Exception as error:  # noqa: BLE001 - a server that answers nonsense makes MLflow fail in any way
                message = one_line(cleaner()(str(error)), 300)
                remedy = "Start the server, or correct the address."
                raise ArgumentValueError(
                    "tracking_uri", shipper.uri, f"cannot be written to: {message}", remedy
                ) from None
            places.append(shipper.where)
    return tuple(places)


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

    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder:
        whole = Path(folder, path.name)
        mlflow.MlflowClient(tracking_uri=f"{_SQLITE}{whole}").search_experiments(max_results=1)
        with suppress(FileExistsError):  # another run has made it meanwhile
            os.link(whole, path)


@dataclass(frozen=True, slots=True)
class _Cursor:
    """How far MLflow knows a run: the last event, the last effect, and when it ended (0 where that
    is not told yet).
    """

    event: int = 0
    effect: int = 0
    ended: float = 0.0


class _Shipper(Follower):
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
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        import mlflow

        record, tracker = self._history.record, self._tracker
        named = json.dumps([record.name, record.created, record.seed, record.identity])
        identity = hashlib.sha256(named.encode()).hexdigest()[:32]
        make_store(tracker.tracking_uri or mlflow.get_tracking_uri())
        client = mlflow.MlflowClient(tracking_uri=tracker.tracking_uri)
        # mlflow.set_experiment leaves its choice there, which holds for the store that MLflow
        # itself is set to.
        experiment = (
            None
            if tracker.experiment or tracker.tracking_uri
            else os.environ.get("MLFLOW_EXPERIMENT_ID")
        )
        parent = tracker.parent or active_run(tracker.tracking_uri)
        if parent is not None and tracker.experiment is None:
            # MLflow shows a run below its parent only where both are in one experiment.
            experiment = client.get_run(parent).info.experiment_id
        if experiment is None:
            name = tracker.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or _EXPERIMENT
            home = client.get_experiment_by_name(name)
            experiment = client.create_experiment(name) if home is None else home.experiment_id
        runs = client.search_runs([experiment], f"tags.`{_RUN}` = '{identity}'", max_results=1)
        if runs:
            tags, self._id = runs[0].data.tags, runs[0].info.run_id
            if runs[0].info.status != "RUNNING" and record.state == "running":
                client.update_run(self._id, status="RUNNING")
        else:
            nested = {"mlflow.parentRunId": parent} if parent else {}
            tags = {
                _RUN: identity,
                "mlflow.source.name": "combee_dspy",
                "mlflow.source.type": "LOCAL",
                **nested,
            }
            name = self._clean(tracker.run_name or title(self._history))
            self._id = client.create_run(
                experiment, round(record.created * 1000), tags, name
            ).info.run_id
        if _CURSOR in tags:
            self._cursor = _Cursor(**json.loads(tags[_CURSOR]))
            self._pending = _Cursor(**json.loads(tags[_PENDING])) if tags.get(_PENDING) else None
            if self._pending is not None and record.state == "running":
                # Its end was pinned, and it has been taken up again since: that was not its end.
                self._pending = replace(self._pending, ended=0.0)
        else:
            decided = [
                mlflow.entities.Param(*pair)
                for pair in clean_values(
                    params(record.name, record.seed, self._history.description), self._clean
                ).items()
            ]
            cursor_tag = mlflow.entities.RunTag(_CURSOR, json.dumps(asdict(self._cursor)))
            client.log_inputs(self._id, datasets=datasets_of(self._history.about))
            client.log_batch(self._id, params=decided, tags=[cursor_tag])
        self._client = client
        self.uri = self._clean(tracker.tracking_uri or mlflow.get_tracking_uri())
        if self.uri.startswith(("http://", "https://")):
            self.where = f"{self.uri}/#/experiments/{experiment}/runs/{self._id}"
        else:
            self.where = f"mlflow ui --backend-store-uri {shlex.quote(self.uri)}  # run {self._id}"

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

    def _of_update(self, step: int, pinned: _Cursor) -> dict[str, float]:
        bounds = {"event": pinned.event, "effect": pinned.effect}
        return update_metrics(self._reader, self._run, step, **bounds)

    def _metrics(self, pinned: _Cursor) -> list[Any]:
        from mlflow.entities import Metric

        points = []
        for entry in self._history.entries(
            UpdateEnded, after=self._cursor.event, upto=pinned.event
        ):
            values = charted(self._of_update(entry.step, pinned))
            points += [
                Metric(name, value, round(entry.at * 1000), entry.step)
                for name, value in values.items()
            ]
        if pinned.ended:
            last = max((entry.step for entry in self._history.entries(UpdateEnded)), default=0)
            at, values = round(pinned.ended * 1000), charted(end_metrics(self._reader, self._run))
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
        self._client.log_text(self._id, json.dumps(self._figures(pinned), indent=2), "figures.json")
        left = Legacy(self._client, self._reader, self._run, self._id, self._clean)
        left.lessons()
        left.program(chosen, register=self._tracker.register)
        left.traces(chosen.get("candidate", ""))
        note = self._clean(description(self._reader, self._run))
        self._tag({_GAIN: figures_of(self._reader, self._run).gain, _NOTE: note})
        status = _STATUS.get(self._history.record.state, "KILLED")
        self._client.set_terminated(self._id, status, end_time=round(pinned.ended * 1000))

    def _figures(self, pinned: _Cursor) -> dict[str, Any]:
        updates = {
            entry.step: self._of_update(entry.step, pinned)
            for entry in self._history.entries(UpdateEnded, upto=pinned.event)
        }
        return {"updates": updates, "end": end_metrics(self._reader, self._run)}
