"""From a journal to what MLflow is to be told: a fold that always gives the same writes for the same lines."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import singledispatchmethod
from pathlib import Path
from typing import Any

from combee_dspy import events
from combee_dspy.tracking._codec import decode
from combee_dspy.tracking._journal import Entry, read_at
from combee_dspy.tracking._rows import Cells, Row, cells_of, row_of, table_of
from combee_dspy.tracking._summary import MAX_TAG, Summary, params_of
from combee_dspy.tracking._text import cut
from combee_dspy.tracking._writes import Batch, Datasets, Name, Part, Register, Report, Status, Text, Traces, Write
from combee_dspy.tracking.report import Collector, seen_in
from combee_dspy.tracking.slug import PROMPT_NAME, shorten, to_slug

__all__ = ["MAX_TEMPLATE", "TABLE", "TOLD_EVERY", "Fold", "Target"]

MAX_TEMPLATE = 100_000
"""Characters of a prompt that MLflow's registry takes."""

MAX_ROWS = 5_000
"""Rollouts in one Parquet file; an iteration's last one holds fewer."""

TABLE = "telling_rollouts.json"

TOLD_EVERY = 10.0
"""Default seconds between two tellings of a run that goes on, by the journal's clock: short iterations share one.

What MLflow is told costs some 25 ms of CPU however little it is, as much as several hundred rollouts.
"""

_WHY = {
    "improved": "biggest gain over its parent",
    "fell": "biggest loss against its parent",
    "error": "error",
    "worst": "worst",
    "best": "best",
}


@dataclass(frozen=True, slots=True)
class Target:
    """What the fold must know of where its writes go.

    Attributes:
        joined: Whether the MLflow run is the user's own, which keeps its name and its status.
        named: Whether the run was given a name.
        described: Whether it had a description before.
        params: Parameters that it had before.
        registry: Whether prompts are registered.
        traces: Traces at most.
        every: See :data:`TOLD_EVERY`.
    """

    joined: bool = False
    named: bool = False
    described: bool = False
    params: frozenset[str] = frozenset()
    registry: bool = True
    traces: int = 20
    every: float = TOLD_EVERY


