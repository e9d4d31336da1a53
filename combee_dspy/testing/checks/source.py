"""Checks for sources of traces. The source must hold at least two."""

from __future__ import annotations

import json
from functools import partial

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.testing._kit import ConformanceError, attempt, expect
from combee_dspy.traces import Trace, TraceSource

_MOST = 200


def _read(strategy: TraceSource, after: str = "") -> list[Trace]:
    def read() -> list[Trace]:
        # The others of a large source are read in the same way.
        return [trace for trace, _ in zip(strategy.read(after), range(_MOST), strict=False)]

    traces: list[Trace] = attempt(read, "`read` yields traces", "give the check a source with some")
    return traces


def check_yields_traces(strategy: TraceSource) -> None:
    """Readers get an id, inputs and JSON values of each trace."""
    traces = _read(strategy)
    expect(len(traces) > 1, "at least two traces to check by", f"{len(traces)}")
    for trace in traces:
        expect(isinstance(trace, Trace), "a `Trace`", f"{trace!r:.200}")
        expect(trace.id and trace.inputs, "an id and inputs of each trace", f"{trace!r:.200}")
        values = [trace.inputs, trace.outputs, trace.expected, dict(trace.tags)]
        values += [part for call in trace.calls for part in (call.inputs, call.outputs)]
        mend = "turn other values into texts"
        attempt(partial(json.dumps, values), "values that JSON can hold", mend)
    ids = {trace.id for trace in traces}
    expect(len(ids) == len(traces), "an id for each trace", f"{len(traces) - len(ids)} repeat")


def check_reads_the_same_again(strategy: TraceSource) -> None:
    """A resumed run must meet the same traces in the same order."""
    first, second = _read(strategy), _read(strategy)
    mend = "order by time, then by id; keep nothing on self"
    expect(first == second, "the same traces, read twice", "others the second time", mend)


def check_goes_on_behind_a_cursor(strategy: TraceSource) -> None:
    """Who reads every day must read each trace once."""
    traces = _read(strategy)
    for number, trace in enumerate(traces[:-1][:5], start=1):
        mend = "begin behind the trace with this cursor: neither at it nor further on"
        rest = _read(strategy, trace.cursor)[: len(traces) - number]
        wanted = f"{len(traces) - number} traces behind number {number}"
        expect(rest == traces[number:], wanted, f"{[other.id for other in rest][:5]}", mend)
    expect(not _read(strategy, traces[-1].cursor), "nothing behind the last trace", "more")


def check_refuses_what_is_no_cursor(strategy: TraceSource) -> None:
    """Reading from the beginning instead would learn everything twice."""
    try:
        next(iter(strategy.read("no cursor")), None)
    except ArgumentValueError as error:
        expect("after" in error.argument, "an error that names `after`", str(error))
    else:
        expected, mend = "an ArgumentValueError", "check `after` before reading"
        raise ConformanceError(expected, "'no cursor' was accepted", mend)
