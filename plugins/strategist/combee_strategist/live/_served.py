"""Served requests of which somebody said how they went, from the journals of all servers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import dspy

from combee_dspy.hashing import row_hash
from combee_dspy.journal import RunHistory
from combee_dspy.rollouts import decode_value
from combee_dspy.traces import ROLLOUTS, Trace, is_right, make_matcher, trace_of_rollout
from combee_strategist.canary import ChangedJournals, RequestLabelled, open_journals
from combee_strategist.live._options import Setup

__all__ = ["Cursor", "ServedRequests", "ServedRow", "failures_since", "is_behind", "views"]

Cursor = Mapping[str, int]
"""Number of the last label that was taken, by the server's folder."""
Place = tuple[str, int]
"""A label's server, by its folder, and the label's number in that server's journal."""
_Label = tuple[Place, RequestLabelled]

# By the run too, so that SQLite looks it up and does not read all that was served.
_OF_REQUEST = (
    f"{ROLLOUTS} WHERE effect.run IN (SELECT id FROM run) AND effect.key >= ? AND effect.key < ?"  # noqa: S608 - constants
    " AND purpose = 'serving' ORDER BY effect.id"
)
_LAST_LABEL = "SELECT max(id) FROM event WHERE kind = 'labelled'"
_HEALTH = (
    "SELECT count(*), count(error) FROM (SELECT started, error FROM effect WHERE kind = 'rollout'"
    " AND purpose = 'serving' ORDER BY id DESC LIMIT 1000) WHERE started >= ?"
)
# Labelled requests that are held, and labels of one of them.
_LATEST, _SAMPLE, _SAID = 5_000, 5_000, 31


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


class ServedRequests:
    """Labelled requests, each label read once: the latest, and a sample of all before.

    What is held does not grow with what was ever served. The sample is drawn by the hashes of
    requests, so that a learner that begins again holds the same. A request that was let go of and
    is labelled again counts as new. For one thread.

    Args:
        setup: Where the journals lie, and which rows teach.
        score: Returns a trace with the metric's score, where it has expected answers.
    """

    def __init__(self, setup: Setup, score: Callable[[Trace], Trace]) -> None:
        self._setup, self._score = setup, score
        self._journals = ChangedJournals(setup.requests)
        self._ends: dict[str, int] = {}
        self._read: dict[str, int] = {}
        self._labels: dict[str, list[_Label]] = {}
        self._rows: dict[str, ServedRow] = {}
        self._changed: dict[str, None] = {}  # in the order in which labels came

    def end(self) -> Cursor:
        """Return the cursor behind every label so far."""
        for reader in self._journals.open():
            self._ends[reader.path.parent.name] = reader.rows(_LAST_LABEL)[0][0] or 0
        return dict(self._ends)

    def upto(self, cursor: Cursor) -> list[ServedRow]:
        """Return requests with their labels up to a cursor, oldest first.

        Args:
            cursor: Not before that of an earlier call.

        Raises:
            DaySpentError: The metric calls an LM, and the day cannot pay for it. The next call goes
                on.
        """
        self.end()  # a learner that begins again asks for what was open before
        for folder, end in cursor.items():
            read = self._read.get(folder, 0)
            for reader in open_journals(self._setup.requests / folder) if end > read else ():
                entries = RunHistory(reader).entries(RequestLabelled, after=read, upto=end)
                for entry in entries:
                    self._take((folder, entry.id), entry.event)
                    self._read[folder] = entry.id
                    if len(self._changed) >= _LATEST:
                        self._settle()
        self._settle()
        return sorted(self._rows.values(), key=lambda row: (row.at, row.places))

    def _take(self, place: Place, label: RequestLabelled) -> None:
        said = self._labels.setdefault(label.request, [])
        said.append((place, label))
        said.sort(key=lambda item: item[1].at)
        del said[1:-_SAID]
        self._changed[label.request] = None

    def _settle(self) -> None:
        """Score the requests whose labels have changed, and let go of the oldest."""
        traces = self._traces(self._changed)
        for request in [*self._changed]:
            if request in traces:
                self._rows[request] = self._row(self._labels[request], traces[request])
            else:
                # It is on disk before its caller has the answer: what is not there never will be.
                del self._labels[request]
            del self._changed[request]
        rows = sorted(self._rows.values(), key=lambda row: (row.at, row.places))
        earlier = sorted(rows[:-_LATEST], key=lambda row: row.trace.id)
        for row in earlier[_SAMPLE:]:
            del self._rows[row.trace.id], self._labels[row.trace.id]

    def _traces(self, requests: Iterable[str]) -> dict[str, Trace]:
        """Return what was served, by request: what the server of the first label served, if it did;
        else what the newest server did that knows it.
        """
        traces: dict[str, Trace] = {}
        missing: dict[str, set[str]] = defaultdict(set)
        for request in requests:
            missing[self._labels[request][0][0][0]].add(request)
        for folder, own in missing.items():
            traces |= self._served(folder, own)
        lost = set[str]().union(*missing.values()) - traces.keys()
        for folder in sorted(self._ends, reverse=True):
            if lost:
                traces |= self._served(folder, lost)
                lost -= traces.keys()
        return traces

    def _served(self, folder: str, requests: Iterable[str]) -> dict[str, Trace]:
        traces = {}
        for reader in open_journals(self._setup.requests / folder):
            for request in sorted(requests):
                # The last is what its caller has got: another version may have failed before.
                bounds = (f"serving/{request}/", f"serving/{request}0")
                for row in reader.rows(_OF_REQUEST, bounds):
                    trace = trace_of_rollout(row, str(reader.path))
                    if trace is not None:
                        traces[request] = replace(trace, id=request, row="")
        return traces

    def _row(self, said: Sequence[_Label], trace: Trace) -> ServedRow:
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
            self._score(trace),
            # A server's clock may be ahead: what is to come would hide all that comes till then.
            min(labels[0].at, self._setup.clock()),
            tuple(place for place, _ in said),
            self._setup.slice_of(trace.inputs),
            bool(vouched),
            teaches=not vouched and part >= self._setup.gate.share,
        )


def is_behind(cursor: Cursor, row: ServedRow) -> bool:
    """Return whether all labels of a row came after a cursor."""
    return all(number > cursor.get(folder, 0) for folder, number in row.places)


def failures_since(setup: Setup, since: float) -> tuple[int, int]:
    """Return how many requests were served since then, and how many of them failed; of each server
    the latest alone.
    """
    served = failed = 0
    for reader in open_journals(setup.requests):
        counts = reader.rows(_HEALTH, (since,))[0]
        served, failed = served + counts[0], failed + counts[1]
    return served, failed


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
