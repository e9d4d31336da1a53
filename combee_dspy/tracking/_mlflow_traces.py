"""Records rollouts that are over as MLflow's traces, in any store, whatever is traced meanwhile.

MLflow's own way makes spans while something runs, and sends them to the store that MLflow itself is
set to; ``mlflow.dspy.autolog`` switches it off for as long as a teleprompter compiles. Here whole
traces are written, by what MLflow's own exporter ends in.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import JsonValue

if TYPE_CHECKING:
    from mlflow.entities import Span

_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class RolloutTrace:
    """A rollout as a trace of one span.

    Attributes:
        run: Id of the MLflow run.
        effect: The rollout's number in its journal.
        name: What people see in a list of traces.
        inputs: The program's, as JSON values.
        outputs: The prediction, as JSON values.
        score: The metric's score.
        feedback: The metric's feedback.
        facts: Further attributes of the span.
        started: Unix time.
        ended: Unix time.
    """

    run: str
    effect: int
    name: str
    inputs: JsonValue
    outputs: JsonValue
    score: float
    feedback: str | None
    facts: Mapping[str, str]
    started: float
    ended: float

    @property
    def digits(self) -> str:
        """32 hex digits, the same however often the rollout is recorded."""
        return hashlib.sha256(f"{self.run}/{self.effect}".encode()).hexdigest()[:32]

    @property
    def id(self) -> str:
        """The trace's id in MLflow."""
        return f"tr-{self.digits}"


def record_trace(uri: str, experiment: str, trace: RolloutTrace) -> None:
    """Write a trace into a store, with its score as the metric's feedback.

    Raises:
        MlflowException: The store does not answer, or refuses.
    """
    from mlflow.entities import (
        AssessmentSource,
        Feedback,
        TraceData,
        TraceInfo,
        TraceLocation,
        TraceState,
    )
    from mlflow.tracing.client import TracingClient

    feedback = Feedback(
        name="score",
        value=trace.score,
        rationale=trace.feedback,
        source=AssessmentSource("CODE", "metric"),
        trace_id=trace.id,
    )
    info = TraceInfo(
        trace_id=trace.id,
        trace_location=TraceLocation.from_experiment_id(experiment),
        request_time=round(trace.started * 1000),
        execution_duration=round((trace.ended - trace.started) * 1000),
        state=TraceState.OK,
        request_preview=json.dumps(trace.inputs, ensure_ascii=False)[:1000],
        response_preview=json.dumps(trace.outputs, ensure_ascii=False)[:1000],
        trace_metadata={"mlflow.sourceRun": trace.run, "mlflow.trace_schema.version": "3"},
        tags={"mlflow.traceName": trace.name, "combee.effect": str(trace.effect)},
        assessments=[feedback],
    )
    client = TracingClient(uri)
    client._upload_trace_data(client.start_trace(info), TraceData(spans=[_span(trace)]))


def _span(trace: RolloutTrace) -> Span:
    from mlflow.entities import Span
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

    number, span = int(trace.digits, 16), int(trace.digits[:16], 16)
    values = {
        "mlflow.traceRequestId": trace.id,
        "mlflow.spanType": "CHAIN",
        "mlflow.spanInputs": trace.inputs,
        "mlflow.spanOutputs": trace.outputs,
        **trace.facts,
    }
    return Span(
        ReadableSpan(
            name=trace.name,
            context=SpanContext(number, span, False, TraceFlags(TraceFlags.SAMPLED)),
            attributes={key: json.dumps(value) for key, value in values.items()},
            start_time=int(trace.started * _NANOSECONDS),
            end_time=int(trace.ended * _NANOSECONDS),
            status=Status(StatusCode.OK),
        )
    )
