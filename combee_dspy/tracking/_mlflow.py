"""Records a run in MLflow: everything goes into the journal first, and from there to the server."""

from __future__ import annotations

import inspect
import logging
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from combee_dspy import events
from combee_dspy.tracking._base import Hook, Tracker
from combee_dspy.tracking._fold import TOLD_EVERY, Target
from combee_dspy.tracking._journal import Journal, new_folder
from combee_dspy.tracking._redact import Redactor
from combee_dspy.tracking._shipper import Shipper, ShipperThread
from combee_dspy.tracking._store import Place, connect, load_place, save_place, taken_up
from combee_dspy.tracking._summary import MAX_TAG
from combee_dspy.tracking._text import cut
from combee_dspy.tracking._writer import prompt_name

__all__ = ["MAX_TRACES", "MLflowHook", "MLflowTracker", "prompt_name", "target_of"]

_logger = logging.getLogger(__name__)

MAX_TRACES = 20
"""Traces of a run. Each costs some 8 ms of CPU, a hundred times what a rollout's line does."""

_PATIENCE, _LONGEST = 5.0, 60.0

_ENDS = (events.RunStarted, events.IterationFinished, events.RunFinished)


class MLflowTracker(Tracker):
    """Records each run as one MLflow run.

    Every rollout and event is first a line of a journal on this machine (see
    :mod:`combee_dspy.tracking._journal`); a thread of its own tells MLflow what
    the journal says. A server that is slow or dead slows nothing and stops
    nothing: at the end the run waits for it for some seconds, and then names
    the command that completes the record later, ``combee track replay``. Each
    rollout arrives exactly once, and no metric gets two values at one step.

    Parameters come in the groups ``run/``, ``strategy/``, ``model/``,
    ``size/``, ``digest/`` and ``version/``; metrics, with step = iteration, in
    ``val/``, ``train/``, ``batch/``, ``scan/``, ``candidates/``, ``rollouts/``,
    ``tokens/<role>``, ``calls/<role>``, ``cost/``, ``time/``, ``latency/``,
    ``diversity/``, ``retention/``, ``operators/``, ``calibration/``,
    ``heldout/`` and, at the end and the held-out set included, ``total/``. Under
    ``early/`` is what was begun for an iteration that had not come when the run ended.
    ``report.html`` tells the run on one page. All rollouts are
    Parquet files under ``rollouts/``; the most telling ones are
    ``telling_rollouts.json``, which the run page shows as a table, and traces
    with the tag ``combee.rollout_id``. Prompts are text artifacts under
    ``prompts/`` and, where the store has a prompt registry, versions named by
    :func:`prompt_name`. Splits are datasets with our own SHA-256. Keys are
    removed from everything that is written.

    Opening sets ``MLFLOW_DISABLE_TELEMETRY``, ``MLFLOW_HTTP_REQUEST_TIMEOUT``
    (10 s) and ``MLFLOW_HTTP_REQUEST_MAX_RETRIES`` (1) where the environment
    does not.

    Args:
        experiment: The experiment's name; made where it is missing. Ignored where an active run is joined.
        tracking_uri: The store. ``None``: the one set for MLflow, else
            ``combee_runs/mlflow.db`` under the working directory.
        run_name: The run's name; ``None`` takes the run's own, made of task, shape and seed.
        registry: Whether to register the prompts.
        nested: Whether to record a run nested in the active one, instead of joining it: one
            for each compile of a job that compiles several programs. See :meth:`group` for
            compiles that run in threads of their own.
        traces: Traces at most, up to :data:`MAX_TRACES`.
        system_metrics: Whether to record the machine's load too; needs psutil.
        spool: Where journals of runs without a ``log_dir`` lie.
        parent: Id of an MLflow run in the same store; each run is nested in it, in whatever thread it begins.
        every: Seconds between two tellings of a run that goes on: iterations that end sooner share one. 0 tells
            of each by itself, at some 25 ms of CPU. A run that is taken up again keeps what it began with.
    """

    name: ClassVar[str] = "mlflow"

    def __init__(  # noqa: PLR0913 - what people change about a record, each on its own
        self,
        experiment: str = "combee_dspy",
        tracking_uri: str | None = None,
        run_name: str | None = None,
        registry: bool = True,
        nested: bool = False,
        traces: int = MAX_TRACES,
        system_metrics: bool = False,
        spool: str = "combee_runs/journals",
        parent: str | None = None,
        every: float = TOLD_EVERY,
    ) -> None:
        self.experiment = experiment
        self.tracking_uri = tracking_uri
        self.run_name = run_name
        self.registry = registry
        self.nested = nested
        self.traces = traces
        self.system_metrics = system_metrics
        self.spool = spool
        self.parent = parent
        self.every = every

    @contextmanager
    def group(self, name: str, description: str = "") -> Iterator[MLflowTracker]:
        """Make one run for a job that compiles several programs, and yield the tracker of those.

        Where a run is active in this thread and no other store is asked for, that
        one is the parent, and stays as it is. The tracker may be given to several
        compiles at once: it holds no state of a run.

        Args:
            name: The parent's name.
            description: Its description, the headline first.

        Raises:
            ArgumentValueError: As :meth:`open` does.

        Example:
            >>> with MLflowTracker().group("three tasks, seed 0") as tracker:  # doctest: +SKIP
            ...     programs = [Combee(metric, tracker=tracker).compile(one, trainset=rows) for one in tasks]
        """
        place = connect(self.experiment, self.tracking_uri, name, parent=self.parent)
        made = not place.joined
        if made and description:
            place.client.set_tag(place.run_id, "mlflow.note.content", cut(Redactor().text(description), MAX_TAG))
        status = "FAILED"
        try:
            values = {field: getattr(self, field) for field in inspect.signature(type(self)).parameters}
            yield type(self)(**{**values, "tracking_uri": place.uri, "parent": place.run_id, "nested": False})
            status = "FINISHED"
        finally:
            if made:
                _end(place, status)

    def journal_folder(self) -> Path:
        """Return a new folder in the spool."""
        return new_folder(Path(self.spool).absolute())

    def open(self, journal: Journal | None = None) -> MLflowHook:
        """Make the run, or join the one that is active in this thread.

        A journal that was recorded before goes on in its own run, whatever run is
        active. A new SQLite store takes several seconds to set up.

        Args:
            journal: Written by the run itself; ``None`` lets the hook write one of its own.

        Raises:
            ArgumentValueError: MLflow is not installed, or the store or the journal cannot be used.
        """
        saved = {} if journal is None else load_place(journal.folder) or {}
        known = saved.get("run_id")
        place = connect(
            self.experiment, self.tracking_uri, self.run_name, nested=self.nested, known=known, parent=self.parent
        )
        return MLflowHook(self, taken_up(place, saved), journal)


