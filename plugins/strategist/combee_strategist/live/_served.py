"""Served requests of which somebody said how they went, from the journals of all servers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import dspy

from combee_dspy.hashing import row_hash
from combee_dspy.journal import RunHistory
from combee_dspy.rollouts import decode_value
from combee_dspy.traces import ROLLOUTS, Trace, is_right, make_matcher, trace_of_rollout
from combee_strategist.canary import RequestLabelled, open_journals
from combee_strategist.live._options import Setup

__all__ = [
    "Cursor",
    "ServedRow",
    "end_of_labels",
    "failures_since",
    "is_behind",
    "read_served",
    "views",
]

Cursor = Mapping[str, int]
"""Number of the last label that was taken, by the server's folder."""
Place = tuple[str, int]
"""A label's server, by its folder, and the label's number in that server's journal."""
_Label = tuple[Place, RequestLabelled]

_OF_REQUEST = (
    f"{ROLLOUTS} WHERE effect.key >= ? AND effect.key < ? AND purpose = 'serving'"
    " ORDER BY effect.id"
)
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
        places: The journal and the number of each label, by the servers' clocks, which may differ:
            a request teaches when all are new.
        slice: Of its inputs.
        trusted: Whether the team vouches for its labels.
        teaches: Whether it teaches; else it is a row of the gate.
    """

    trace: Trace
    at: float
    places: tuple[Place, ...]
    slice: str
    trusted: bool
    teaches: bool


def end_of_labels(setup: Setup) -> Cursor:
    """Return the cursor behind every label so far."""
    return {
        reader.path.parent.name: reader.rows(_LAST_LABEL)[0][0] or 0
        for reader in open_journals(setup.requests)
    }


def is_behind(cursor: Cursor, row: ServedRow) -> bool:
    """Return whether all labels of a row came after a cursor."""
    return _are_behind(cursor, row.places)


def failures_since(setup: Setup, since: float) -> tuple[int, int]:
    """Return how many requests were served since then, and how many of them failed."""
    served = failed = 0
    for reader in open_journals(setup.requests):
        counts = reader.rows(_HEALTH, (since,))[0]
        served, failed = served + counts[0], failed + counts[1]
    return served, failed


def read_served(
    setup: Setup,
    score: Callable[[Trace], Trace],
    after: Cursor,
    upto: Cursor,
    unknown: set[str] | None = None,
) -> list[ServedRow]:
    """Return the requests whose labels all came behind a cursor, up to another, oldest first.

    Args:
        setup: Where the journals lie, and which rows teach.
        score: Returns a trace with the metric's score, where it has expected answers.
        after: Requests with a label up to this one are not read.
        upto: Nor are labels behind this one.
        unknown: Requests that no journal holds, which are not looked up again; grows.
    """
    unknown = set() if unknown is None else unknown
    labels: dict[str, list[_Label]] = defaultdict(list)
    for reader in open_journals(setup.requests):
        folder = reader.path.parent.name
        for entry in RunHistory(reader).entries(RequestLabelled, upto=upto.get(folder, 0)):
            labels[entry.event.request].append(((folder, entry.id), entry.event))
    new = {
        request: sorted(said, key=lambda item: item[1].at)
        for request, said in labels.items()
        if request not in unknown and _are_behind(after, [place for place, _ in said])
    }
    traces = _traces(setup, new)
    # A request is on disk before its caller has the answer: what has none now never will.
    unknown |= new.keys() - traces.keys()
    rows = [_row(setup, score, said, traces[name]) for name, said in new.items() if name in traces]
    return sorted(rows, key=lambda row: (row.at, row.places))


def _are_behind(cursor: Cursor, places: Sequence[Place]) -> bool:
    return all(number > cursor.get(folder, 0) for folder, number in places)


def _traces(setup: Setup, labels: Mapping[str, Sequence[_Label]]) -> dict[str, Trace]:
    """Return what was served, by request: what the server of the first label served, if it did."""
    traces: dict[str, Trace] = {}
    for reader in open_journals(setup.requests):
        folder = reader.path.parent.name
        for request, said in labels.items():
            if request not in traces or said[0][0][0] == folder:
                # The last is what its caller has got: another version may have failed before.
                bounds = (f"serving/{request}/", f"serving/{request}0")
                for row in reader.rows(_OF_REQUEST, bounds):
                    trace = trace_of_rollout(row, str(reader.path))
                    if trace is not None:
                        traces[request] = replace(trace, id=request, row="")
    return traces


def _row(
    setup: Setup, score: Callable[[Trace], Trace], said: Sequence[_Label], trace: Trace
) -> ServedRow:
    labels = [label for _, label in said]
    vouched = [label for label in labels if label.trusted]
    # Whom the team vouches for is overruled by nobody, and a person by no judge.
    people = [label for label in labels if label.by == "person"]
    decides = any(label.score is not None or label.expected for label in people)
    for label in vouched or (people if decides else labels):
        expected = {name: decode_value(value) for name, value in label.expected.items()}
        trace = replace(
            trace,
            score=trace.score if label.score is None else label.score,
            feedback="\n".join(filter(None, (trace.feedback, label.comment))),
            expected={**trace.expected, **expected},
        )
    part = int(row_hash(trace.inputs)[:8], 16) / 16**8
    return ServedRow(
        score(trace),
        labels[0].at,
        tuple(place for place, _ in said),
        setup.slices(trace.inputs),
        bool(vouched),
        teaches=not vouched and part >= setup.gate.share,
    )


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
