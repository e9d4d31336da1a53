"""What a prompt asks the model to write: the output fields and their format.

DSPy's adapters end the last user message with one sentence that lists the
output fields in order, with their types where they are not ``str``; the
system message adds a JSON schema or a list of options. Both are read here,
and so are ``response_format`` and a request for a fenced block. TextGrad asks
for an improved text between tags, and for feedback towards an objective.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from combee_simulator.requests import ChatRequest, Message

__all__ = [
    "OutputField",
    "RequestShape",
    "Style",
    "final_user_message",
    "request_shape",
    "without_requirements",
]

_MARKERS_SENTENCE = "Respond with the corresponding output fields, starting with the field "
_JSON_SENTENCE = "Respond with a JSON object in the following order of fields: "
_LISTED = re.compile(
    r"`(?:\[\[ ## )?(?P<name>\w+)(?: ## \]\])?`"
    r"(?: \(must be (?:formatted as a valid Python (?P<type>.*?)|a JSON object.*?)\))?"
    r"(?=, then `|, and then ending with|\.)"
)
_DECLARED = re.compile(r"^\d+\. `(?P<name>\w+)` \((?P<type>.*?)\):", re.MULTILINE)
_NOTE = r"\{%s\}\s+# note: the value you produce (.*)"
_FENCED = re.compile(r"(?:within|inside|in) ``` ?blocks?", re.IGNORECASE)
_TAGGED = re.compile(r"between the <(\w+)> tags")
_OBJECTIVE = "<OBJECTIVE_FUNCTION>"
_SCHEMA_TYPES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "array": "list",
}


class Style(StrEnum):
    """How the answer is laid out."""

    MARKERS = "markers"
    JSON = "json"
    FENCED = "fenced"
    TAGGED = "tagged"
    PROSE = "prose"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class OutputField:
    """An output field that is asked for.

    Attributes:
        name: Its name.
        type: Its Python type as DSPy writes it, ``"str"`` where nothing is said.
        options: The values allowed, or empty.
        schema: The JSON schema of its value, or None.
    """

    name: str
    type: str = "str"
    options: tuple[Any, ...] = ()
    schema: Mapping[str, Any] | None = None

    @property
    def is_text(self) -> bool:
        """Whether free text is asked for."""
        return self.type in ("str", "Reasoning") and not self.options

    @property
    def is_list(self) -> bool:
        """Whether a list is asked for."""
        return self.type.startswith("list") or (self.schema or {}).get("type") == "array"


@dataclass(frozen=True, slots=True)
class RequestShape:
    """The layout and the fields of the answer.

    A tagged one has its tag as a field, a fenced or plain one has none.
    """

    style: Style
    fields: tuple[OutputField, ...] = ()


def final_user_message(messages: Sequence[Message]) -> int:
    """Return the index of the last user message, or of the last message where no user spoke."""
    users = [place for place, message in enumerate(messages) if message.role == "user"]
    return users[-1] if users else len(messages) - 1


def without_requirements(text: str) -> str:
    """Return a user message without the closing sentence that lists the output fields."""
    places = [
        place
        for sentence in (_MARKERS_SENTENCE, _JSON_SENTENCE)
        if (place := text.rfind(sentence)) >= 0
    ]
    return text[: max(places)].rstrip() if places else text


def request_shape(request: ChatRequest) -> RequestShape:
    """Read from a request what its answer must look like."""
    text = request.messages[final_user_message(request.messages)].text
    system = "\n".join(
        message.text for message in request.messages if message.role in ("system", "developer")
    )
    asked_json = (request.response_format or {}).get("type") in ("json_schema", "json_object")
    for sentence, style in ((_MARKERS_SENTENCE, Style.MARKERS), (_JSON_SENTENCE, Style.JSON)):
        place = text.rfind(sentence)
        if place >= 0:
            fields = _listed(text[place + len(sentence) :], system)
            if fields:
                return RequestShape(Style.JSON if asked_json else style, fields)
    if asked_json:
        return RequestShape(
            Style.JSON, _from_schema(request.response_format or {}) or _declared(system)
        )
    if _FENCED.search(text):
        return RequestShape(Style.FENCED)
    tag = _TAGGED.search(text)
    if tag is not None:
        return RequestShape(Style.TAGGED, (OutputField(tag[1]),))
    return RequestShape(Style.PROSE if _OBJECTIVE in text else Style.PLAIN)


def _listed(sentence: str, system: str) -> tuple[OutputField, ...]:
    matches = _LISTED.finditer(sentence.split("\n", 1)[0])
    return tuple(
        _field(match["name"], match["type"] or "str", system)
        for match in matches
        if match["name"] != "completed"
    )


def _declared(system: str) -> tuple[OutputField, ...]:
    _, _, outputs = system.partition("Your output fields are:")
    block = outputs.partition("All interactions will be structured")[0]
    return tuple(
        _field(match["name"], match["type"], system) for match in _DECLARED.finditer(block)
    )


def _field(name: str, type_name: str, system: str) -> OutputField:
    if type_name == "str":
        return OutputField(name)
    options = _literal_options(type_name)
    note = re.search(_NOTE % re.escape(name), system)
    if note is None or options:
        return OutputField(name, type_name, options)
    text = note[1]
    if text.endswith(('",', '"')) and '\\"' in text:
        # The JSON adapter shows its note inside a JSON string.
        text = text.rstrip(",").removesuffix('"').replace('\\"', '"').replace("\\\\", "\\")
    _, _, schema = text.partition("JSON schema: ")
    if schema:
        return OutputField(name, type_name, schema=_json_object(schema))
    _, _, listed = text.partition("one of: ")
    return OutputField(
        name, type_name, tuple(listed.strip().strip('",').split("; ")) if listed else ()
    )


def _literal_options(type_name: str) -> tuple[Any, ...]:
    if not type_name.startswith("Literal["):
        return ()
    try:
        return tuple(ast.literal_eval(type_name.removeprefix("Literal")))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return ()


def _json_object(text: str) -> Mapping[str, Any] | None:
    try:
        value, _ = json.JSONDecoder().raw_decode(text.strip())
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _from_schema(response_format: Mapping[str, Any]) -> tuple[OutputField, ...]:
    wrapper = response_format.get("json_schema")
    schema = wrapper.get("schema") if isinstance(wrapper, dict) else None
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        return ()
    fields = []
    for name, part in schema["properties"].items():
        # Definitions live at the root; a field's schema takes them along.
        field_schema = (
            dict(part, **{"$defs": schema.get("$defs", {})}) if isinstance(part, dict) else {}
        )
        kind = field_schema.get(
            "type", "object" if "$ref" in field_schema or "anyOf" in field_schema else "string"
        )
        options = field_schema.get("enum")
        fields.append(
            OutputField(
                name, _SCHEMA_TYPES.get(str(kind), "object"), tuple(options or ()), field_schema
            )
            if isinstance(options, list | None)
            else OutputField(name)
        )
    return tuple(fields)
