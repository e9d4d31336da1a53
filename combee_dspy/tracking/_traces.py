"""A few rollouts as MLflow traces."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from combee_dspy.tracking._rows import Row
from combee_dspy.tracking._text import cut, one_line

__all__ = ["ROLLOUT_TAG", "trace_id_of", "write_traces"]

ROLLOUT_TAG = "combee.rollout_id"
"""The tag by which a rollout's trace is found."""

_PREVIEW = 500


def trace_id_of(row: Row) -> str:
    """Return the trace's id: the same for the same rollout, so that a trace written twice is one trace."""
    return f"tr-{hashlib.sha256(row.rollout_id.encode()).hexdigest()[:32]}"


def write_traces(client: Any, rollouts: Sequence[tuple[Row, str, float]], run_id: str, experiment_id: str) -> None:
    """Write rollouts as traces: a span for the program, one per predictor call below it.

    All spans go to the store in one call, after their traces: the other way
    round the store makes each trace of its spans first and merges ours into it,
    at twice the cost. MLflow's own way, a span context around the program, costs
    some 60 ms a trace and drops traces when its queue is full. Written twice, a
    trace is one trace.

    Args:
        client: MLflow's ``TracingClient``.
        rollouts: Each with why it is shown, and when it ended, in seconds since 1970.
        run_id: The MLflow run.
        experiment_id: Its experiment.
    """
    from mlflow.entities import Span, TraceInfo, TraceLocation, TraceState

    for row, why, ended in rollouts:
        tags = {
            "mlflow.traceName": f"{row.purpose} rollout",
            ROLLOUT_TAG: row.rollout_id,
            "combee.candidate_id": row.candidate_id,
            "combee.why": cut(why, 250),
        }
        client.start_trace(
            TraceInfo(
                trace_id=trace_id_of(row),
                trace_location=TraceLocation.from_experiment_id(experiment_id),
                request_time=int((ended - row.latency) * 1000),
                execution_duration=int(row.latency * 1000),
                state=TraceState.ERROR if row.error_class else TraceState.OK,
                request_preview=one_line(row.inputs, _PREVIEW),
                response_preview=one_line(row.error or row.prediction, _PREVIEW),
                trace_metadata={"mlflow.sourceRun": run_id, "mlflow.trace_schema.version": "3"},
                tags=tags,
            )
        )
    spans = [span for row, why, ended in rollouts for span in _spans(row, why, ended)]
    client.log_spans(experiment_id, [Span.from_dict(span) for span in spans])


def _spans(row: Row, why: str, ended: float) -> Iterator[dict[str, Any]]:
    trace_id, times = trace_id_of(row), (ended - row.latency, ended)
    facts = {"score": row.score, "feedback": row.feedback, "example_id": row.example_id, "why": why}
    yield _span(trace_id, 0, "rollout", times, (row.inputs, row.prediction), facts, row.error)
    for number, (caller, inputs, outputs) in enumerate(row.steps, start=1):
        # The order is known, the time of each is not.
        yield _span(trace_id, number, caller or "call", times, (inputs, outputs), {})


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
