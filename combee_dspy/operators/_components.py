"""From a program to the components of a candidate, and back.

Beside its instruction, a predictor's demonstrations and field descriptions may be components: texts
in canonical JSON, under keys that selection does not see.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dspy
from dspy.adapters.types.base_type import CUSTOM_TYPE_START_IDENTIFIER
from dspy.adapters.types.history import History
from pydantic_core import to_jsonable_python

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.guards import Guards
from combee_dspy.lessons import Book
from combee_dspy.operators._base import (
    Operator,
    OperatorInput,
    field_descriptions,
    own_description,
)
from combee_dspy.records import (
    Demonstration,
    Edit,
    Lessons,
    PredictorRun,
    Rollout,
    demonstrations_key,
    fields_key,
    is_hidden,
)
from combee_dspy.reflections import estimate_record_tokens

_VERSION = 1


def visible(keys: Iterable[str]) -> tuple[str, ...]:
    """Return the keys that component selection may see, in order."""
    return tuple(key for key in keys if not is_hidden(key))


def encode_demonstrations(demonstrations: Iterable[Demonstration]) -> str:
    """Return canonical JSON with a version: equal demonstrations give equal text.

    Raises:
        ArgumentTypeError: A value is not JSON: not null, a boolean, a finite number, a string, a
            list of such, or a mapping from strings to such.
    """
    rows: list[dict[str, Any]] = []
    for demonstration in demonstrations:
        source = (
            {} if demonstration.example_id is None else {"example_id": demonstration.example_id}
        )
        rows.append(
            {"inputs": dict(demonstration.inputs), "outputs": dict(demonstration.outputs), **source}
        )
    return _encode("demonstrations", rows)


def encode_fields(descriptions: Mapping[str, str]) -> str:
    """Return canonical JSON with a version: equal descriptions give equal text.

    Raises:
        ArgumentTypeError: A name or a description is no text.
    """
    return _encode("fields", dict(descriptions))


def decode_demonstrations(text: str) -> tuple[Demonstration, ...]:
    """Read what :func:`encode_demonstrations` wrote. The empty text means no demonstrations.

    Raises:
        ArgumentValueError: The text is something else.
    """
    return tuple(Demonstration(**row) for row in _decode("demonstrations", text)) if text else ()


def decode_fields(text: str) -> dict[str, str]:
    """Read what :func:`encode_fields` wrote. The empty text means no descriptions.

    Raises:
        ArgumentValueError: The text is something else.
    """
    return _decode("fields", text) if text else {}


def _holds(what: str, value: object) -> bool:
    if what == "fields":
        return isinstance(value, dict) and all(
            isinstance(text, str) for pair in value.items() for text in pair
        )
    return isinstance(value, list) and all(
        isinstance(row, dict)
        and {"inputs", "outputs"} <= set(row) <= {"inputs", "outputs", "example_id"}
        and isinstance(row["inputs"], dict)
        and isinstance(row["outputs"], dict)
        for row in value
    )


def _encode(what: str, value: object) -> str:
    try:
        # ASCII keeps lone surrogates and line separators harmless in whatever file this ends up in.
        text = json.dumps(
            {what: value, "version": _VERSION},
            sort_keys=True,
            allow_nan=False,
            separators=(",", ":"),
        )
        # json.dumps accepts tuples and keys that are no strings, and returns them as something
        # else.
        if json.loads(text)[what] == value and _holds(what, value):
            return text
        problem = "do not come back from JSON as they were"
    except (TypeError, ValueError, RecursionError) as error:
        problem = f"cannot be written as JSON: {error}"
    remedy = "Use plain JSON values: lists rather than tuples, string keys, finite numbers."
    raise ArgumentTypeError(what, value, problem, remedy)


def _decode(what: str, text: str) -> Any:
    remedy = f"Give what encode_{what} wrote."
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentValueError(what, text, f"is no JSON: {error}", remedy) from error
    valid = (
        isinstance(data, dict) and set(data) == {what, "version"} and data["version"] == _VERSION
    )
    if not valid or not _holds(what, data[what]):
        raise ArgumentValueError(what, text, f"holds no {what} of version {_VERSION}", remedy)
    return data[what]


class NotJSON(ValueError):  # noqa: N818 - says what was found, and never leaves this package
    """A value that no demonstration can hold, such as an image."""


def demonstration_of(
    inputs: Mapping[str, object],
    outputs: Mapping[str, object],
    signature: Any,
    example_id: str | None = None,
) -> Demonstration:
    """Return a signature's fields as JSON values: models as mappings, enums as values.

    Raises:
        NotJSON: An input or output field is missing, or its value cannot be written as JSON.
    """
    return Demonstration(
        _json_values(inputs, signature.input_fields),
        _json_values(outputs, signature.output_fields),
        example_id,
    )


def _json_values(values: Mapping[str, object], names: Mapping[str, object]) -> dict[str, Any]:
    missing = [name for name in names if values.get(name) is None]
    if missing:
        raise NotJSON(f"field {missing[0]!r} has no value")
    return {name: _json_value(values[name], name) for name in names}


def _json_value(value: object, name: str) -> Any:
    if isinstance(value, str):
        return value
    try:
        text = json.dumps(to_jsonable_python(value), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise NotJSON(f"field {name!r} holds a {type(value).__name__}: {error}") from error
    # An image would come back as text, a history as a mapping: no prompt would show what they are.
    if isinstance(value, History) or CUSTOM_TYPE_START_IDENTIFIER in text:
        raise NotJSON(f"field {name!r} holds a {type(value).__name__} of DSPy's")
    return json.loads(text)


def demonstration_tokens(demonstrations: Iterable[Demonstration]) -> int:
    """Estimate the tokens that demonstrations take in a prompt."""
    return sum(
        estimate_record_tokens(demonstration.inputs) + estimate_record_tokens(demonstration.outputs)
        for demonstration in demonstrations
    )


def canonical(value: object) -> str:
    """Return canonical JSON of a JSON value; it tells whether two demonstrations ask the same."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


