"""From a program to the components of a candidate, and back.

Beside its instruction, a predictor's demonstrations and field descriptions may be components: texts
in canonical JSON, under keys that selection does not see.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import dspy

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.guards import Guards
from combee_dspy.lessons import Book
from combee_dspy.operators._base import (
    Operator,
    OperatorInput,
    field_descriptions,
    own_description,
)
from combee_dspy.operators._encoding import (
    NotJSON,
    decode_demonstrations,
    decode_fields,
    demonstration_of,
    encode_demonstrations,
    encode_fields,
)
from combee_dspy.records import (
    Edit,
    Lessons,
    PredictorRun,
    Rollout,
    demonstrations_key,
    fields_key,
    is_hidden,
)


def visible(keys: Iterable[str]) -> tuple[str, ...]:
    """Return the keys that component selection may see, in order."""
    return tuple(key for key in keys if not is_hidden(key))


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
            predictor.demos = [
                dspy.Example(**demo.inputs, **demo.outputs).with_inputs(*demo.inputs)
                for demo in decode_demonstrations(encoded)
            ]
        descriptions = decode_fields(candidate.get(fields_key(name), ""))
        predictor.signature = describe_fields(predictor.signature, descriptions)
    return program


def describe_fields(
    signature: type[dspy.Signature], descriptions: Mapping[str, str]
) -> type[dspy.Signature]:
    """Return a signature with these descriptions; the same object where nothing changes.

    Raises:
        ArgumentValueError: A field is described that the signature does not have.
    """
    current = field_descriptions(signature)
    for name, text in descriptions.items():
        if name not in current:
            problem = f"describes {name!r}, which the signature does not have"
            remedy = f"Fields: {', '.join(current)}."
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
        before = decode_fields(parent.get(key, ""))
        texts[key] = encode_fields({**before, **edit.field_descriptions})
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
                example_id, score = rollout.example_id, rollout.score
                run = PredictorRun(example_id, call.inputs, call.outputs, score, first, labels)
                runs.append(run)
                first = False
    return tuple(runs)
