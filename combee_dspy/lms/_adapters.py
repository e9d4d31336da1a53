"""Adapters for models that cannot hold a format: answers that the service enforces."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, Literal, get_args, get_origin

import dspy
import pydantic
from dspy.adapters.utils import serialize_for_json
from dspy.utils.exceptions import AdapterParseError
from typing_extensions import TypedDict


class ConstrainedJSONAdapter(dspy.JSONAdapter):
    """DSPy's JSON prompts, and an answer that the service holds to a JSON schema in which
    everything ends.

    Works on any service that enforces ``response_format`` of type ``json_schema``; a ``Literal``
    output becomes an enum, so that the model can only choose. A small model repeats itself until it
    is cut off, and what is cut off does not parse. So lists, dicts and free text are bounded in the
    schema, unless the field's own type bounds them. No bound helps where ``max_tokens`` is below
    what it allows; llama.cpp does not enforce that of dicts.

    The prompts are DSPy's on purpose: with shorter ones, without field markers, Qwen2.5-Coder-1.5B
    wrote down none of five planted lessons, and with these all five (see the results page).

    Args:
        callbacks: DSPy callbacks around ``format`` and ``parse``.
        max_items: Most items in a list, and most keys of a dict beyond those that its type names.
        max_chars: Most characters in a free-text value, such as a whole instruction; a text in a
            list, such as a lesson, may have a quarter of it. llama.cpp enforces no bound above
            1,999.
    """

    def __init__(
        self, callbacks: list[Any] | None = None, max_items: int = 64, max_chars: int = 1_999
    ) -> None:
        super().__init__(callbacks=callbacks, use_native_function_calling=False)
        self.max_items = max_items
        self.max_chars = max_chars

    def _prepare_response_format(
        self, lm: dspy.BaseLM, lm_kwargs: dict[str, Any], signature: type[dspy.Signature]
    ) -> None:
        # DSPy's own schema has no bounds, and it is asked for only where LiteLLM knows the model.
        lm_kwargs.update(self._constraint(signature))

    def parse(self, signature: type[dspy.Signature], completion: str) -> dict[str, Any]:
        """Return the typed outputs.

        Raises:
            AdapterParseError: The completion is not JSON (it was cut at ``max_tokens``, or the
                service does not enforce schemas), or a value does not fit its field's type.
        """
        try:
            return dict(_answer_type(signature).validate_json(completion))
        except pydantic.ValidationError as error:
            reason = "; ".join(problem["msg"] for problem in error.errors(include_url=False))
            raise AdapterParseError(
                type(self).__name__, signature, completion, message=reason
            ) from error

    def _constraint(self, signature: type[dspy.Signature]) -> dict[str, Any]:
        schema = _bound(_answer_type(signature).json_schema(), self.max_items, self.max_chars)
        return _response_format("answer", {**schema, "additionalProperties": False})


class ChoiceAdapter(ConstrainedJSONAdapter):
    """Answers a signature with one ``Literal`` output by the bare label, and asks for it in few
    words.

    The prompt of a choice is the signature's instructions, then the demonstrations as chat turns,
    then the question: no field markers and no format lesson, because the schema leaves no other
    form. A tiny model reads demonstrations of bare labels better than JSON around them: on the
    routing task, twelve demonstrations lift it from 0.4 to 0.7 this way and not at all in JSON (see
    the results page). The choice is asked for as a JSON schema with an ``enum`` at its top, which
    the embedded engine turns into a grammar of bare labels; a service that answers it with a JSON
    string is understood too. Any other signature is asked and answered as
    :class:`ConstrainedJSONAdapter` does.
    """

    def format_system_message(self, signature: type[dspy.Signature]) -> str:
        """Return the signature's instructions, and the descriptions of fields that have one."""
        if _choice(signature) is None:
            return super().format_system_message(signature)
        lines = [signature.instructions]
        for name, field in signature.fields.items():
            description = (field.json_schema_extra or {}).get("desc")
            if description not in (None, "", f"${{{name}}}"):  # DSPy fills in the last one itself
                lines.append(f"{name}: {description}")
        return "\n".join(lines)

    def format_user_message_content(
        self,
        signature: type[dspy.Signature],
        inputs: dict[str, Any],
        prefix: str = "",
        suffix: str = "",
        main_request: bool = False,
    ) -> str:
        """Return the inputs: the bare value where there is one field, else ``name: value``
        lines.
        """
        if _choice(signature) is None:
            return super().format_user_message_content(
                signature, inputs, prefix, suffix, main_request
            )
        is_alone = len(signature.input_fields) == 1
        lines = [
            _text(inputs[name]) if is_alone else f"{name}: {_text(inputs[name])}"
            for name in signature.input_fields
            if inputs.get(name) is not None
        ]
        return "\n".join(part for part in (prefix, *lines, suffix) if part)

    def format_assistant_message_content(
        self,
        signature: type[dspy.Signature],
        outputs: dict[str, Any],
        missing_field_message: str | None = None,
    ) -> str:
        """Return the label alone, where the signature is a choice."""
        choice = _choice(signature)
        if choice is None or outputs.get(choice[0]) is None:
            return super().format_assistant_message_content(
                signature, outputs, missing_field_message
            )
        return str(outputs[choice[0]])

    def parse(self, signature: type[dspy.Signature], completion: str) -> dict[str, Any]:
        """Return the label.

        Raises:
            AdapterParseError: It is none of the choices: the service does not enforce grammars.
        """
        choice = _choice(signature)
        if choice is None:
            return super().parse(signature, completion)
        name, labels = choice
        # White space around an answer is the service's, unless it is the label's own.
        label = completion if completion in labels else completion.strip()
        if label not in labels and label.startswith('"'):
            with suppress(ValueError):
                label = json.loads(label)
        if label not in labels:
            reason = "The answer is none of the choices."
            raise AdapterParseError(type(self).__name__, signature, completion, message=reason)
        return {name: label}

    def _constraint(self, signature: type[dspy.Signature]) -> dict[str, Any]:
        choice = _choice(signature)
        if choice is None:
            return super()._constraint(signature)
        return _response_format("choice", {"type": "string", "enum": list(choice[1])})


