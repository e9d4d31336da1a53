"""The same few rollouts, written as each source reads them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from combee_dspy.journal import Effect, Journal
from combee_dspy.records import PredictorCall, Rollout
from combee_dspy.rollouts import encode_rollout
from combee_dspy.traces import Trace

NAMES = ("apple", "bell", "clock")
TRACES = tuple(
    Trace(
        f"t{number}",
        {"thing": name},
        {"code": "unknown"},
        (PredictorCall("route", {"thing": name}, {"code": "unknown"}),),
        0.0,
        f"The code of {name} is D{number}.",
        time=1_700_000_000.0 + number,
        prompt="c1",
        model="openai/gpt-4o-mini",
    )
    for number, name in enumerate(NAMES)
)


def write_json_lines(path: Path, traces: tuple[Trace, ...] = TRACES) -> Path:
    """Write traces under the names of their attributes."""
    with path.open("w", encoding="utf-8") as file:
        for trace in traces:
            calls = [
                {"predictor": call.predictor, "inputs": call.inputs, "outputs": call.outputs}
                for call in trace.calls
            ]
            record = {
                "id": trace.id,
                "inputs": trace.inputs,
                "outputs": trace.outputs,
                "calls": calls,
                "score": trace.score,
                "feedback": trace.feedback,
                "time": trace.time,
                "prompt": trace.prompt,
                "model": trace.model,
            }
            file.write(json.dumps(record) + "\n")
    return path


def write_journal(folder: Path, traces: tuple[Trace, ...] = TRACES, split: str = "train") -> Path:
    """Write traces as the rollouts of a run."""

    async def write() -> None:
        journal = Journal(folder)
        try:
            log = journal.run("self", 0, {"program": "p"}, {})
            for trace in traces:
                score, outputs = trace.score or 0.0, trace.outputs
                rollout = Rollout(
                    trace.id, score, trace.feedback, prediction=outputs, calls=trace.calls
                )
                value = {**encode_rollout(rollout), "inputs": json.dumps(trace.inputs)}
                await log.keep(
                    Effect(
                        f"rollout/{trace.prompt}/{trace.id}",
                        "rollout",
                        value,
                        "task",
                        "train",
                        candidate=trace.prompt,
                        split=split,
                        score=trace.score,
                        started=trace.time or 0.0,
                    )
                )
        finally:
            journal.close()

    asyncio.run(write())
    return folder


def _attributes(values: dict[str, str]) -> list[dict[str, object]]:
    return [{"key": key, "value": {"stringValue": value}} for key, value in values.items()]


def write_otlp(path: Path, traces: tuple[Trace, ...] = TRACES) -> Path:
    """Write traces as OTLP spans: all roots on the first line, the calls on lines of their own."""
    lines: list[list[dict[str, object]]] = [[]]
    for number, trace in enumerate(traces):
        start = str(int((trace.time or 0) * 1e9))
        said = {"gen_ai.evaluation.explanation": trace.feedback}
        score = {"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": trace.score}}
        root = {
            "traceId": trace.id,
            "spanId": f"r{number}",
            "name": "invoke_agent route",
            "startTimeUnixNano": start,
            "attributes": _attributes(
                {
                    "input.value": json.dumps(trace.inputs),
                    "output.value": json.dumps(trace.outputs),
                    "deployment.environment": "production",
                }
            ),
            "events": [
                {"name": "gen_ai.evaluation.result", "attributes": [*_attributes(said), score]}
            ],
        }
        call = {
            "traceId": trace.id,
            "spanId": f"c{number}",
            "parentSpanId": f"r{number}",
            "name": "route",
            "startTimeUnixNano": str(int(start) + 1),
            "attributes": _attributes(
                {
                    "openinference.span.kind": "LLM",
                    "input.value": json.dumps(trace.calls[0].inputs),
                    "output.value": json.dumps(trace.calls[0].outputs),
                    "gen_ai.request.model": trace.model,
                }
            ),
        }
        lines[0].append(root)
        lines.append([call])
    requests = [{"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]} for spans in lines]
    path.write_text("".join(json.dumps(request) + "\n" for request in requests), encoding="utf-8")
    return path


def write_mlflow(uri: str, experiment: str, traces: tuple[Trace, ...] = TRACES) -> list[str]:
    """Write traces to MLflow as a program would, with feedback; return their ids."""
    import mlflow
    from mlflow.entities import SpanType

    mlflow.set_tracking_uri(uri)
    try:
        client = mlflow.MlflowClient()
        known = client.get_experiment_by_name(experiment)
        number = known.experiment_id if known else client.create_experiment(experiment)
        ids = []
        for trace in traces:
            start = int((trace.time or 0) * 1e9)
            root = client.start_trace(
                "Router.forward", inputs=trace.inputs, experiment_id=number, start_time_ns=start
            )
            call = client.start_span(
                "Predict.forward",
                root.trace_id,
                root.span_id,
                span_type=SpanType.LLM,
                inputs=dict(trace.calls[0].inputs),
                attributes={"signature": "thing -> code", "model": trace.model},
                start_time_ns=start + 1,
            )
            client.end_span(root.trace_id, call.span_id, outputs=trace.calls[0].outputs)
            client.end_trace(root.trace_id, outputs=trace.outputs)
            ids.append(root.trace_id)
        mlflow.flush_trace_async_logging()
        for name, trace in zip(ids, traces, strict=True):
            mlflow.log_feedback(
                trace_id=name, name="correct", value=bool(trace.score), rationale=trace.feedback
            )
        return ids
    finally:
        mlflow.set_tracking_uri(None)