def seed_components(student: dspy.Module, operators: Sequence[Operator] = ()) -> dict[str, str]:
    """Return the candidate that is the student itself: instructions, then hidden keys.

    Where one of the operators edits demonstrations, each predictor's demonstrations become a
    component too, unless they hold values that JSON cannot carry or lack a field of the signature.
    Where one edits field descriptions, so do these.
    """
    predictors = dict(student.named_predictors())
    seed: dict[str, str] = {
        name: predictor.signature.instructions for name, predictor in predictors.items()
    }
    if any(operator.edits_demonstrations for operator in operators):
        for name, predictor in predictors.items():
            try:
                # DSPy's teleprompters leave marks on demonstrations ("augmented"), which no prompt
                # shows.
                demonstrations = [
                    demonstration_of(demo, demo, predictor.signature) for demo in predictor.demos
                ]
            except NotJSON:
                continue
            seed[demonstrations_key(name)] = encode_demonstrations(demonstrations)
    if any(operator.edits_fields for operator in operators):
        for name, predictor in predictors.items():
            seed[fields_key(name)] = encode_fields(field_descriptions(predictor.signature))
    return seed


def apply_components(student: dspy.Module, candidate: Mapping[str, str]) -> dspy.Module:
    """Return a copy of a program that shows a candidate's texts and demonstrations.

    Raises:
        ArgumentValueError: The candidate names a predictor or a field that the program does not
            have, or holds what is no encoded component.
    """
    program = student.deepcopy()
    predictors = dict(program.named_predictors())
    unknown = [name for name in visible(candidate) if name not in predictors]
    if unknown:
        remedy = f"Its predictors are {', '.join(predictors)}."
        raise ArgumentValueError("candidate", unknown[0], "is no predictor of the program", remedy)
    for name, predictor in predictors.items():
        if name in candidate:
            predictor.signature = predictor.signature.with_instructions(candidate[name])
        if encoded := candidate.get(demonstrations_key(name)):
            demonstrations = decode_demonstrations(encoded)
            predictor.demos = [
                dspy.Example(**demonstration.inputs, **demonstration.outputs).with_inputs(
                    *demonstration.inputs
                )
                for demonstration in demonstrations
            ]
        described = decode_fields(candidate.get(fields_key(name), ""))
        predictor.signature = describe_fields(predictor.signature, described)
    return program


def describe_fields(signature: Any, descriptions: Mapping[str, str]) -> Any:
    """Return a signature with these descriptions; the same object where nothing changes.

    Raises:
        ArgumentValueError: A field is described that the signature does not have.
    """
    current = field_descriptions(signature)
    for name, text in descriptions.items():
        if name not in current:
            problem, remedy = (
                f"describes {name!r}, which the signature does not have",
                f"Fields: {', '.join(current)}.",
            )
            raise ArgumentValueError("fields", dict(descriptions), problem, remedy)
        if own_description(name, text) != current[name]:
            signature = signature.with_updated_fields(name, desc=text)
    return signature


def edit_components(edit: Edit, component: str, parent: Mapping[str, str]) -> dict[str, str]:
    """Return the components that an edit changes, encoded; empty where there are none.

    An edit of demonstrations or descriptions that are no component of the candidate changes nothing
    at all: what it moved there would be lost.

    Raises:
        ArgumentTypeError: The edit holds values that are not JSON.
    """
    texts: dict[str, str] = {}
    if edit.instruction is not None:
        texts[component] = edit.instruction
    if edit.demonstrations is not None:
        texts[demonstrations_key(component)] = encode_demonstrations(edit.demonstrations)
    if edit.field_descriptions is not None:
        key = fields_key(component)
        texts[key] = encode_fields(
            {**decode_fields(parent.get(key, "")), **edit.field_descriptions}
        )
    if not all(key in parent for key in texts):
        return {}
    return {key: text for key, text in texts.items() if text != parent[key]}


def operator_input(  # noqa: PLR0913 - one wiring point
    student: dspy.Module,
    component: str,
    candidate: Mapping[str, str],
    lessons: Lessons,
    *,
    seed: Mapping[str, str],
    runs: Sequence[PredictorRun] = (),
    guards: Guards | None = None,
    perfect_score: float = 1.0,
    book: Book | None = None,
) -> OperatorInput:
    """Return what operators work on, read from a candidate and its seed."""
    return OperatorInput(
        instruction=candidate[component],
        demonstrations=decode_demonstrations(candidate.get(demonstrations_key(component), "")),
        signature=dict(student.named_predictors())[component].signature,
        lessons=lessons,
        runs=tuple(runs),
        perfect_score=perfect_score,
        field_descriptions=decode_fields(candidate.get(fields_key(component), "")),
        guards=guards or Guards(),
        seed_instruction=seed[component],
        seed_field_descriptions=decode_fields(seed.get(fields_key(component), "")),
        book=book,
    )


def predictor_runs(
    component: str, minibatch: Iterable[tuple[dspy.Example, Rollout]]
) -> tuple[PredictorRun, ...]:
    """Return a predictor's calls in a minibatch, in order.

    Answers that did not parse are left out.
    """
    runs: list[PredictorRun] = []
    for example, rollout in minibatch:
        labels = dict(example.labels().items())
        first = True
        for call in rollout.calls:
            if call.is_of(component) and call.outputs is not None:
                runs.append(
                    PredictorRun(
                        rollout.example_id, call.inputs, call.outputs, rollout.score, first, labels
                    )
                )
                first = False
    return tuple(runs)
