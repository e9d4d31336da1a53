"""Every source yields the same traces of the same rollouts, and says what it cannot read."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from datetime import UTC, datetime

import dspy
import numpy as np
import pytest

from combee_dspy.exceptions import (
    ArgumentTypeError,
    ArgumentValueError,
    TraceFieldError,
    TraceSourceError,
)
from combee_dspy.records import PredictorCall
from combee_dspy.testing import ScriptedLM, as_chat
from combee_dspy.traces import (
    HuggingFace,
    JournalTraces,
    JsonLines,
    MLflowTraces,
    OtlpFile,
    Selection,
    Trace,
    make_matcher,
    measure_coverage,
    open_traces,
    read_call,
    records_as_traces,
)
from tests.traces.material import (
    TRACES,
    write_journal,
    write_json_lines,
    write_mlflow,
    write_otlp,
)


def told(trace):
    """What a reader sees of a trace, whatever its source calls it."""
    calls = [(dict(call.inputs), dict(call.outputs or {})) for call in trace.calls]
    return dict(trace.inputs), dict(trace.outputs), calls, trace.score, trace.feedback, trace.model


@pytest.mark.parametrize("source", ["json-lines", "hugging-face", "journal", "otlp", "mlflow"])
def test_a_source_yields_what_was_recorded(source, tmp_path, mlflow_store, request):
    if source == "mlflow":
        write_mlflow(mlflow_store, request.node.name)
        traces = list(MLflowTraces(request.node.name, mlflow_store).read())
    elif source == "otlp":
        traces = list(OtlpFile(str(write_otlp(tmp_path / "spans.jsonl"))).read())
    elif source == "journal":
        traces = list(JournalTraces(str(write_journal(tmp_path / "run"))).read())
        traces = [replace(trace, model=TRACES[0].model) for trace in traces]
    else:
        file = str(write_json_lines(tmp_path / "traces.jsonl"))
        reader = JsonLines(file) if source == "json-lines" else HuggingFace("json", files=(file,))
        traces = list(reader.read())
        assert traces[1].prompt == "c1"
    assert [told(trace) for trace in traces] == [told(trace) for trace in TRACES]
    assert [trace.time for trace in traces] == [trace.time for trace in TRACES]


def test_lines_of_somebody_elses_are_mapped(tmp_path):
    line = {
        "q": "2 + 2",
        "reply": {"text": "5", "by": "m"},
        "stars": "no",
        "at": "2026-11-01T00:00:00+00:00",
        "gold": "4",
    }
    path = tmp_path / "logs.jsonl"
    path.write_text(json.dumps(line) + "\n\n")
    fields = {
        "inputs": {"question": "q"},
        "outputs": {"answer": "reply.text"},
        "expected": {"answer": "gold"},
        "score": "stars",
        "model": "reply.by",
        "time": "at",
    }
    (trace,) = JsonLines(str(path), fields).read()
    assert trace == Trace(
        "line 1",
        {"question": "2 + 2"},
        {"answer": "5"},
        score=0.0,
        expected={"answer": "4"},
        model="m",
        time=1793491200.0,
        cursor=trace.cursor,
    )


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"inputs": "question"}, "inputs, looked for at 'question', holds no inputs"),
        (
            {"inputs": "q", "score": "stars"},
            "score, looked for at 'stars', is in none of 2 records",
        ),
        ({"inputs": "q", "score": "q"}, "score, looked for at 'q', is no score: 'How?'"),
        ({"inputs": "q", "calls": "log"}, "calls, looked for at 'log', holds no call, which"),
    ],
)
def test_a_wrong_mapping_shows_a_record_and_the_field(fields, named):
    records = [{"q": "How?", "api_key": "sk-abcdefghijkl", "log": [{"did": "x"}]}, {"q": "Why?"}]
    with pytest.raises(TraceFieldError) as error:
        list(records_as_traces(records, fields))
    assert named in str(error.value)
    assert '"q":"How?"' in str(error.value)
    assert "sk-abc" not in str(error.value)


@pytest.mark.parametrize("speaker", ["role", "from"])
def test_messages_of_a_chat_are_steps(speaker, tmp_path):
    messages = [
        {speaker: "assistant", "content": None, "tool_calls": [{"name": "look"}]},
        {speaker: "tool", "content": "FileNotFoundError: no such drawer"},
    ]
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"q": "Where?", "a": "No", "chat": messages, "stars": 0}) + "\n")
    fields = {"inputs": {"question": "q"}, "outputs": {"answer": "a"}, "score": "stars"}
    (trace,) = JsonLines(str(path), {**fields, "calls": "chat"}).read()
    assert trace.calls == (
        PredictorCall("assistant", {}, {"tool_calls": [{"name": "look"}]}),
        PredictorCall("tool", {}, {"content": "FileNotFoundError: no such drawer"}),
    )
    program = dspy.Predict("question -> answer")
    assert measure_coverage([trace], program).matched == 1, "by what was asked and answered"
    record = read_call(make_matcher(program)(trace), "self", 2_000).record
    assert [step["Step"] for step in record["Other Steps"]] == ["assistant", "tool"]


def test_values_of_data_frames_are_read():
    first, second = records_as_traces(
        [
            {
                "inputs": {"q": 1},
                "score": np.float32(0.5),
                "feedback": math.nan,
                "expected": {"answer": "4"},
                "time": datetime(2026, 11, 1, tzinfo=UTC),
            },
            {
                "inputs": {"q": 2},
                "score": math.nan,
                "feedback": math.nan,
                "expected": math.nan,
                "time": np.int64(1793491200),
            },
        ]
    )
    assert (first.score, first.feedback) == (0.5, "")
    assert first.time == second.time == 1793491200.0
    assert not second.judged


@pytest.mark.parametrize(("value", "score"), [(np.bool_(True), 1.0), (np.int64(3), 3.0)])
def test_scores_of_numpy_are_scores(value, score):
    (trace,) = records_as_traces([{"inputs": {"q": 1}, "score": value}])
    assert trace.score == score


def test_a_data_frame_says_how_to_hand_it_over():
    with pytest.raises(ArgumentTypeError, match=r"return_type='list'"):
        list(open_traces(dict.fromkeys(["trace_id", "trace"]).keys()))


def test_fields_that_no_trace_has_are_refused():
    with pytest.raises(ArgumentValueError, match="reward"):
        JsonLines("x.jsonl", {"reward": "stars"})


def test_what_is_no_json_names_its_line(tmp_path):
    path = tmp_path / "logs.jsonl"
    path.write_text('{"inputs": {"q": 1}}\nnot json\n')
    with pytest.raises(TraceSourceError, match=r"line 2"):
        list(JsonLines(str(path)).read())
    with pytest.raises(TraceSourceError, match="No such file"):
        list(JsonLines(str(tmp_path / "none.jsonl")).read())


def test_heldout_rollouts_teach_nobody(tmp_path):
    write_journal(tmp_path / "run", split="heldout")
    assert not list(JournalTraces(str(tmp_path / "run")).read())


def test_what_mlflow_refuses_is_no_source(mlflow_store, request):
    write_mlflow(mlflow_store, request.node.name, ())
    with pytest.raises(TraceSourceError, match="nonsense"):
        list(MLflowTraces(request.node.name, mlflow_store, "nonsense ~ 3").read())


def test_a_failed_mlflow_trace_has_its_error(mlflow_store, request, monkeypatch):
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_store)
    mlflow.set_tracking_uri(mlflow_store)
    mlflow.set_experiment(request.node.name)
    try:
        with pytest.raises(KeyError), mlflow.start_span("serve") as span:
            span.set_inputs({"question": "Which?"})
            raise KeyError("apple")
        mlflow.flush_trace_async_logging()
        (trace,) = MLflowTraces(request.node.name, mlflow_store).read()
    finally:
        mlflow.set_tracking_uri(None)
    assert trace.error == "KeyError: 'apple'"
    assert trace.outputs is None
    assert trace.judged


def test_predictors_are_matched_by_their_fields():
    class Two(dspy.Module):
        def __init__(self):
            super().__init__()
            self.plan = dspy.Predict("question -> plan")
            self.first = dspy.Predict("question, plan -> answer")
            self.second = dspy.Predict("question, plan -> answer")

    def trace(name, *calls, **judged):
        return Trace(name, {"question": name}, {"answer": "5"}, calls, **judged)

    plan = PredictorCall("Predict.forward", {"question": "a"}, {"plan": "p"})
    answer = PredictorCall("x", {"question": "a", "plan": "p"}, {"answer": "5"})
    stamped = replace(answer, predictor="second")
    tool = PredictorCall("Tool.search", {"query": "a"}, {"output": "b"})
    coverage = measure_coverage(
        [
            trace("a", plan, answer, score=0.0),
            trace("a", answer, score=0.0),
            trace("b", stamped),
            trace("c", tool, score=0.0),
        ],
        Two(),
    )
    assert (coverage.traces, coverage.matched, coverage.ambiguous, coverage.unmatched) == (
        4,
        2,
        1,
        1,
    )
    assert (coverage.unjudged, coverage.repeated) == (1, 1)
    assert coverage.calls == {"plan": 1, "second": 1}
    assert coverage.foreign == {"Tool.search": 1}
    assert str(coverage) == (
        "4 traces: 2 match, 1 are ambiguous, 1 match no predictor, 1 lack a label, 1 repeat"
    )


def test_a_file_that_grows_is_read_as_far_as_its_lines_are_whole(tmp_path):
    path = tmp_path / "logs.jsonl"
    line = '{"inputs": {"q": 3}}'
    path.write_text("".join(f'{{"inputs": {{"q": {number}}}}}\n' for number in range(3)) + line[:9])
    traces = list(JsonLines(str(path)).read())
    assert [trace.inputs["q"] for trace in traces] == [0, 1, 2]
    with path.open("a") as file:
        file.write(line[9:])
    (last,) = JsonLines(str(path)).read(traces[-1].cursor)
    assert (last.inputs, last.id) == ({"q": 3}, "line 4")


def test_what_is_nested_too_deep_is_cut_off():
    value: object = "bottom"
    for _ in range(5_000):
        value = [value]
    (trace,) = records_as_traces([{"inputs": {"q": value}, "feedback": "Bad."}])
    assert "[nested too deep]" in json.dumps(trace.inputs)
    assert Selection().choose([trace]).traces == (trace,)


def test_what_autolog_records_is_a_trace(mlflow_store, request, autolog):
    import mlflow

    class Program(dspy.Module):
        def __init__(self):
            super().__init__()
            self.plan = dspy.Predict("question -> plan")
            self.answer = dspy.ChainOfThought("question, plan -> answer")

        def forward(self, question):
            return self.answer(question=question, plan=self.plan(question=question).plan)

    def reply(asked):
        if "reasoning" in asked.text:
            return as_chat({"reasoning": "r", "answer": "4"})
        return as_chat({"plan": "add"})

    mlflow.set_tracking_uri(mlflow_store)
    mlflow.set_experiment(request.node.name)
    autolog()
    try:
        with dspy.context(lm=ScriptedLM(reply), adapter=dspy.ChatAdapter()):
            Program()(question="2 + 2")
        mlflow.flush_trace_async_logging()
        source = MLflowTraces(request.node.name, mlflow_store)
        (trace,) = source.read()
        coverage = source.coverage(Program())
    finally:
        mlflow.set_tracking_uri(None)
    assert trace.inputs == {"question": "2 + 2"}
    assert trace.outputs["answer"] == "4"
    assert trace.model == "scripted/double"
    assert [dict(call.inputs) for call in trace.calls] == [
        {"question": "2 + 2"},
        {"question": "2 + 2", "plan": "add"},
    ]
    assert coverage.calls == {"plan": 1, "answer.predict": 1}


@pytest.mark.slow
def test_a_server_of_mlflow_is_read_like_a_store(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend-store-uri", store, "--artifacts-destination", str(tmp_path / "files")]
    address = f"http://127.0.0.1:{port}"
    # Its workers for jobs would outlive it.
    surroundings = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    server = subprocess.Popen(command, cwd=tmp_path, env=surroundings)  # noqa: S603 - MLflow itself
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/health"):  # noqa: S310 - our own server
                break
            time.sleep(0.2)
        write_mlflow(address, "served")
        source = MLflowTraces("served", address)
        traces = list(source.read())
        assert [told(trace) for trace in traces] == [told(trace) for trace in TRACES]
        assert list(source.read(traces[0].cursor)) == traces[1:]
    finally:
        server.terminate()
        server.wait(30)
