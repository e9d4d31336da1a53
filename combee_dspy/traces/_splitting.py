"""Traces split by their times: what came last is held out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import dspy

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.hashing import row_hash
from combee_dspy.traces._base import TraceSource
from combee_dspy.traces._opening import Traces, open_traces
from combee_dspy.traces._records import Trace

__all__ = ["as_example", "hold_out_newest"]

_DAY = 86_400.0


def hold_out_newest(traces: Traces, days: float) -> tuple[Iterable[Trace], list[dspy.Example]]:
    """Split traces by time: older ones to learn from, and rows of the newest days to hold out.

    A source is read twice, in flat memory, and once more whenever the older ones are.

    Example:
        >>> from combee_dspy.traces import Trace, hold_out_newest
        >>> more = {"expected": {"answer": "4"}, "score": 0.0}
        >>> logs = [Trace(str(n), {"q": n}, time=n * 86_400.0, **more) for n in range(4)]
        >>> older, heldout = hold_out_newest(logs, days=1)
        >>> [trace.id for trace in older], [row.q for row in heldout]
        (['0', '1', '2'], [3])

    Args:
        traces: A source, or any iterable of traces. Those without a time count as older.
        days: How many days before the newest trace are held out.

    Returns:
        The older traces, which may be read any number of times, and a row for each input of the
        newer ones that has an expected answer.

    Raises:
        ArgumentValueError: No trace has a time, or none of the newer ones has an expected answer.
        TraceSourceError: They cannot be read.
    """
    source = traces if isinstance(traces, TraceSource) else list(open_traces(traces))
    times = (trace.time for trace in open_traces(source))
    newest = max((time for time in times if time is not None), default=None)
    if newest is None:
        remedy = "Name the field that holds it, or leave the split out."
        raise ArgumentValueError("traces", type(traces).__name__, "have no time", remedy)
    older = _Older(source, newest - days * _DAY)
    rows: dict[str, dspy.Example] = {}
    for trace in open_traces(source):
        if trace.expected and not older.has(trace):
            rows.setdefault(row_hash(trace.inputs), as_example(trace))
    if not rows:
        remedy = "Give more days, or log what would have been right."
        raise ArgumentValueError("days", days, "have no trace with an expected answer", remedy)
    return older, list(rows.values())


@dataclass(frozen=True, slots=True)
class _Older:
    """The traces of a source that began before a moment."""

    source: Traces
    until: float

    def has(self, trace: Trace) -> bool:
        return trace.time is None or trace.time <= self.until

    def __iter__(self) -> Iterator[Trace]:
        return filter(self.has, open_traces(self.source))


def as_example(trace: Trace) -> dspy.Example:
    """Return the row that a trace's program was run on; the expected answers are its labels."""
    # One by one: as an argument of the class, some names mean something else.
    example = dspy.Example()
    for fields in (trace.expected, trace.inputs):
        for name, value in fields.items():
            example[name] = value
    return example.with_inputs(*trace.inputs)
