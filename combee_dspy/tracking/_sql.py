"""The SELECTs that a journal is read with. ``e`` is an effect, ``u`` the LM calls behind it."""

from __future__ import annotations

EVALUATOR = "(SELECT json_extract(description, '$.evaluator') FROM run WHERE id = e.run)"
"""Who scores: a run has one evaluator, since a journal of another metric is refused."""

_TOKENS = "sum(u.prompt_tokens + u.completion_tokens)"
DOLLARS = "CASE WHEN count(u.dollars) = count(u.effect) THEN total(u.dollars) END"
"""Dollars of some LM calls: a sum of which one part is not known is not known."""


def _of_calls(figure: str) -> str:
    """Return the SELECT of a figure over the LM calls of an effect."""
    return f"(SELECT {figure} FROM usage u WHERE u.effect = e.id)"  # noqa: S608 - constants


def _of_model(role: str) -> str:
    """Return the SELECT of the model that a run has for a role."""
    return f"(SELECT json_extract(description, '$.models.{role}') FROM run WHERE id = e.run)"  # noqa: S608 - constants


def _unless_heldout(field: str) -> str:
    """Return a field of a rollout: who has seen held-out questions can no longer hold them out."""
    return f"CASE WHEN e.split <> 'heldout' THEN json_extract(e.value, '$.{field}') END"


_ASKED = _of_calls("group_concat(DISTINCT u.model) FILTER (WHERE u.role = 'task')")
_COLUMNS = {
    "id": "e.id",
    "run": "e.run",
    "step": "e.step",
    "purpose": "e.purpose",
    "split": "e.split",
    "candidate": "e.candidate",
    "example": "e.example",
    "replicate": "e.replicate",
    "task_model": f"""CASE e.kind WHEN 'recorded' THEN json_extract(e.value, '$.origin.model')
        ELSE coalesce({_ASKED}, {_of_model("task")}) END""",
    "proposer_model": _of_model("proposer"),
    "evaluator": EVALUATOR,
    "prompt_hash": "json_extract(e.value, '$.prompt_hash')",
    "score": "e.score",
    "error": "e.error",
    "failed_in": "e.failed_in",
    "started": "e.started",
    "ended": "e.ended",
    "queued": "e.queued",
    "seconds": "e.ended - e.started",
    "calls": _of_calls("coalesce(sum(u.calls), 0)"),
    "tokens": _of_calls(f"coalesce({_TOKENS}, 0)"),
    "tokens_task": _of_calls(f"coalesce({_TOKENS} FILTER (WHERE u.role = 'task'), 0)"),
    "tokens_evaluator": _of_calls(f"coalesce({_TOKENS} FILTER (WHERE u.role = 'evaluator'), 0)"),
    "dollars": _of_calls(DOLLARS),
    "gpu_seconds": _of_calls("sum(u.gpu_seconds)"),
    "inputs": _unless_heldout("inputs"),
    "expected": _unless_heldout("expected"),
    "prediction": _unless_heldout("prediction"),
    "feedback": _unless_heldout("feedback"),
    "origin": _unless_heldout("origin"),
}
ROLLOUT_COLUMNS = tuple(_COLUMNS)
"""Columns of a rollout, which a condition may name."""

_NAMED = ", ".join(f"{sql} AS {name}" for name, sql in _COLUMNS.items())
ROLLOUT = f"SELECT {_NAMED} FROM main.effect e WHERE e.kind IN ('rollout', 'recorded')"  # noqa: S608 - constants
"""All rollouts; those that were recorded elsewhere have an ``origin``."""

CALLS = """
SELECT e.id, e.run, e.step, e.kind, e.purpose, u.role, u.model, e.component, e.candidate, e.split,
  e.error, e.started, e.ended, u.calls, u.errors, u.cached, u.prompt_tokens, u.completion_tokens,
  u.dollars, u.gpu_seconds, u.seconds
FROM usage u JOIN effect e ON e.id = u.effect WHERE 1"""
"""The LM calls behind each effect, by role and model: of a rollout those of the task and of a
judge, of anything else those that read, merged, wrote or reflected; ``purpose`` says which.
"""
