"""Records a run in MLflow: parameters, metrics per iteration, prompts, and the rollouts as a table."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Mapping
from functools import singledispatchmethod
from importlib import metadata
from typing import ClassVar

from combee_dspy import events
from combee_dspy.tracking._base import Hook, Tracker
from combee_dspy.tracking._redact import Redactor
from combee_dspy.tracking._rows import Row, parquet_of, row_of, table_of
from combee_dspy.tracking._store import Outbox, Place, connect
from combee_dspy.tracking._summary import MAX_TAG, Summary, params_of
from combee_dspy.tracking._text import clean, cut
from combee_dspy.tracking.slug import METRIC_PART, PROMPT_NAME, shorten, to_slug

__all__ = ["MLflowHook", "MLflowTracker", "prompt_name"]

_logger = logging.getLogger(__name__)

TABLE_ROWS = 5_000
"""Rows of the table that a browser opens; all rollouts are in the Parquet files."""

MAX_TEMPLATE = 100_000
"""Characters of a prompt that MLflow's registry takes."""

_TABLE = "rollouts.json"


def prompt_name(experiment: str, component: str) -> str:
    """Return the registered name of a component's prompt: both parts as slugs, joined by the first dot."""
    return f"{shorten(to_slug(experiment, METRIC_PART), 80)}.{shorten(to_slug(component, PROMPT_NAME), 160)}"


class MLflowTracker(Tracker):
    """Records each run as one MLflow run.

    Parameters come in the groups ``run/``, ``strategy/``, ``model/``,
    ``size/``, ``digest/`` and ``version/``; metrics, with step = iteration, in
    ``val/``, ``train/``, ``batch/``, ``scan/``, ``candidates/``, ``rollouts/``,
    ``tokens/<role>``, ``calls/<role>``, ``cost/``, ``time/``, ``latency/`` and
    ``heldout/``. Prompts are text artifacts under ``prompts/`` and, where the
    store has a prompt registry, versions named by :func:`prompt_name`.
    Rollouts are ``rollouts.json``, which the run page shows as a table, and
    one Parquet file per iteration under ``rollouts/``. Keys are removed from
    everything that is written.

    A server that stops answering slows nothing and stops nothing: what could
    not be written waits, is tried again at the end of each iteration and once
    more at the end of the run, and is then given up with a warning.

    Opening sets ``MLFLOW_DISABLE_TELEMETRY``, ``MLFLOW_HTTP_REQUEST_TIMEOUT``
    (10 s) and ``MLFLOW_HTTP_REQUEST_MAX_RETRIES`` (1) where the environment
    does not.

    Args:
        experiment: The experiment's name; made where it is missing. Ignored where an active run is joined.
        tracking_uri: The store. ``None``: the one set for MLflow, else
            ``combee_runs/mlflow.db`` under the working directory.
        run_name: The run's name; ``None`` takes the run's own, made of task, shape and seed.
        registry: Whether to register the prompts.
    """

    name: ClassVar[str] = "mlflow"

    def __init__(
        self,
        experiment: str = "combee_dspy",
        tracking_uri: str | None = None,
        run_name: str | None = None,
        registry: bool = True,
    ) -> None:
        self.experiment = experiment
        self.tracking_uri = tracking_uri
        self.run_name = run_name
        self.registry = registry

    def open(self) -> MLflowHook:
        """Make the run, or join the one that is active in this thread.

        A new SQLite store takes several seconds to set up.

        Raises:
            ArgumentValueError: MLflow is not installed, or the store cannot be used.
        """
        return MLflowHook(self, connect(self.experiment, self.tracking_uri, self.run_name))


