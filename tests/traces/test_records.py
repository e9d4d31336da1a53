"""Records of anybody's at the edges: without ids, sparse, broken, still being written."""

from __future__ import annotations

import pytest

from combee_dspy.exceptions import TraceFieldError, TraceSourceError
from combee_dspy.traces import JsonLines, open_traces, records_as_traces

KEY = "sk-proj-" + "Ab3" * 40


def test_records_without_ids_are_numbered():
    records = [{"inputs": {"q": "a"}}, {"inputs": {"q": "b"}, "id": "x"}, {"inputs": {"q": "c"}}]
    traces = list(open_traces(records))
    assert [trace.id for trace in traces] == ["record 1", "x", "record 3"]
    assert [trace.cursor for trace in traces] == ["1", "2", "3"]


@pytest.mark.parametrize("broken", [{"score": KEY}, {"time": KEY}, {"calls": [KEY]}])
def test_a_message_shows_no_part_of_a_key(broken):
    with pytest.raises(TraceFieldError) as error:
        list(records_as_traces([{"inputs": {"q": "a"}, **broken}]))
    assert "Ab3" not in str(error.value)


def test_a_message_on_a_line_shows_no_part_of_a_key(tmp_path):
    path = tmp_path / "logs.jsonl"
    path.write_text(f'["{KEY}"]\n')
    with pytest.raises(TraceSourceError, match="holds no object") as error:
        list(JsonLines(str(path)).read())
    assert "Ab3" not in str(error.value)
