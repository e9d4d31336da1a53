"""Whatever holds traces, as traces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

from combee_dspy.exceptions import ArgumentTypeError
from combee_dspy.traces._base import TraceSource
from combee_dspy.traces._fields import RecordReader
from combee_dspy.traces._mlflow import trace_of_mlflow
from combee_dspy.traces._records import Trace

if TYPE_CHECKING:
    from mlflow.entities import Trace as MLflowTrace

__all__ = ["Traces", "open_traces"]

Traces: TypeAlias = TraceSource | Iterable["Trace | MLflowTrace | Mapping[str, object]"]
"""What lessons are learned from: a source, or any iterable of traces, also MLflow's, and records
under the names of :class:`Trace`'s attributes.
"""


def open_traces(traces: Traces) -> Iterator[Trace]:
    """Yield the traces of a source, or of an iterable of traces, of MLflow's, or of records.

    Raises:
        ArgumentTypeError: It is neither, or holds something else.
        TraceSourceError: They cannot be read.
    """
    remedy = "Give a source of combee_dspy.traces, or an iterable of traces or records."
    if isinstance(traces, TraceSource):
        yield from traces.read()
        return
    if isinstance(traces, (str, bytes, Mapping)) or not isinstance(traces, Iterable):
        raise ArgumentTypeError("traces", traces, "are no traces", remedy)
    reader = RecordReader("records", {})
    for number, item in enumerate(traces, start=1):
        if isinstance(item, Trace):
            yield item
        elif isinstance(item, Mapping):
            yield reader.trace(item, f"record {number}", str(number))
        elif type(item).__module__.startswith("mlflow."):
            recorded = trace_of_mlflow(item)
            if recorded is not None:
                yield recorded
        else:
            if isinstance(item, str):  # iterating a data frame yields the names of its columns
                remedy += (
                    " Of a data frame give frame.to_dict('records'); of MLflow's,"
                    " mlflow.search_traces(return_type='list')."
                )
            raise ArgumentTypeError("traces", item, "is no trace and no record", remedy)
