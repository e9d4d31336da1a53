"""Effects as rows of a journal, and back. Pure."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import dspy

from combee_dspy.hashing import canonical_json
from combee_dspy.journal import Effect
from combee_dspy.records import CallUsage, Rollout
from combee_dspy.rollouts import decode_rollout, encode_rollout
from combee_dspy.search._candidates import Candidate, Row

__all__ = ["Place", "call_key", "changed", "rollout_effect", "rollout_of"]

_SHOWN = 2_000


@dataclass(frozen=True, slots=True)
class Place:
    """What an effect is for.

    Attributes:
        purpose: See :class:`combee_dspy.journal.Effect`.
        step: The update; −1 before the first.
        component: The component it is about, else empty.
    """

    purpose: str
    step: int = -1
    component: str = ""


def rollout_effect(  # noqa: PLR0913 - the columns of one row
    key: str,
    candidate: Candidate,
    row: Row,
    place: Place,
    replicate: int,
    rollout: Rollout,
    started: float | None,
    usage: tuple[CallUsage, ...],
) -> Effect:
    """Return a rollout as a row; ``started`` is ``None`` where it was not run now, but found in a cache."""
    value, ended = encode_rollout(rollout), time.time()
    if row.split != "heldout":
        value["inputs"] = _shown(row.example)
    queued = 0.0 if started is None else rollout.queue_seconds
    return Effect(
        key, "rollout", value, "task", place.purpose, place.step, candidate=candidate.id, example=row.hash,
        split=row.split, replicate=replicate, score=rollout.score, error=rollout.error, failed_in=rollout.failed_in,
        started=ended if started is None else started + queued, ended=ended, queued=queued, usage=usage,
    )  # fmt: skip


def rollout_of(value: Mapping[str, Any]) -> Rollout | None:
    """Return the rollout in an effect's value, which holds what people are shown beside it."""
    return decode_rollout({name: part for name, part in value.items() if name != "inputs"})


def _shown(example: dspy.Example) -> str:
    fields = example.inputs().toDict() if len(example) else {}
    try:
        text = json.dumps(fields, default=str, ensure_ascii=False)
    except TypeError:  # keys that JSON lacks
        text = repr(fields)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def call_key(
    signature: type[dspy.Signature],
    inputs: Mapping[str, Any],
    place: tuple[str | int, ...],
    role: str,
    step: int,
    temperature: float | None,
) -> str:
    """Return the place of a strategy's call in a run; another question in the same place is another call."""
    text = canonical_json([signature.instructions, temperature, inputs])
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return f"call/{step}/{'/'.join(map(str, place))}/{role}/{digest}"


def changed(value: Any, change: Callable[[str], str]) -> Any:
    """Return JSON values with every text in them changed."""
    if type(value) is str:
        return change(value)
    if type(value) is list:
        return [changed(one, change) for one in value]
    if type(value) is dict:
        return {key: changed(one, change) for key, one in value.items()}
    return value
