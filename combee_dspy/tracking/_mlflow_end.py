"""Logs what a run leaves in MLflow when it is over: its books, its program, and its telling
rollouts.

Each part is there once, however often it is logged.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from pydantic import JsonValue

from combee_dspy.events import ProgramReturned
from combee_dspy.files import write_plain
from combee_dspy.journal import RunHistory
from combee_dspy.tracking._candidates import CandidateRow
from combee_dspy.tracking._lessons import LessonDecision, books_of, decisions_of
from combee_dspy.tracking._mlflow_store import MLflowRun
from combee_dspy.tracking._mlflow_traces import RolloutTrace, record_trace
from combee_dspy.tracking._text import clean_values

_TABLES = "mlflow.loggedArtifacts"
_DECISIONS = "decisions.json"
_TRACES = 10
_OF_LESSON = ("id", "text", "state", "reason", "sources", "born", "rule", "rivals")
# Validation rows on which a candidate and the student, which was validated first, differ most.
_TELLING = """
SELECT e.id, e.candidate, e.started, e.ended, e.score, s.score AS before,
       json_extract(e.value, '$.inputs') AS inputs,
       json_extract(e.value, '$.prediction') AS prediction,
       json_extract(e.value, '$.feedback') AS feedback,
       (SELECT coalesce(sum(u.prompt_tokens + u.completion_tokens), 0)
          FROM usage u WHERE u.effect = e.id) AS tokens
FROM effect e JOIN effect s ON s.run = e.run AND s.purpose = 'validation' AND s.example = e.example
WHERE e.run = ?1 AND e.purpose = 'validation' AND e.candidate = ?2 AND e.score <> s.score
  AND s.candidate = (SELECT candidate FROM effect WHERE run = ?1 AND purpose = 'validation'
                     ORDER BY id LIMIT 1)
GROUP BY e.example ORDER BY abs(e.score - s.score) DESC, e.id LIMIT ?3
"""
Clean = Callable[[str], str]


def plain_name(name: str) -> str:
    """Return a name as registries and file systems take it."""
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name)


def log_lessons(run: MLflowRun, history: RunHistory, clean: Clean) -> None:
    """Log what the run has learned: a book for each component, and the table of decisions.

    ``books/<component>.json`` is ``{"component": …, "lessons": […]}``, each lesson with ``id``,
    ``text``, ``state``, ``reason``, ``sources``, ``born``, ``rule`` and ``rivals``, as
    :class:`~combee_dspy.lessons.BookLesson` explains them. ``decisions.json`` is a table of
    MLflow's, with a row for each :class:`~combee_dspy.tracking._lessons.LessonDecision`:
    ``mlflow.load_table`` reads it.
    """
    for component, book in books_of(history).items():
        lessons = [{name: getattr(lesson, name) for name in _OF_LESSON} for lesson in book.lessons]
        content = clean_values({"component": component, "lessons": lessons}, clean)
        text = json.dumps(content, indent=2, ensure_ascii=False)
        run.log_text(f"books/{plain_name(component)}.json", text)
    decisions = clean_values(decisions_of(history), clean)
    if not decisions:
        return
    table = {
        "columns": [field.name for field in fields(LessonDecision)],
        "data": [list(decision.values()) for decision in decisions],
    }
    run.log_text(_DECISIONS, json.dumps(table, ensure_ascii=False))
    # By this tag MLflow knows which files are tables. Its own way to log one appends to what is
    # there.
    tables = json.loads(run.client.get_run(run.id).data.tags.get(_TABLES, "[]"))
    named = {"path": _DECISIONS, "type": "table"}
    if named not in tables:
        run.client.set_tag(run.id, _TABLES, json.dumps([*tables, named]))


def log_program(run: MLflowRun, history: RunHistory, score: float | None, clean: Clean) -> None:
    """Log the returned program, with its validation score, as a model of one file."""
    returned = history.last(ProgramReturned)
    logged = run.client.get_run(run.id)
    if returned is None or logged.outputs.model_outputs:
        return
    from mlflow.entities import LoggedModelOutput

    about = history.about
    model = run.client.create_logged_model(
        logged.info.experiment_id,
        plain_name(about.program),
        run.id,
        {"validation": str(about.digests.get("validation")), "score": str(score)},
        model_type="dspy program state",
    )
    # As program.save writes it; which versions it was made with is among the run's parameters.
    state = {**clean_values(returned.state, clean), "metadata": {"dependency_versions": {}}}
    with tempfile.TemporaryDirectory(prefix="combee-") as folder:
        file = Path(folder, "program.json")
        write_plain(file, json.dumps(state, indent=2))
        run.client.log_model_artifact(model.model_id, str(file))
    run.client.finalize_logged_model(model.model_id, "READY")
    run.client.log_outputs(run.id, models=[LoggedModelOutput(model.model_id, 0)])


def log_traces(run: MLflowRun, history: RunHistory, chosen: CandidateRow, clean: Clean) -> None:
    """Record the validation rows on which a candidate and the student differ most as traces."""
    experiment = run.client.get_run(run.id).info.experiment_id
    logged = run.client.search_traces(
        locations=[experiment], run_id=run.id, max_results=_TRACES, include_spans=False
    )
    ids = {trace.info.trace_id for trace in logged}
    parameters = (history.run, chosen.candidate, _TRACES)
    for row in clean_values(history.reader.rows(_TELLING, parameters), clean):
        trace = RolloutTrace(
            run=run.id,
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
        if trace.id not in ids:
            record_trace(run.client.tracking_uri, experiment, trace)


def _values(text: str | None) -> JsonValue:
    try:
        values: JsonValue = json.loads(text or "null")
    except (ValueError, RecursionError):
        return text
    return values