def grammar_of(response_format: Any) -> str | None:
    """Return the grammar of bare labels for a choice, ``None`` for any other format.

    Args:
        response_format: As it stands in a chat request, or in DSPy's canonical one.
    """
    schema = response_format
    for key in ("json_schema", "schema"):
        schema = schema.get(key, schema) if isinstance(schema, dict) else {}
    if not isinstance(schema, dict) or schema.get("type") != "string":
        return None
    labels = schema.get("enum")
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        return None
    # A JSON string is also a string of GBNF: both escape quotes, backslashes and control characters
    # alike.
    return "root ::= " + " | ".join(json.dumps(label) for label in labels)


def _response_format(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the argument of a request that holds its answer to a JSON schema."""
    json_schema = {"name": name, "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": json_schema}}


def _answer_type(signature: type[dspy.Signature]) -> pydantic.TypeAdapter[Any]:
    # A TypedDict and not a model: its keys may have any name, also those a model reserves.
    fields = {name: field.annotation for name, field in signature.output_fields.items()}
    return pydantic.TypeAdapter(TypedDict("Answer", fields))  # type: ignore[operator] # fields known at run time only


def _bound(part: Any, max_items: int, max_chars: int) -> Any:
    """Return a copy of a JSON schema in which every list, dict and free text ends."""
    if isinstance(part, list):
        return [_bound(item, max_items, max_chars) for item in part]
    if not isinstance(part, dict):
        return part
    own = max_chars // 4 if part.get("type") == "array" else max_chars
    bounded = {key: _bound(value, max_items, own) for key, value in part.items()}
    if bounded.get("type") == "array":
        bounded.setdefault("maxItems", max(max_items, bounded.get("minItems", 0)))
    if bounded.get("type") == "object" and bounded.get("additionalProperties"):
        keys = max_items + len(bounded.get("properties", ()))
        bounded.setdefault("maxProperties", max(keys, bounded.get("minProperties", 0)))
    if bounded.get("type") == "string" and not bounded.keys() & {
        "enum",
        "const",
        "format",
        "pattern",
    }:
        bounded.setdefault("maxLength", max(max_chars, bounded.get("minLength", 0)))
    return bounded


def _choice(signature: type[dspy.Signature]) -> tuple[str, tuple[str, ...]] | None:
    """Return the one output field and its labels, where it is a choice among texts."""
    if len(signature.output_fields) != 1:
        return None
    name, field = next(iter(signature.output_fields.items()))
    labels = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    # Grammars have escapes of their own beyond ASCII; such labels are answered as JSON instead.
    plain = all(isinstance(label, str) and label.isascii() and label for label in labels)
    return (name, labels) if labels and plain else None


def _text(value: Any) -> str:
    plain = serialize_for_json(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
