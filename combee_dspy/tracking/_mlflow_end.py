"""What a run leaves in MLflow when it is over: its books, its program, and its telling rollouts."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from combee_dspy.events import ProgramReturned
from combee_dspy.files import write_plain
from combee_dspy.journal import Description, Reader, RunHistory
from combee_dspy.tracking._lessons import LessonDecision, books_of, decisions_of
from combee_dspy.tracking._mlflow_traces import RolloutTrace, TraceRecorder
from combee_dspy.tracking._text import clean_values

__all__ = ["Legacy", "datasets_of", "registered"]

_TABLES = "mlflow.loggedArtifacts"
_DECISIONS = "decisions.json"
_TRACES = 10
_OF_LESSON = ("id", "text", "state", "reason", "sources", "born", "rule", "rivals")
_TELLING = """
SELECT e.id, e.candidate, e.started, e.ended, e.score, s.score AS before,
       json_extract(e.value, '$.inputs') AS inputs,
       json_extract(e.value, '$.prediction') AS prediction,
       json_extract(e.value, '$.feedback') AS feedback,
       (SELECT coalesce(sum(u.prompt_tokens + u.completion_tokens), 0)
          FROM usage u WHERE u.effect = e.id) AS tokens
FROM effect e JOIN effect s ON s.run = e.run AND s.purpose = 'validation' AND s.example = e.example
WHERE e.run = ? AND e.purpose = 'validation' AND e.candidate = ? AND s.candidate = ?
  AND e.score <> s.score
GROUP BY e.example ORDER BY abs(e.score - s.score) DESC, e.id LIMIT ?
"""
"""Validation rows on which a candidate and the student differ most."""


def registered(name: str) -> str:
    """Return a name as registries and file systems take it."""
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name)


def datasets_of(about: Description) -> list[Any]:
    """Return the splits of a run as MLflow's datasets. Their rows stay where they are."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    inputs = []
    for split, digest in about.digests.items():
        if digest:
            profile = json.dumps({"num_rows": about.sizes.get(split)})
            dataset = Dataset(split, digest[:36], "local", "{}", profile=profile)
            inputs.append(DatasetInput(dataset, [InputTag("mlflow.data.context", split)]))
    return inputs


class Legacy:
    """Records what one run leaves. Each part is there once, whoever dies in between.

    Args:
        client: Of the store.
        reader: Of the run's journal.
        run: The run's id there.
        told: The MLflow run's id.
        clean: Takes keys out of a text.
    """

    def __init__(
        self, client: Any, reader: Reader, run: int, mlflow_run: str, clean: Callable[[str], str]
    ) -> None:
        self._client, self._reader, self._run, self._id, self._clean = (
            client,
            reader,
            run,
            mlflow_run,
            clean,
        )
        self._history = RunHistory(reader, run)
        self._about = self._history.about

    def lessons(self) -> None:
        """Log what the run has learned: a book for each component, and the table of decisions.

        ``books/<component>.json`` is ``{"component": …, "lessons": […]}``, each lesson with ``id``,
        ``text``, ``state``, ``reason``, ``sources``, ``born``, ``rule`` and ``rivals``, as
        :class:`~combee_dspy.lessons.BookLesson` explains them. ``decisions.json`` is a table of
        MLflow's, with a row for each :class:`~combee_dspy.tracking._lessons.LessonDecision`:
        ``mlflow.load_table`` reads it.
        """
        books = books_of(self._history)
        for component, book in books.items():
            lessons = [
                {name: getattr(lesson, name) for name in _OF_LESSON} for lesson in book.lessons
            ]
            content = clean_values({"component": component, "lessons": lessons}, self._clean)
            self._text(
                f"books/{registered(component)}.json",
                json.dumps(content, indent=2, ensure_ascii=False),
            )
        decisions = decisions_of(self._history)
        if not decisions:
            return
        rows = [
            clean_values(list(asdict(decision).values()), self._clean) for decision in decisions
        ]
        table = {"columns": [field.name for field in fields(LessonDecision)], "data": rows}
        self._text(_DECISIONS, json.dumps(table, ensure_ascii=False))
        # By this tag MLflow knows which files are tables. Its own way to log one appends to what is
        # there.
        tables = json.loads(self._client.get_run(self._id).data.tags.get(_TABLES, "[]"))
        named = {"path": _DECISIONS, "type": "table"}
        if named not in tables:
            self._client.set_tag(self._id, _TABLES, json.dumps([*tables, named]))

    def _text(self, name: str, text: str) -> None:
        self._client.log_text(self._id, text, name)

    def program(self, chosen: Mapping[str, Any]) -> None:
        """Log the returned program."""
        returned = self._history.last(ProgramReturned)
        mlflow_run = self._client.get_run(self._id)
        if returned is None or mlflow_run.outputs.model_outputs:
            return
        from mlflow.entities import LoggedModelOutput

        name = registered(self._about.program)
        tags = {
            "validation": str(self._about.digests.get("validation")),
            "score": str(chosen.get("score")),
        }
        home = mlflow_run.info.experiment_id
        model = self._client.create_logged_model(
            home, name, self._id, tags, model_type="dspy program state"
        )
        # As program.save writes it; which versions it was made with is among the run's parameters.
        state = clean_values(returned.state, self._clean)
        state["metadata"] = {"dependency_versions": {}}
        with tempfile.TemporaryDirectory(prefix="combee-") as folder:
            file = Path(folder, "program.json")
            write_plain(file, json.dumps(state, indent=2))
            self._client.log_model_artifact(model.model_id, str(file))
        self._client.finalize_logged_model(model.model_id, "READY")
        self._client.log_outputs(self._id, models=[LoggedModelOutput(model.model_id, 0)])

    def traces(self, candidate: str) -> None:
        """Record the rollouts that tell most of what was learned."""
        home = self._client.get_run(self._id).info.experiment_id
        traces = self._client.search_traces(
            locations=[home], run_id=self._id, max_results=_TRACES, include_spans=False
        )
        trace_ids = {trace.info.trace_id for trace in traces}
        sql = (
            "SELECT candidate FROM effect WHERE run = ? AND purpose = 'validation' ORDER BY id"
            " LIMIT 1"
        )
        seed = self._reader.rows(sql, (self._run,))
        parameters = (self._run, candidate, seed[0][0], _TRACES) if seed else ()
        rows = self._reader.rows(_TELLING, parameters) if seed else []
        recorder = TraceRecorder(self._client.tracking_uri, home, self._id)
        for row in clean_values([dict(telling) for telling in rows], self._clean):
            trace = RolloutTrace(
                effect=row["id"],
                name=f"validation, {row['before']:.2f} → {row['score']:.2f}",
                inputs=_values(row["inputs"]),
                outputs=_values(row["prediction"]),
                score=row["score"],
                feedback=row["feedback"],
                facts={name: str(row[name]) for name in ("candidate", "tokens", "before")},
                started=row["started"],
                ended=row["ended"],
            )
            if recorder.name_of(trace) not in trace_ids:
                recorder.record(trace)


def _values(text: str | None) -> Any:
    try:
        return json.loads(text or "null")
    except (ValueError, RecursionError):
        return text