def target_of(place: Place, options: dict[str, Any]) -> Target:
    """Return what a fold must know of a place."""
    return Target(
        joined=place.joined,
        named=place.named,
        described=place.described,
        params=place.params,
        registry=bool(options.get("registry", True)),
        traces=max(0, min(int(options.get("traces", MAX_TRACES)), MAX_TRACES)),
        # A journal that is older than the option was told of at the end of every iteration.
        every=float(options.get("every", 0.0)),
    )


class MLflowHook(Hook):
    """Ships one run's journal. Used by the thread that delivers events, and by no other.

    Args:
        tracker: How to record.
        place: Where.
        journal: The run's; ``None`` makes one that holds what this hook hears.
    """

    def __init__(self, tracker: MLflowTracker, place: Place, journal: Journal | None = None) -> None:
        self.place = place
        self.journal = Journal(tracker.journal_folder()) if journal is None else journal
        self._own = self.journal if journal is None else None
        self.wants = _ENDS if journal is not None else None
        options = {name: getattr(tracker, name) for name in ("experiment", "registry", "traces", "every")}
        saved = load_place(self.journal.folder) or {}
        if saved.get("run_id") == place.run_id:
            # The parts that are there were cut by this; cut otherwise, others would hold the same rollouts again.
            options["every"] = target_of(place, saved.get("options") or {}).every
        save_place(self.journal.folder, place, options)
        target = target_of(place, options)
        shipper = Shipper(self.journal.folder, place, target, tracker.experiment, self.journal.file)
        self.shipper = ShipperThread(shipper)
        self._monitor = _monitor(place) if tracker.system_metrics else None
        self.where = self._shown()

    @property
    def run_id(self) -> str:
        """The MLflow run's id."""
        return self.place.run_id

    def _shown(self) -> str:
        uri = Redactor().text(self.place.uri)
        if uri.startswith(("http://", "https://")):
            return f"{uri}/#/experiments/{self.place.experiment_id}/runs/{self.run_id}"
        return f"mlflow ui --backend-store-uri {shlex.quote(uri)}  # run {self.run_id}"

    def handle(self, event: events.Event) -> None:
        """Hear one event; wake the shipper where there is something to tell."""
        if self._own is not None:
            self._own.record(event)
        if isinstance(event, _ENDS):
            self.shipper.wake()

    def close(self) -> None:
        """Wait a little for what is left to be told, and say what completes it where MLflow does not answer."""
        if self._own is not None:
            self._own.close()
        if self._monitor is not None:
            self._monitor.finish()
        if not self.shipper.close(_PATIENCE, _LONGEST):
            _logger.warning(
                "MLflow did not take all of run %s. Nothing is lost: complete it with `combee track replay %s`.",
                self.run_id,
                shlex.quote(str(self.journal.folder)),
            )


def _end(place: Place, status: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        place.client.set_terminated(place.run_id, status)
    except (MlflowException, OSError) as error:
        # What the compiles have returned must not be lost for it.
        _logger.warning("The run %s is not ended in MLflow: %s", place.run_id, Redactor().text(str(error))[:300])


def _monitor(place: Place) -> Any:
    try:
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        monitor = SystemMetricsMonitor(place.run_id, tracking_uri=place.uri)
        monitor.start()
    except Exception as error:  # noqa: BLE001 - MLflow raises a bare Exception without psutil; a run goes on without
        remedy = " Install it with `pip install combee-dspy[mlflow]`." if "psutil" in str(error) else ""
        _logger.warning("The machine's load is not recorded: %s.%s", Redactor().text(str(error))[:300], remedy)
        return None
    return monitor
