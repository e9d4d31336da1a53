"""Traces in a file of OpenTelemetry spans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, takewhile
from pathlib import Path
from typing import ClassVar

import orjson

from combee_dspy.exceptions import ArgumentValueError, TraceSourceError
from combee_dspy.files import check_plain
from combee_dspy.strategies import parameters
from combee_dspy.traces._base import TraceSource
from combee_dspy.traces._json_lines import is_whole, parse_line
from combee_dspy.traces._records import Trace, as_fields, parse_score
from combee_dspy.traces._spans import Judgement, Span, trace_of_spans

# What conventions call a span's inputs and outputs: MLflow, OpenInference, OpenTelemetry's GenAI,
# Traceloop, Langfuse.
_INPUTS = (
    "mlflow.spanInputs",
    "input.value",
    "gen_ai.input.messages",
    "gen_ai.tool.call.arguments",
    "gen_ai.prompt",
    "traceloop.entity.input",
    "langfuse.observation.input",
)
_OUTPUTS = (
    "mlflow.spanOutputs",
    "output.value",
    "gen_ai.output.messages",
    "gen_ai.tool.call.result",
    "gen_ai.completion",
    "traceloop.entity.output",
    "langfuse.observation.output",
)
_MODELS = ("gen_ai.response.model", "gen_ai.request.model", "llm.model_name")
_KINDS = ("mlflow.spanType", "openinference.span.kind", "gen_ai.operation.name")
_KIND_NAMES = {
    "CHAT": "CHAT_MODEL",
    "TEXT_COMPLETION": "LLM",
    "GENERATE_CONTENT": "LLM",
    "EXECUTE_TOOL": "TOOL",
    "INVOKE_AGENT": "AGENT",
}
_EVALUATION = "gen_ai.evaluation.result"
_FAILED = ("STATUS_CODE_ERROR", 2)
_REMEDY = "Give path= a file with one OTLP JSON export a line, as the collector's exporter writes."


@parameters
class OtlpFile(TraceSource):
    """A file of OTLP spans as JSON, one export request a line.

    A trace comes once the last of its spans was read. Inputs and outputs are read by the names of
    MLflow, OpenInference, OpenTelemetry's GenAI conventions, Traceloop and Langfuse; events
    ``gen_ai.evaluation.result`` are scores and feedback.

    Args:
        path: The file.
    """

    name: ClassVar[str] = "otlp"

    path: str

    def read(self, after: str = "") -> Iterator[Trace]:
        """Yield the traces in the order in which they end; a cursor is their number so far.

        The file is read twice: first for the line on which each trace ends.
        """
        if not (after or "0").isdecimal():
            remedy = "Give the cursor of a trace of this file."
            raise ArgumentValueError("after", after, "is no number of traces", remedy)
        last: dict[str, int] = {}
        end = 0
        for end, raw in self._spans():
            if raw:
                last[_word(raw.get("traceId"))] = end
        open_traces: dict[str, list[Mapping[str, object]]] = {}
        ended = line = 0
        for number, raw in self._spans(end):
            if number != line:
                for trace in [trace for trace in open_traces if last[trace] <= line]:
                    ended += 1
                    spans = open_traces.pop(trace)
                    if ended > int(after or 0) and (read := _read_trace(trace, spans, str(ended))):
                        yield read
                line = number
            if raw:
                open_traces.setdefault(_word(raw.get("traceId")), []).append(raw)

    def _spans(self, end: int | None = None) -> Iterator[tuple[int, Mapping[str, object]]]:
        """Yield each span with its line, up to line ``end``, and an empty one behind the last line.

        Whoever writes the file may not have ended its last line yet: that one is left out.
        """
        number = 0
        try:
            file = Path(self.path)
            check_plain(file.resolve())
            with file.open("rb") as file_lines:
                lines = islice(file_lines, None if end is None else end - 1)
                for number, text in enumerate(takewhile(is_whole, lines), start=1):
                    if text.strip():
                        for span in _unpack(parse_line(text)):
                            yield number, span
        except OSError as error:
            raise TraceSourceError(self.path, str(error), _REMEDY) from error
        except orjson.JSONDecodeError as error:
            raise TraceSourceError(f"{self.path}, line {number}", str(error), _REMEDY) from error
        yield number + 1, {}


def _unpack(request: object) -> Iterator[Mapping[str, object]]:
    for resource in _maps(request, "resourceSpans"):
        for scope in _maps(resource, "scopeSpans"):
            yield from _maps(scope, "spans")


def _maps(value: object, name: str) -> list[Mapping[str, object]]:
    items = value.get(name) if isinstance(value, Mapping) else None
    return [item for item in items if isinstance(item, Mapping)] if isinstance(items, list) else []


def _read_trace(name: str, raw: Iterable[Mapping[str, object]], cursor: str) -> Trace | None:
    spans: list[Span] = []
    scores: list[float] = []
    texts: list[str] = []
    tags: dict[str, str] = {}
    for item in raw:
        values = _attributes(item)
        spans.append(_read_span(item, values))
        if not item.get("parentSpanId"):
            plain = (str, int, float, bool)
            texts_of_root = {
                key: value for key, value in values.items() if isinstance(value, plain)
            }
            skipped = (*_INPUTS, *_OUTPUTS)
            tags = {key: str(value) for key, value in texts_of_root.items() if key not in skipped}
        for event in _maps(item, "events"):
            if event.get("name") == _EVALUATION:
                result = _attributes(event)
                score = parse_score(result.get("gen_ai.evaluation.score.value"))
                if score is not None:
                    scores.append(score)
                label = _word(result.get("gen_ai.evaluation.score.label"))
                reason = _word(result.get("gen_ai.evaluation.explanation"))
                texts.append(": ".join(filter(None, (label, reason))))
    mean = sum(scores) / len(scores) if scores else None
    judgement = Judgement(mean, "\n".join(filter(None, texts)))
    return trace_of_spans(name, spans, judgement, tags, cursor)


def _read_span(item: Mapping[str, object], values: Mapping[str, object]) -> Span:
    status = item.get("status")
    failed = isinstance(status, Mapping) and status.get("code") in _FAILED
    message = _word(status.get("message")) if isinstance(status, Mapping) else ""
    kind = _word(_first(values, _KINDS)).strip('"').upper()
    started = _word(item.get("startTimeUnixNano"))
    return Span(
        _word(item.get("spanId")),
        _word(item.get("parentSpanId")),
        _word(item.get("name")),
        _KIND_NAMES.get(kind, kind),
        _parse(_first(values, _INPUTS)),
        _parse(_first(values, _OUTPUTS)),
        _word(values.get("signature")).strip('"'),
        (message or "it failed") if failed else "",
        int(started) / 1e9 if started.isdecimal() else 0.0,
        _word(_first(values, _MODELS)),
    )


def _attributes(item: Mapping[str, object]) -> dict[str, object]:
    return {
        _word(attribute.get("key")): _plain(attribute.get("value"))
        for attribute in _maps(item, "attributes")
    }


def _plain(value: object) -> object:
    """Return an OTLP ``AnyValue`` as a JSON value."""
    if not isinstance(value, Mapping):
        return None
    match dict(value):
        case {"arrayValue": {"values": list(items)}}:
            return [_plain(item) for item in items]
        case {"kvlistValue": {"values": list(items)}}:
            return _attributes({"attributes": items})
        case {"intValue": number}:
            return int(number) if str(number).lstrip("-").isdecimal() else None
    return next((item for key, item in value.items() if key.endswith("Value")), None)


def _first(values: Mapping[str, object], names: Iterable[str]) -> object:
    return next((values[name] for name in names if values.get(name) is not None), None)


def _parse(value: object) -> object:
    if isinstance(value, str) and value[:1] in '{["':
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return as_fields(value, "") or value


def _word(value: object) -> str:
    return "" if value is None else str(value)
