"""Traces in MLflow: what it recorded itself, and what its translators read of others' spans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, ClassVar

from combee_dspy.exceptions import ArgumentValueError, TraceSourceError, how_to_install
from combee_dspy.lms.redact import scrub
from combee_dspy.strategies import parameters
from combee_dspy.traces._base import TraceSource
from combee_dspy.traces._records import Trace, as_fields, parse_score, parse_time
from combee_dspy.traces._spans import Judgement, Span, trace_of_spans

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Assessment
    from mlflow.entities import Span as MLflowSpan
    from mlflow.entities import Trace as MLflowTrace

__all__ = ["MLflowTraces", "trace_of_mlflow"]

# How many traces are held at a time.
_PAGE = 100
_FAILED = "ERROR"


@parameters
class MLflowTraces(TraceSource):
    """The traces of an MLflow experiment, oldest first.

    Feedback is score and feedback: numbers, booleans and words such as "yes" count as scores,
    rationales as feedback. An expectation is the expected output field of its name. Spans are
    calls. Through MLflow's translators it reads what OpenTelemetry's GenAI conventions,
    OpenInference, Langfuse and others send to an MLflow server.

    Args:
        experiment: The experiment's name.
        tracking_uri: The store or server; ``None`` for MLflow's own setting.
        filter: MLflow's filter of traces, such as ``"tag.environment = 'production'"``.
        since: ISO 8601 time from which traces are read; empty for the first.
        score: Name of the feedback that is the score; empty for the mean of all that are scores.
    """

    name: ClassVar[str] = "mlflow"

    experiment: str
    tracking_uri: str | None = None
    filter: str = ""
    since: str = ""
    score: str = ""

    def __post_init__(self) -> None:
        if self.since and parse_time(self.since) is None:
            remedy = "Give a date such as 2026-11-01, or a date with a time."
            raise ArgumentValueError("MLflowTraces.since", self.since, "is no time", remedy)

    def read(self, after: str = "") -> Iterator[Trace]:
        """Yield the traces; a cursor is the time of a trace in milliseconds, and its id."""
        start, _, last = after.partition(":")
        if after and not (start.isdecimal() and last):
            remedy = "Give the cursor of a trace of this experiment."
            raise ArgumentValueError("after", after, "is no cursor of an experiment", remedy)
        first = int(start or 1_000 * (parse_time(self.since) or 0))
        # Traces of one millisecond come in an order of their own: by id, so that a cursor holds.
        for time, group in groupby(self._search(first), key=lambda trace: trace.info.request_time):
            for recorded in sorted(group, key=lambda trace: trace.info.trace_id):
                if time == first and recorded.info.trace_id <= last:
                    continue
                trace = trace_of_mlflow(recorded, self.score)
                if trace is not None:
                    yield trace

    def _search(self, first: int) -> Iterator[MLflowTrace]:
        client = self._client()
        from mlflow.exceptions import MlflowException

        condition = f"trace.timestamp_ms >= {first}"
        condition = f"{self.filter} AND {condition}" if self.filter else condition
        token: str | None = None
        try:
            experiment = client.get_experiment_by_name(self.experiment)
            if experiment is None:
                raise self._error("there is no such experiment")
            while True:
                page = client.search_traces(
                    locations=[experiment.experiment_id],
                    filter_string=condition,
                    order_by=["timestamp_ms ASC"],
                    max_results=_PAGE,
                    page_token=token,
                )
                yield from page
                token = page.token
                if not token:
                    return
        except MlflowException as error:
            remedy = "See that the store answers, and that MLflow can read the filter."
            raise self._error(scrub(str(error)), remedy) from error

    def _client(self) -> MlflowClient:
        try:
            import mlflow
        except ImportError as error:
            raise self._error(
                f"mlflow is not installed. {how_to_install('combee-dspy[mlflow]')}"
            ) from error
        return mlflow.MlflowClient(tracking_uri=self.tracking_uri)

    def _error(
        self, problem: str, remedy: str = "Name an experiment that holds traces."
    ) -> TraceSourceError:
        store = f" in {self.tracking_uri}" if self.tracking_uri else ""
        where = f"MLflow's experiment {self.experiment!r}{store}"
        return TraceSourceError(where, problem, remedy)


def trace_of_mlflow(recorded: MLflowTrace, score: str = "") -> Trace | None:
    """Return a trace of MLflow's; ``None`` where it holds no span with inputs.

    Args:
        recorded: What MLflow returned, with its spans.
        score: Name of the feedback that is the score; empty for the mean of all that are scores.
    """
    info = recorded.info
    return trace_of_spans(
        info.trace_id,
        [_read_span(span) for span in recorded.data.spans],
        _read_assessments(info.assessments, score),
        {**info.trace_metadata, **info.tags},
        f"{info.request_time}:{info.trace_id}",
    )


def _read_span(span: MLflowSpan) -> Span:
    failed = span.status.status_code.name == _FAILED
    raised = [event.attributes or {} for event in span.events if event.name == "exception"]
    error = ""
    if failed:
        details = raised[-1] if raised else {}
        kind = str(details.get("exception.type", "")).rpartition(".")[2]
        message = str(details.get("exception.message", span.status.description or ""))
        error = ": ".join(filter(None, (kind or "Error", message)))
    attributes = span.attributes
    return Span(
        span.span_id,
        span.parent_id or "",
        # A server of ours says which predictor it was.
        str(attributes.get("combee.component") or span.name),
        span.span_type,
        span.inputs,
        span.outputs,
        str(attributes.get("signature") or ""),
        error,
        span.start_time_ns / 1e9,
        str(attributes.get("model") or span.model_name or ""),
    )


def _read_assessments(assessments: Iterable[Assessment], name: str) -> Judgement:
    """Return what people and judges said. What was overridden, or failed, does not count."""
    from mlflow.entities import Expectation, Feedback

    scores: list[float] = []
    texts: list[str] = []
    expected: dict[str, object] = {}
    for assessment in assessments:
        if assessment.valid is False:
            continue
        if isinstance(assessment, Expectation):
            value = assessment.value
            expected |= as_fields(value, assessment.name)
        elif isinstance(assessment, Feedback) and assessment.feedback.error is None:
            score = parse_score(assessment.value)
            if score is not None and name in ("", assessment.name):
                scores.append(score)
            # A label that is no score says something, and so does a rationale.
            label = str(assessment.value) if score is None and assessment.value is not None else ""
            text = ": ".join(filter(None, (label, assessment.rationale)))
            texts.append(text if name in ("", assessment.name) else f"{assessment.name}: {text}")
    mean = sum(scores) / len(scores) if scores else None
    return Judgement(mean, "\n".join(filter(None, texts)), expected)
