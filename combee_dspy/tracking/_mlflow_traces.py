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
from typing import Any

__all__ = ["RolloutTrace", "TraceRecorder"]

_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class RolloutTrace:
    """A rollout as a trace of one span.

    Attributes:
        effect: The rollout's number in its journal.
        name: What people see in a list of traces.
        inputs: The program's, as JSON values.
        outputs: The prediction, as JSON values.
        score: What the metric gave.
        feedback: What the metric said.
        facts: Further attributes of the span.
        started: Unix time.
        ended: Unix time.
    """

    effect: int
    name: str
    inputs: Any
    outputs: Any
    score: float
    feedback: str | None
    facts: Mapping[str, str]
    started: float
    ended: float


class TraceRecorder:
    """Writes traces of one MLflow run. The same rollout has the same name, however often it is
    told.

    Args:
        uri: The store.
        experiment: Id of the run's experiment.
        run: The MLflow run's id.
    """

    def __init__(self, uri: str, experiment: str, run: str) -> None:
        self._uri, self._experiment, self._run = uri, experiment, run

    def name_of(self, trace: RolloutTrace) -> str:
        """Return a trace's id."""
        return f"tr-{self._digits(trace)}"

    def _digits(self, trace: RolloutTrace) -> str:
        return hashlib.sha256(f"{self._run}/{trace.effect}".encode()).hexdigest()[:32]

    def record(self, trace: RolloutTrace) -> None:
        """Write a trace with its score as the metric's feedback.

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

        name = self.name_of(trace)
        source = AssessmentSource("CODE", "metric")
        feedback = Feedback(
            name="score",
            value=trace.score,
            rationale=trace.feedback,
            source=source,
            trace_id=name,
        )
        info = TraceInfo(
            trace_id=name,
            trace_location=TraceLocation.from_experiment_id(self._experiment),
            request_time=round(trace.started * 1000),
            execution_duration=round((trace.ended - trace.started) * 1000),
            state=TraceState.OK,
            request_preview=json.dumps(trace.inputs, ensure_ascii=False)[:1000],
            response_preview=json.dumps(trace.outputs, ensure_ascii=False)[:1000],
            trace_metadata={"mlflow.sourceRun": self._run, "mlflow.trace_schema.version": "3"},
            tags={"mlflow.traceName": trace.name, "combee.effect": str(trace.effect)},
            assessments=[feedback],
        )
        client = TracingClient(self._uri)
        stored = client.start_trace(info)
        client._upload_trace_data(stored, TraceData(spans=[self._span(trace, name)]))

    def _span(self, trace: RolloutTrace, name: str) -> Any:
        from mlflow.entities import Span
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

        digits = self._digits(trace)
        context = SpanContext(
            int(digits, 16), int(digits[:16], 16), False, TraceFlags(TraceFlags.SAMPLED)
        )
        values = {
            "mlflow.traceRequestId": name,
            "mlflow.spanType": "CHAIN",
            "mlflow.spanInputs": trace.inputs,
            "mlflow.spanOutputs": trace.outputs,
            **trace.facts,
        }
        return Span(
            ReadableSpan(
                name=trace.name,
                context=context,
                attributes={key: json.dumps(value) for key, value in values.items()},
                start_time=int(trace.started * _NANOSECONDS),
                end_time=int(trace.ended * _NANOSECONDS),
                status=Status(StatusCode.OK),
            )
        )