class Fold:
    """Hears a journal's lines in order and says what to write. Not thread-safe.

    Nothing but the lines decides: heard again from the beginning, they give the
    same writes after the same lines. So whoever has noted the last line whose
    writes were done can go on from there, in another process too.

    Args:
        folder: The journal's, from which a few rollouts are read again at the end.
        target: Where the writes go.
    """

    def __init__(self, folder: Path, target: Target) -> None:
        self._folder = folder
        self._target = target
        self._summary = Summary()
        self._report = Collector()
        self._rows: list[Cells] = []
        self._places: dict[str, tuple[str, int]] = {}
        self._parents: dict[str, str] = {}
        self._params = set(target.params)
        self._sent: set[tuple[str, int]] = set()
        self._registered: dict[str, str] = {}
        self._provenance: dict[str, str] = {}
        self._run_id = ""
        self._best = ""
        self._at = 0.0
        self._points: list[tuple[str, float, int, int]] = []
        self._told = -math.inf
        self._ended = True
        self.rollouts = 0

    def feed(self, entry: Entry) -> list[Write]:
        """Hear one line and return what it makes necessary, in order."""
        self._at = float(entry.data.get("at") or self._at)
        kind = entry.kind
        if kind == "rollout":
            return self._rollout(entry)
        writes: list[Write] = []
        if kind == "journal":
            # The process before was killed where it did not say that it ended.
            writes = [] if self._ended else self._tell()
            self._ended = False
            self._run_id = str(entry.data.get("run_id", ""))
        elif kind == "provenance":
            self._provenance = {str(name): str(value) for name, value in (entry.data.get("data") or {}).items()}
        elif kind == "end":
            self._ended = True
            writes = self.finish()
        else:
            event = decode(kind, entry.data.get("data") or {})
            if event is not None:
                self._summary.hear(event)
                self._report.hear(event, self._at)
                writes = self._hear(event)
        return writes

    def finish(self) -> list[Write]:
        """Return what completes the run as far as it was heard. May be called again after further lines."""
        summary = self._summary
        writes: list[Write] = []
        # An iteration that was cut short has no metrics: taken up again, it would get a second value at its step.
        if summary.finished is not None:
            writes = self._step(summary.last)
            for iteration, found in summary.take_early().items():
                self._add(iteration, found)
        writes += self._tell()
        report = self._report.data()
        candidates = {"seed": dict(report.seed_texts), "candidates": [asdict(one) for one in report.candidates]}
        telling, tags = self._telling()
        writes += [*telling, Report(report), _json("candidates.json", candidates)]
        if summary.decisions:
            writes.append(_json("batch_decisions.json", summary.decisions))
        if summary.errors:
            lines = (f"{one.iteration} {one.where}: {one.error}" for one in summary.errors)
            writes.append(Text("errors.txt", "\n".join(lines)))
        writes.append(Batch(tags={"combee.rollouts": str(self.rollouts), **tags, **self._note()}))
        if not self._target.joined:
            writes.append(Status(summary.status, self._now))
        return writes

    @property
    def _now(self) -> int:
        return int(self._at * 1000)

    def _rollout(self, entry: Entry) -> list[Write]:
        # As it was read: making a record of each would cost more than all else that is done with it here.
        data = entry.data
        self._rows.append(cells_of(data))
        self.rollouts += 1
        self._places[data["rollout_id"]] = (entry.file, entry.offset)
        self._summary.hear_rollout(data)
        self._report.rollout(seen_in(data), self._at)
        return self._part() if len(self._rows) >= MAX_ROWS else []

    @singledispatchmethod
    def _hear(self, event: events.Event) -> list[Write]:
        return []

    @_hear.register
    def _(self, event: events.RunStarted) -> list[Write]:
        params = params_of(event, self._provenance)
        new = {name: value for name, value in params.items() if name not in self._params}
        self._params.update(new)
        tags = {"combee.fit_for_claims": str(not event.warnings).lower(), "combee.journal": self._run_id}
        writes: list[Write] = [Batch(params=new, tags={**tags, **self._note()})]
        if not self._target.joined:
            writes.append(Status("RUNNING", self._now))
            if not self._target.named:
                writes.append(Name(cut(event.name, 250)))
        return [*writes, Datasets(event.sizes, event.digests), *_texts(event.components, "prompts/seed")]

    @_hear.register
    def _(self, event: events.CandidateProposed) -> list[Write]:
        self._parents[event.candidate_id] = ", ".join(event.parents)
        return []

    @_hear.register
    def _(self, event: events.IterationStarted) -> list[Write]:
        # The seed's validation comes before the first iteration.
        return [*self._step(0), *self._tell()] if self._summary.step == 0 else []

    @_hear.register
    def _(self, event: events.IterationFinished) -> list[Write]:
        writes = self._step(event.iteration)
        return [*writes, *self._tell()] if self._at - self._told >= self._target.every else writes

    @_hear.register
    def _(self, event: events.RunFinished) -> list[Write]:
        writes: list[Write] = [Batch(tags={"combee.stop_reason": cut(event.reason, MAX_TAG)})]
        writes += [*_texts(event.texts, "prompts/best"), _json("best_candidate.json", dict(event.texts))]
        if event.state:
            writes.append(_json("best_program.json", dict(event.state)))
        return writes

    def _step(self, iteration: int) -> list[Write]:
        """Close an iteration: each of its metrics once, whatever comes later."""
        self._add(iteration, self._summary.take(iteration))
        writes: list[Write] = []
        best = self._summary.best
        if best is not None and best.candidate_id != self._best:
            self._best = best.candidate_id
            if best.index != 0:
                writes += _texts(best.texts, f"prompts/iteration-{iteration:04d}")
            writes += self._register(best)
        return writes

    def _add(self, iteration: int, found: Mapping[str, float]) -> None:
        new = {name: value for name, value in found.items() if (name, iteration) not in self._sent}
        self._sent.update((name, iteration) for name in new)
        self._points += [(name, value, self._now, iteration) for name, value in new.items()]

    def _register(self, best: events.ValidationFinished) -> list[Write]:
        writes: list[Write] = []
        for component, text in best.texts.items():
            # A text that did not change is no new version.
            if not self._target.registry or text == self._registered.get(component):
                continue
            if not 0 < len(text) <= MAX_TEMPLATE:
                continue
            self._registered[component] = text
            tags = {
                "combee.component": cut(component, MAX_TAG),
                "combee.candidate_id": best.candidate_id,
                "combee.parent_id": self._parents.get(best.candidate_id, ""),
                "combee.validation": f"{best.score:.6f}",
            }
            writes.append(Register(component, text, tags))
        return writes

    def _tell(self) -> list[Write]:
        """Say what was gathered since this was last called."""
        points, self._points = tuple(self._points), []
        writes = [*([Batch(points, tags=self._note())] if points else []), *self._part()]
        self._told = self._at if writes else self._told
        return writes

    def _part(self) -> list[Write]:
        if not self._rows:
            return []
        rows, self._rows = tuple(self._rows), []
        first, last = (_serial(row) for row in (rows[0], rows[-1]))
        # Named by what it holds: written again, it takes its own place.
        return [Part(f"rollouts/part-{first}-to-{last.rpartition('-')[2]}.parquet", rows)]

    def _telling(self) -> tuple[list[Write], dict[str, str]]:
        """Show the most telling rollouts; return the writes, and the run's tags that are due after them."""
        shown: list[tuple[Row, str, float]] = []
        for one in self._report.data().telling:
            place = self._places.get(one.rollout_id)
            data = read_at(self._folder, *place) if place else None
            if data is not None:
                shown.append((row_of(data), _WHY[one.kind], float(data.get("at") or 0.0)))
        if not shown:
            return [], {}
        # What makes the run page show the file as a table.
        tags = {"mlflow.loggedArtifacts": json.dumps([{"path": TABLE, "type": "table"}])}
        table = table_of([row for row, _, _ in shown], [why for _, why, _ in shown])
        traced = list({row.rollout_id: (row, why, ended) for row, why, ended in shown}.values())[: self._target.traces]
        traces = [Traces(tuple(traced))] if traced else []
        return [_json(TABLE, table), *traces], tags

    def _note(self) -> dict[str, str]:
        return {} if self._target.described else {"mlflow.note.content": self._summary.description()}


def _serial(row: Cells) -> str:
    rollout_id, run_id, *_ = row
    return str(rollout_id).removeprefix(f"{run_id}.").replace(".", "-")


def _texts(texts: Mapping[str, str], folder: str) -> list[Write]:
    return [
        Text(f"{folder}/{shorten(to_slug(component, PROMPT_NAME), 160)}.txt", text) for component, text in texts.items()
    ]


def _json(path: str, data: Any) -> Text:
    return Text(path, json.dumps(data, ensure_ascii=False, default=str))