class MLflowHook(Hook):
    """Writes one run. Used by the thread that delivers events, and by no other.

    Args:
        tracker: How to record.
        place: Where.
    """

    def __init__(self, tracker: MLflowTracker, place: Place) -> None:
        self.place = place
        self._tracker = tracker
        self._redactor = Redactor()
        self._summary = Summary()
        self._outbox = Outbox(place)
        self._rows: list[Row] = []
        self._shipped = 0
        self._parts = 0
        self._registry = tracker.registry
        self._prompts: dict[str, tuple[str, int]] = {}
        self._best = ""
        self.where = self._shown()

    @property
    def run_id(self) -> str:
        """The MLflow run's id."""
        return self.place.run_id

    def _shown(self) -> str:
        uri = self._redactor.text(self.place.uri)
        if uri.startswith(("http://", "https://")):
            return f"{uri}/#/experiments/{self.place.experiment_id}/runs/{self.run_id}"
        return f"mlflow ui --backend-store-uri {shlex.quote(uri)}  # run {self.run_id}"

    @singledispatchmethod
    def handle(self, event: events.Event) -> None:
        """Hear one event; write at the beginning, at the end of iterations, and at the end."""
        self._summary.hear(event)

    @handle.register
    def _(self, event: events.RunStarted) -> None:
        self._summary.hear(event)
        params = params_of(event, self._redactor, _versions())
        self._outbox.batch(
            params={name: value for name, value in params.items() if name not in self.place.params},
            tags={"combee.fit_for_claims": str(not event.warnings).lower(), **self._note()},
        )
        if not self.place.joined and self._tracker.run_name is None:
            client, name = self.place.client, self._redactor.text(cut(event.name, 250))
            self._outbox.add(lambda: client.update_run(self.run_id, name=name))
        self._texts(event.components, "prompts/seed")
        self._outbox.flush()

    @handle.register
    def _(self, event: events.IterationStarted) -> None:
        if self._summary.step == 0:
            self._close_step(0)

    @handle.register
    def _(self, event: events.RolloutFinished) -> None:
        self._summary.hear(event)
        self._rows.append(row_of(event, self._redactor))

    @handle.register
    def _(self, event: events.IterationFinished) -> None:
        self._summary.hear(event)
        self._close_step(event.iteration)

    @handle.register
    def _(self, event: events.RunFinished) -> None:
        self._summary.hear(event)
        self._outbox.batch(tags={"combee.stop_reason": self._redactor.text(cut(event.reason, MAX_TAG))})
        self._texts(event.texts, "prompts/best")
        texts = {component: self._redactor.text(text) for component, text in event.texts.items()}
        self._outbox.data(texts, "best_candidate.json")

    def close(self) -> None:
        """Write what is left, and end the run unless the user started it."""
        summary, place = self._summary, self.place
        self._close_step(summary.step, last=True)
        self._outbox.data(table_of(self._rows, TABLE_ROWS), _TABLE)
        self._outbox.batch(
            tags={
                # What makes the run page show the file as a table.
                "mlflow.loggedArtifacts": json.dumps([{"path": _TABLE, "type": "table"}]),
                "combee.rollouts": str(len(self._rows)),
            }
        )
        if summary.decisions:
            self._outbox.data(summary.decisions, "batch_decisions.json")
        if summary.errors:
            lines = [f"{one.iteration} {one.where}: {one.error}" for one in summary.errors]
            self._outbox.text(self._redactor.text("\n".join(lines)), "errors.txt")
        if not place.joined:
            self._outbox.add(lambda: place.client.set_terminated(self.run_id, summary.status))
        self._outbox.flush(last=True)
        if len(self._outbox):
            _logger.warning(
                "MLflow did not take the last %d writes: run %s is incomplete there.", len(self._outbox), self.run_id
            )

    def _close_step(self, iteration: int, *, last: bool = False) -> None:
        """Write the metrics, prompts and rollouts since the last call."""
        self._outbox.batch(metrics=self._summary.take(iteration), step=iteration, tags=self._note())
        best = self._summary.best
        if best is not None and best.candidate_id != self._best:
            self._best = best.candidate_id
            if best.index != 0:
                self._texts(best.texts, f"prompts/iteration-{iteration:04d}")
            self._register(best)
        new = self._rows[self._shipped :]
        content = parquet_of(new) if new else None
        if content is not None:
            self._parts += 1
            self._outbox.binary(content, f"rollouts/part-{self._parts:04d}.parquet")
            self._shipped = len(self._rows)
        if not last:
            self._outbox.flush()

    def _note(self) -> dict[str, str]:
        if self.place.described:
            return {}
        return {"mlflow.note.content": self._redactor.text(self._summary.description())}

    def _texts(self, texts: Mapping[str, str], folder: str) -> None:
        for component, text in texts.items():
            path = f"{folder}/{shorten(to_slug(component, PROMPT_NAME), 160)}.txt"
            self._outbox.text(self._redactor.text(clean(text)), path)

    def _register(self, best: events.ValidationFinished) -> None:
        """Register the texts that differ from what this run registered before."""
        for component, text in best.texts.items():
            known, _ = self._prompts.get(component, ("", 0))
            if self._registry and text != known and 0 < len(text) <= MAX_TEMPLATE:
                self._register_one(component, text, best)
        links = [{"name": self._name(component), "version": str(v)} for component, (_, v) in self._prompts.items()]
        if links:
            # MLflow's own way to link prompts goes through its global store, which may be another one.
            self._outbox.batch(tags={"mlflow.linkedPrompts": json.dumps(links)})

    def _register_one(self, component: str, text: str, best: events.ValidationFinished) -> None:
        from mlflow.exceptions import MlflowException

        tags = {
            "combee.component": cut(component, MAX_TAG),
            "combee.run_id": self.run_id,
            "combee.candidate_id": best.candidate_id,
            "combee.validation": f"{best.score:.6f}",
            "_mlflow_experiment_ids": f",{self.place.experiment_id},",
        }
        try:
            version = self.place.client.register_prompt(
                self._name(component), self._redactor.text(clean(text)), tags=tags
            )
        except (MlflowException, OSError) as error:
            # Not tried again: a registration that did arrive would become a second version.
            self._registry = False
            _logger.warning("Prompts are not registered from here on: %s", self._redactor.text(str(error))[:300])
            return
        self._prompts[component] = (text, int(version.version))

    def _name(self, component: str) -> str:
        return prompt_name(self._tracker.experiment, component)


def _versions() -> dict[str, str]:
    found = {}
    for distribution in ("combee-dspy", "dspy", "gepa", "mlflow"):
        try:
            found[distribution.replace("-", "_")] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return found
