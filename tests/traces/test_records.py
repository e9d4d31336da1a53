"""Records of anybody's at the edges: without ids, sparse, broken, still being written."""

from __future__ import annotations

from combee_dspy.traces import open_traces


def test_records_without_ids_are_numbered():
    records = [{"inputs": {"q": "a"}}, {"inputs": {"q": "b"}, "id": "x"}, {"inputs": {"q": "c"}}]
    traces = list(open_traces(records))
    assert [trace.id for trace in traces] == ["record 1", "x", "record 3"]
    assert [trace.cursor for trace in traces] == ["1", "2", "3"]
