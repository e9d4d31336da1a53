"""The SELECTs that a journal is read with."""

from __future__ import annotations

# Nobody reads what the held-out set holds: who has seen its questions can no longer hold them out.
_SHOWN = "CASE WHEN e.split <> 'heldout' THEN json_extract(e.value, '$.{}') END"
_OF_EFFECT = "(SELECT {} FROM usage u WHERE u.effect = e.id)"
_TOKENS = "coalesce(sum(u.prompt_tokens + u.completion_tokens), 0)"
# A sum of which one part is not known is not known.
_DOLLARS = "CASE WHEN count(u.dollars) = count(u.effect) THEN total(u.dollars) END"
_TOKENS_OF = (
    f"coalesce((SELECT {_TOKENS} FROM usage u WHERE u.effect = e.id AND u.role = '{{}}'), 0)"  # noqa: S608 - constants
)
_MODELS_OF = (
    "(SELECT group_concat(DISTINCT u.model) FROM usage u WHERE u.effect = e.id AND u.role = '{}')"
)
_MODEL = "(SELECT json_extract(description, '$.models.{}') FROM run WHERE id = e.run)"
_UNPRICED = "coalesce(sum(CASE WHEN u.dollars IS NULL THEN u.calls END), 0)"
EVALUATOR = "(SELECT json_extract(description, '$.evaluator') FROM run WHERE id = e.run)"
"""Who scores, by effect ``e``: a run has one evaluator, since a journal of another metric is
refused.
"""

_COLUMNS = {
    **{
        name: f"e.{name}"
        for name in ("id", "run", "step", "purpose", "split", "candidate", "example", "replicate")
    },
    "task_model": (
        "CASE e.kind WHEN 'recorded' THEN json_extract(e.value, '$.origin.model') ELSE"
        f" coalesce({_MODELS_OF.format('task')}, {_MODEL.format('task')}) END"
    ),
    "proposer_model": _MODEL.format("proposer"),
    "evaluator": EVALUATOR,
    "prompt_hash": "json_extract(e.value, '$.prompt_hash')",
    **{name: f"e.{name}" for name in ("score", "error", "failed_in", "started", "ended", "queued")},
    "seconds": "e.ended - e.started",
    "calls": _OF_EFFECT.format("coalesce(sum(u.calls), 0)"),
    "tokens": _OF_EFFECT.format(_TOKENS),
    **{f"tokens_{role}": _TOKENS_OF.format(role) for role in ("task", "evaluator")},
    "dollars": _OF_EFFECT.format(_DOLLARS),
    "gpu_seconds": _OF_EFFECT.format("sum(u.gpu_seconds)"),
    **{
        name: _SHOWN.format(name)
        for name in ("inputs", "expected", "prediction", "feedback", "origin")
    },
}
ROLLOUT_COLUMNS = tuple(_COLUMNS)
"""Columns of a rollout, which a condition may name."""

ROLLOUT = (
    f"SELECT {', '.join(f'{sql} AS {name}' for name, sql in _COLUMNS.items())}"  # noqa: S608 - constants
    " FROM effect e WHERE e.kind IN ('rollout', 'recorded')"
)
"""All rollouts; those that were recorded elsewhere have an ``origin``."""

CALLS = """
SELECT e.id, e.run, e.step, e.kind, e.purpose, u.role, u.model, e.component, e.candidate, e.split,
  e.error, e.started, e.ended, u.calls, u.errors, u.cached, u.prompt_tokens, u.completion_tokens,
  u.dollars, u.gpu_seconds, u.seconds
FROM usage u JOIN effect e ON e.id = u.effect WHERE 1"""
"""The LM calls behind each effect, by role and model: of a rollout those of the task and of a
judge, of anything else those that read, merged, wrote or reflected; ``purpose`` says which.
"""

_NAMES = """
    abs avg coalesce count date datetime glob ifnull iif instr json json_array_length
    json_extract json_type -> ->> julianday length like lower ltrim max min nullif replace round
    rtrim strftime substr substring sum total trim typeof unixepoch upper"""
FUNCTIONS = frozenset(_NAMES.split())
"""Functions that a condition may call: they neither reach beyond the journal nor make texts of any
length.
"""

_SUMS = ", ".join(
    f"sum(u.{name}) AS {name}"
    for name in ("calls", "errors", "cached", "prompt_tokens", "completion_tokens")
)
COSTS_BY_ROLE = f"""SELECT u.role, u.model, {_SUMS}, {_DOLLARS} AS dollars,
    total(u.dollars) AS known_dollars, sum(u.gpu_seconds) AS gpu_seconds,
    total(u.seconds) AS seconds, {_UNPRICED} AS unpriced
    FROM usage u JOIN effect e ON e.id = u.effect WHERE e.run = ? GROUP BY 1, 2 ORDER BY 1, 2"""  # noqa: S608 - constants
"""What the LM calls of a run have cost, by role and model."""
