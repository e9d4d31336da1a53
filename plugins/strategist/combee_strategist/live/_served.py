"""Served requests of which somebody said how they went, from the journals of all servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import dspy

from combee_dspy.hashing import row_hash
from combee_dspy.journal import Reader, RunHistory
from combee_dspy.rollouts import decode_value
from combee_dspy.traces import ROLLOUTS, Trace, is_right, make_matcher, trace_of_rollout
from combee_strategist.canary import RequestLabelled
from combee_strategist.live._setup import Setup

__all__ = [
    "Cursor",
    "ServedRow",
    "end_of_labels",
    "failures_since",
    "is_behind",
    "journals",
    "read_served",
    "views",
]

Cursor = Mapping[str, int]
"""Number of the last label that was taken, by the server's folder."""

_OF_REQUEST = f"{ROLLOUTS} WHERE effect.key >= ? AND effect.key < ? AND purpose = 'serving'"
_LAST_LABEL = "SELECT max(id) FROM event WHERE kind = 'labelled'"
_HEALTH = (
    "SELECT count(*), count(error) FROM effect"
    " WHERE kind = 'rollout' AND purpose = 'serving' AND started >= ?"
)


@dataclass(frozen=True, slots=True)
class ServedRow:
    """A served request with what was said of it.

    Attributes:
        trace: The request; its id is the request's, its score and feedback are what was said of it.
        at: When its first label came.
        place: The journal and the number of that label: a request teaches when this is new.
        slice: Of its inputs.
        trusted: Whether the team vouches for its labels.
        teaches: Whether it teaches; else it is a row of the gate.
    """

    trace: Trace
    at: float
    place: tuple[str, int]
    slice: str
    trusted: bool
    teaches: bool


def journals(setup: Setup) -> list[Path]:
    """Return the journals of all servers, oldest first."""
    return sorted(setup.requests.glob("*/journal.sqlite"))


def end_of_labels(setup: Setup) -> Cursor:
    """Return the cursor behind every label so far."""
    ends: dict[str, int] = {}
    for path in journals(setup):
        with Reader(path) as reader:
            ends[path.parent.name] = reader.rows(_LAST_LABEL)[0][0] or 0
    return ends


def is_behind(cursor: Cursor, row: ServedRow) -> bool:
    """Return whether a row's first label came after a cursor."""
    folder, number = row.place
    return number > cursor.get(folder, 0)


def failures_since(setup: Setup, since: float) -> tuple[int, int]:
    """Return how many requests were served since then, and how many of them failed."""
    served = failed = 0
    for path in journals(setup):
        with Reader(path) as reader:
            counts = reader.rows(_HEALTH, (since,))[0]
            served, failed = served + counts[0], failed + counts[1]
    return served, failed


def read_served(
    setup: Setup, score: Callable[[Trace], Trace], after: Cursor, upto: Cursor
) -> list[ServedRow]:
    """Return the requests whose labels came behind a cursor, up to another, oldest label first.

    Args:
        setup: Where the journals lie, and which rows teach.
        score: Returns a trace with the metric's score, where it has expected answers.
        after: Labels up to this one are not read.
        upto: Nor those behind this one.
    """
    labels: dict[str, list[tuple[str, int, RequestLabelled]]] = {}
    readers = {path.parent.name: Reader(path) for path in journals(setup)}
    try:
        for folder, reader in readers.items():
            start, end = after.get(folder, 0), upto.get(folder, 0)
            for entry in RunHistory(reader).entries(RequestLabelled, after=start, upto=end):
                label = entry.event
                labels.setdefault(label.request, []).append((folder, entry.id, label))
        rows = filter(None, (_row(setup, score, said, readers) for said in labels.values()))
        return sorted(rows, key=lambda row: (row.at, row.place))
    finally:
        for reader in readers.values():
            reader.close()


def _row(
    setup: Setup,
    score: Callable[[Trace], Trace],
    said: list[tuple[str, int, RequestLabelled]],
    readers: Mapping[str, Reader],
) -> ServedRow | None:
    said = sorted(said, key=lambda item: item[2].at)
    folder, number, first = said[0]
    trace = next(_requests(first.request, folder, readers), None)
    if trace is None:
        return None  # of a request that was never served, or whose server's journal is gone
    for *_, label in said:
        expected = {name: decode_value(value) for name, value in label.expected.items()}
        trace = replace(
            trace,
            score=trace.score if label.score is None else label.score,
            feedback="\n".join(filter(None, (trace.feedback, label.comment))),
            expected={**trace.expected, **expected},
        )
    trusted = any(label.trusted for *_, label in said)
    part = int(row_hash(trace.inputs)[:8], 16) / 16**8
    return ServedRow(
        score(trace),
        first.at,
        (folder, number),
        setup.slices(trace.inputs),
        trusted,
        teaches=not trusted and part >= setup.gate.share,
    )


def _requests(request: str, folder: str, readers: Mapping[str, Reader]) -> Iterator[Trace]:
    """Yield the request, from the journal of its label first."""
    for name in sorted(readers, key=lambda name: (name != folder, name)):
        reader = readers[name]
        bounds = (f"serving/{request}/", f"serving/{request}0")
        for row in reader.rows(_OF_REQUEST, bounds):
            trace = trace_of_rollout(row, str(reader.path))
            if trace is not None:
                yield replace(trace, id=request, row="")


def views(traces: Sequence[Trace], program: dspy.Module) -> dict[str, list[Trace]]:
    """Return what readers of each predictor see: its last call in each request, and how the whole
    went. Predictors of which no request went wrong are left out.
    """
    match = make_matcher(program)
    seen: dict[str, list[Trace]] = {}
    for name, _ in program.named_predictors():
        calls = [
            replace(trace, inputs=call.inputs, outputs=call.outputs, calls=())
            for trace in traces
            for call in [call for call in match(trace).calls if call.is_of(name)][-1:]
        ]
        if any(not is_right(trace) for trace in calls if trace.judged):
            seen[name] = calls
    return seen
