"""Checks of what a user gave, before anything is bought."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import dspy

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError, SplitOverlapError
from combee_dspy.hashing import digest_of, row_hash
from combee_dspy.search._candidates import Row, Split, Splits

__all__ = ["check_metric", "check_rows", "check_splits", "check_student"]


def check_metric(metric: object) -> None:
    """Check that a metric can be called as GEPA calls it.

    Raises:
        ArgumentTypeError: It is not callable, or does not take five arguments.
    """
    remedy = "Give a function (gold, pred, trace=None, pred_name=None, pred_trace=None) that returns a score."
    if not callable(metric):
        raise ArgumentTypeError("metric", metric, "is not callable", remedy)
    try:
        inspect.signature(metric).bind(None, None, None, None, None)
    except TypeError as error:
        raise ArgumentTypeError("metric", metric, f"does not take GEPA's five arguments: {error}", remedy) from error
    except ValueError:
        return  # Some built-in callables have no signature to look at; the first rollout will tell.


def check_student(student: Any, components: int) -> None:
    """Check that there is something to optimize.

    Args:
        student: The program.
        components: How many components it has.

    Raises:
        ArgumentTypeError: It is no ``dspy.Module``.
        ArgumentValueError: It has no predictor.
    """
    if isinstance(student, type) or not isinstance(student, dspy.Module):
        remedy = "Give an instance of a dspy.Module, for example dspy.Predict('question -> answer')."
        raise ArgumentTypeError("student", student, "is no DSPy program", remedy)
    if not components:
        remedy = "Assign at least one predictor, such as dspy.Predict, to an attribute of the program."
        raise ArgumentValueError("student", student, "has no predictors, so there is nothing to learn", remedy)


def check_splits(trainset: object, valset: object, heldout: object, anchors: object = ()) -> Splits:
    """Check the data of a run and pin it by row hashes.

    Args:
        trainset: Examples to learn from.
        valset: Examples to compare candidates on; ``None`` or empty takes the trainset, as GEPA does.
        heldout: Examples for the final figure; ``None`` for none.
        anchors: Examples that are learned from beside the trainset.

    Raises:
        ArgumentTypeError: A split is no sequence of ``dspy.Example``.
        ArgumentValueError: The trainset is empty, or an example does not know its inputs.
        SplitOverlapError: ``heldout`` shares rows with another split.
    """
    train = _rows("trainset", trainset, "train")
    if not train:
        raise ArgumentValueError("trainset", trainset, "is empty", "Give at least one example to learn from.")
    validation = _rows("valset", valset if valset is not None else (), "validation")
    held = _rows("heldout", heldout if heldout is not None else (), "heldout")
    warnings = []
    if not validation:
        validation = tuple(Row("validation", row.index, row.example, row.hash) for row in train)
        warnings.append(
            "No valset was given: candidates are compared on the examples they were learned from, "
            "so this run supports no claim about unseen examples."
        )
    elif shared := len({row.hash for row in validation} & {row.hash for row in train}):
        warnings.append(
            f"valset and trainset share {shared} rows: validation scores are biased upwards, "
            "so this run supports no claim about unseen examples."
        )
    for argument, rows in (
        ("trainset", train),
        ("valset", validation),
        ("anchors", _rows("anchors", anchors, "train")),
    ):
        if overlap := len({row.hash for row in held} & {row.hash for row in rows}):
            raise SplitOverlapError("heldout", argument, overlap)
    if not held:
        warnings.append("No held-out set was given: this run supports no claim.")
    named = {"train": train, "validation": validation, "heldout": held}
    digests = {name: digest_of(row.hash for row in rows) for name, rows in named.items() if rows}
    return Splits(train, validation, held, digests, tuple(warnings))


def check_rows(argument: str, value: object) -> None:
    """Check that something is a list.

    Raises:
        ArgumentTypeError: It is not.
    """
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__") or not hasattr(value, "__len__"):
        raise ArgumentTypeError(argument, value, "is no list of dspy.Example", "Give a list of dspy.Example.")


def _rows(argument: str, value: Any, split: Split) -> tuple[Row, ...]:
    check_rows(argument, value)
    return tuple(_row(f"{argument}[{index}]", index, example, split) for index, example in enumerate(value))


def _row(argument: str, index: int, example: Any, split: Split) -> Row:
    if not isinstance(example, dspy.Example):
        raise ArgumentTypeError(argument, example, "is no dspy.Example", "Wrap each row in dspy.Example.")
    try:
        example.inputs()
    except ValueError as error:
        remedy = "Call .with_inputs('field', …) on each example."
        raise ArgumentValueError(argument, example, "does not say which fields are inputs", remedy) from error
    return Row(split, index, example, row_hash(example))
