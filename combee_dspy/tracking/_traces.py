"""A few rollouts as MLflow traces."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from combee_dspy.tracking._rows import Row
from combee_dspy.tracking._text import cut, one_line

__all__ = ["ROLLOUT_TAG", "trace_id_of", "write_trace"]

ROLLOUT_TAG = "combee.rollout_id"
"""The tag by which a rollout's trace is found."""

_PREVIEW = 500


def trace_id_of(row: Row) -> str:
    """Return the trace's id: the same for the same rollout, so that a trace written twice is one trace."""
    return f"tr-{hashlib.sha256(row.rollout_id.encode()).hexdigest()[:32]}"


def write_trace(client: Any, row: Row, why: str, run_id: str, experiment_id: str, ended: float) -> None:
    """Write one rollout as a trace: a span for the program, one per predictor call below it.

    Spans and trace go to the store in one call each. MLflow's own way, a span
    context around the program, costs some 60 ms a trace and drops traces when
    its queue is full.

    Args:
        client: MLflow's ``TracingClient``.
        row: The rollout.
        why: Why it is shown.
        run_id: The MLflow run.
        experiment_id: Its experiment.
        ended: When the rollout ended, in seconds since 1970.
    """
    from mlflow.entities import Span, TraceInfo, TraceLocation, TraceState

    trace_id = trace_id_of(row)
    begun = ended - row.latency
    failed = bool(row.error_class)
    root = {"score": row.score, "feedback": row.feedback, "example_id": row.example_id, "why": why}
    times = (begun, ended)
    spans = [_span(trace_id, 0, "rollout", times, (row.inputs, row.prediction), root, row.error)]
    for number, (caller, inputs, outputs) in enumerate(row.steps, start=1):
        # The order is known, the time of each is not.
        spans.append(_span(trace_id, number, caller or "call", times, (inputs, outputs), {}))
    client.log_spans(experiment_id, [Span.from_dict(span) for span in spans])
    client.start_trace(
        TraceInfo(
            trace_id=trace_id,
            trace_location=TraceLocation.from_experiment_id(experiment_id),
            request_time=int(begun * 1000),
            execution_duration=int(row.latency * 1000),
            state=TraceState.ERROR if failed else TraceState.OK,
            request_preview=one_line(row.inputs, _PREVIEW),
            response_preview=one_line(row.error or row.prediction, _PREVIEW),
            trace_metadata={"mlflow.sourceRun": run_id, "mlflow.trace_schema.version": "3"},
            tags={
                "mlflow.traceName": f"{row.purpose} rollout",
                ROLLOUT_TAG: row.rollout_id,
                "combee.candidate_id": row.candidate_id,
                "combee.why": cut(why, 250),
            },
        )
    )


def _span(
    trace_id: str,
    number: int,
    name: str,
    times: tuple[float, float],
    texts: tuple[str, str],
    attributes: dict[str, Any],
    error: str = "",
) -> dict[str, Any]:
    begun, ended = (int(moment * 1e9) for moment in times)
    plain = {
        "mlflow.traceRequestId": trace_id,
        "mlflow.spanType": "CHAIN" if number == 0 else "LLM",
        "mlflow.spanInputs": _value(texts[0]),
        "mlflow.spanOutputs": _value(texts[1]),
        **attributes,
    }
    return {
        "trace_id": base64.b64encode(bytes.fromhex(trace_id.removeprefix("tr-"))).decode(),
        "span_id": _span_id(trace_id, number),
        "parent_span_id": "" if number == 0 else _span_id(trace_id, 0),
        "name": cut(name, 200),
        "start_time_unix_nano": begun,
        "end_time_unix_nano": max(ended, begun + 1),
        "status": {"code": "STATUS_CODE_ERROR" if error else "STATUS_CODE_OK", "message": cut(error, 500)},
        "attributes": {key: json.dumps(value, ensure_ascii=False) for key, value in plain.items()},
        "events": [],
    }


def _span_id(trace_id: str, number: int) -> str:
    return base64.b64encode(hashlib.sha256(f"{trace_id}/{number}".encode()).digest()[:8]).decode()


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
