"""Records of anybody's at the edges: without ids, sparse, broken, still being written."""

from __future__ import annotations

import pytest

from combee_dspy.exceptions import TraceFieldError, TraceSourceError
from combee_dspy.traces import HuggingFace, JsonLines, OtlpFile, open_traces, records_as_traces
from tests.traces.material import TRACES, write_otlp

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


def test_a_row_without_a_label_has_none(tmp_path):
    import datasets

    features = datasets.Features(
        {"inputs": datasets.Value("string"), "expected": datasets.ClassLabel(names=["no", "yes"])}
    )
    rows = {"inputs": ["a", "b", "c"], "expected": [1, -1, None]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "train.parquet")
    traces = list(HuggingFace(str(tmp_path)).read())
    assert [trace.expected for trace in traces] == [{"expected": "yes"}, {}, {}]


def test_an_optional_field_may_come_late_but_not_never():
    records = [{"q": str(number)} for number in range(1_200)] + [{"q": "z", "stars": 1}]
    *_, last = records_as_traces(records, {"inputs": "q", "score": "stars"})
    assert last.score == 1.0
    with pytest.raises(TraceFieldError, match="'star', is in none of 1201 records"):
        list(records_as_traces(records, {"inputs": "q", "score": "star"}))
    with pytest.raises(TraceFieldError, match="in none of 1000 records"):
        list(records_as_traces(records, {"inputs": ["q", "wrong"]}))


def test_a_log_without_errors_is_no_mistake(caplog):
    (trace,) = records_as_traces([{"q": "x"}], {"inputs": "q", "error": "why"})
    assert trace.error == ""
    assert [record.getMessage() for record in caplog.records] == [
        "records: error, looked for at 'why', is in none of 1 records"
    ]


def test_a_single_line_may_begin_with_a_mark_and_lack_its_end(tmp_path):
    path = tmp_path / "logs.jsonl"
    path.write_text('{"inputs": {"q": "a"}}', encoding="utf-8-sig")
    (trace,) = JsonLines(str(path)).read()
    assert trace.inputs == {"q": "a"}


def test_spans_that_are_added_while_a_file_is_read_come_the_next_time(tmp_path):
    path = write_otlp(tmp_path / "spans.jsonl", TRACES[:2])
    more = write_otlp(tmp_path / "more.jsonl", TRACES[2:]).read_text()
    path.write_text(path.read_text() + more[:50])
    traces = OtlpFile(str(path)).read()
    first = next(traces)
    with path.open("a") as file:
        file.write(more[50:])
    assert [first.inputs, *(trace.inputs for trace in traces)] == [t.inputs for t in TRACES[:2]]
    (last,) = OtlpFile(str(path)).read("2")
    assert last.inputs == TRACES[2].inputs


def test_a_line_of_spans_that_is_no_json_is_numbered(tmp_path):
    path = write_otlp(tmp_path / "spans.jsonl", TRACES[:1])
    path.write_text(path.read_text() + "not json\n")
    with pytest.raises(TraceSourceError, match="line 3:"):
        list(OtlpFile(str(path)).read())
