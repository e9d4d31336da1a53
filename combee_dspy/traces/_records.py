"""A trace: a rollout that happened elsewhere."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime

from combee_dspy.records import PredictorCall

__all__ = ["Recording", "Trace", "as_fields", "parse_score", "parse_time"]

_YES = frozenset(("yes", "true", "pass", "passed", "correct"))
_NO = frozenset(("no", "false", "fail", "failed", "incorrect"))
# Unix time in seconds reaches this in the year 5138: what is larger counts milliseconds.
_MILLISECONDS = 1e11
_DEEPEST = 32


@dataclass(frozen=True, slots=True)
class Trace:
    """One recorded rollout: what was asked, what came back, and what somebody said of it.

    Values are JSON values. They come from outside and are hostile: nothing in them is followed,
    and they are redacted before an LM reads them.

    Example:
        >>> from combee_dspy.traces import Trace
        >>> Trace("a", {"question": "2 + 2"}, {"answer": "5"}, expected={"answer": "4"}).judged
        True

    Attributes:
        id: Its name at the source. The same trace has the same id whenever it is read.
        inputs: Input fields of the program.
        outputs: Output fields; ``None`` where it failed before it returned any.
        calls: Calls of predictors and tools, in the order in which they began. ``predictor`` is the
            path in the program where the source knows it, else the name of the step.
        score: What a metric, a judge or a person gave it; ``None`` for nothing.
        feedback: What was said of it, empty where nothing was.
        expected: The output fields that were right; empty where nobody knows.
        error: ``"ClassName: message"`` of what it failed with, else empty.
        time: Unix seconds at which it began; ``None`` where the source does not say.
        prompt: Which candidate or prompt answered; empty where nobody knows.
        model: Which model answered; empty where nobody knows.
        tags: What else the source says of it, for filters.
        cursor: What its source goes on from, behind this trace.
        row: :func:`combee_dspy.hashing.row_hash` of the example that was run; empty where nobody
            knows. Nothing is learned from a row of the validation or held-out set.
    """

    id: str
    inputs: Mapping[str, object]
    outputs: Mapping[str, object] | None = None
    calls: tuple[PredictorCall, ...] = ()
    score: float | None = None
    feedback: str = ""
    expected: Mapping[str, object] = field(default_factory=dict)
    error: str = ""
    time: float | None = None
    prompt: str = ""
    model: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    cursor: str = ""
    row: str = ""

    @property
    def judged(self) -> bool:
        """Whether anything says how it went: a score, feedback, an expected answer, an error."""
        return self.score is not None or bool(self.feedback or self.expected) or bool(self.error)


@dataclass(frozen=True, slots=True)
class Recording:
    """A trace that is learned from.

    Attributes:
        redacted: As readers see it.
        original: As it was recorded, for a metric that scores its outputs.
    """

    redacted: Trace
    original: Trace = field(repr=False)


def parse_score(value: object) -> float | None:
    """Return a score that people or judges wrote down; ``None`` where a value is no score.

    True, "yes", "pass" and "correct" are 1; their opposites are 0.
    """
    if isinstance(value, str):
        word = value.strip().casefold()
        if word in _YES or word in _NO:
            return float(word in _YES)
        try:
            value = float(word)
        except ValueError:
            return None
    if not isinstance(value, (bool, int, float)):
        return None
    score = float(value)
    return score if math.isfinite(score) else None


def parse_time(value: object) -> float | None:
    """Return Unix seconds of seconds, milliseconds, a date or an ISO 8601 text; ``None`` for none
    of these.
    """
    if isinstance(value, (str, date)):
        try:
            return datetime.fromisoformat(str(value)).timestamp()
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value) / (1_000 if value > _MILLISECONDS else 1)


def as_fields(value: object, name: str) -> dict[str, object]:
    """Return a value as fields: those of an object, also of one in JSON; else one field ``name``.

    An empty name is for values that are fields or nothing. What is nested too deep for whoever
    walks through it later is cut off, with a mark.
    """
    if isinstance(value, str) and value.lstrip().startswith("{"):
        with suppress(ValueError, RecursionError):  # it may only begin like an object
            value = json.loads(value)
    if isinstance(value, Mapping):
        return {str(key): _cut_off(item, _DEEPEST) for key, item in value.items()}
    return {} if value is None or not name else {name: _cut_off(value, _DEEPEST)}


def _cut_off(value: object, levels: int) -> object:
    if not isinstance(value, (Mapping, list, tuple)):
        return value
    if levels == 0:
        return "[nested too deep]"
    if isinstance(value, Mapping):
        return {str(key): _cut_off(item, levels - 1) for key, item in value.items()}
    return [_cut_off(item, levels - 1) for item in value]
