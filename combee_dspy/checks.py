"""Checks of what a user gave, before anything is bought."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dspy

from combee_dspy.bounds import check_whole
from combee_dspy.diversity import Diversity
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError, SplitOverlapError
from combee_dspy.guards import Guards
from combee_dspy.hashing import digest_of, row_hash
from combee_dspy.rollouts import EvaluationCache

__all__ = [
    "Splits",
    "as_diversity",
    "check_metric",
    "check_positive",
    "check_splits",
    "check_student",
    "checked_guards",
    "memoizes",
]


@dataclass(frozen=True, slots=True)
class Splits:
    """The data of a run.

    Attributes:
        train: What is learned from.
        validation: What candidates are compared on.
        heldout: What nobody looks at before the end; may be empty.
        train_hashes: Row hashes of ``train``.
        digests: SHA-256 per split, over its row hashes.
        warnings: What makes the run unfit for claims, in sentences.
    """

    train: tuple[dspy.Example, ...]
    validation: tuple[dspy.Example, ...]
    heldout: tuple[dspy.Example, ...]
    train_hashes: frozenset[str]
    digests: Mapping[str, str]
    warnings: tuple[str, ...] = ()


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
        problem = f"does not take GEPA's five arguments: {error}"
        raise ArgumentTypeError("metric", metric, problem, remedy) from error
    except ValueError:
        return  # Some built-in callables have no signature to look at; the first rollout will tell.


def check_positive(name: str, value: object, *, optional: bool = True) -> None:
    """Check that an argument is a whole number of at least 1.

    Raises:
        ArgumentTypeError: It is no whole number.
        ArgumentValueError: It is below 1.
    """
    if value is None and optional:
        return
    check_whole(name, value, 1)


def as_diversity(value: object) -> Diversity:
    """Return what a run does against collapse: an object as it is, ``True`` for the default, ``False`` for nothing.

    Raises:
        ArgumentTypeError: It is something else.
        ArgumentValueError: One of its fields cannot be used.
    """
    found = {True: Diversity(), False: Diversity.off()}.get(value, value) if isinstance(value, bool) else value
    if not isinstance(found, Diversity):
        remedy = "Give a combee_dspy.diversity.Diversity, True for its defaults, or False."
        raise ArgumentTypeError("diversity", value, "is no Diversity", remedy)
    found.validate()
    return found


def checked_guards(value: object) -> Guards:
    """Return the guards of a run; the default ones for ``None``.

    Raises:
        ArgumentTypeError: It is something else.
    """
    if value is None:
        return Guards()
    if not isinstance(value, Guards):
        remedy = "Give combee_dspy.guards.Guards(max_tokens=…, keep=[…])."
        raise ArgumentTypeError("guards", value, "is no Guards", remedy)
    return value


def memoizes(memoize: bool | None, cache: object, default: bool) -> bool:
    """Return whether rollouts that have been paid for are used again.

    Args:
        memoize: What the user said; ``None`` says nothing.
        cache: A cache, its path, a bool, or ``None``, which says nothing.
        default: What holds where neither says anything.

    Raises:
        ArgumentTypeError: ``cache`` is none of these.
        ArgumentValueError: The two contradict each other.
    """
    if cache is not None and not isinstance(cache, (bool, str, os.PathLike, EvaluationCache)):
        remedy = "Give a path, an EvaluationCache, or False for none."
        raise ArgumentTypeError("cache", cache, "is no cache", remedy)
    wanted = None if cache is None else cache is not False
    if None not in (memoize, wanted) and memoize != wanted:
        raise ArgumentValueError("cache", cache, f"contradicts memoize={memoize}", "Leave one of the two out.")
    said = memoize if memoize is not None else wanted
    return default if said is None else said


def check_student(student: Any, has_code: bool) -> None:
    """Check that there is something to optimize.

    Args:
        student: The program.
        has_code: Whether it has ``dspy.Flex`` parts.

    Raises:
        ArgumentTypeError: It is no ``dspy.Module``.
        ArgumentValueError: It has no predictor.
    """
    if isinstance(student, type) or not isinstance(student, dspy.Module):
        remedy = "Give an instance of a dspy.Module, for example dspy.Predict('question -> answer')."
        raise ArgumentTypeError("student", student, "is no DSPy program", remedy)
    if not has_code and not student.predictors():
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
    train = _examples("trainset", trainset)
    if not train:
        raise ArgumentValueError("trainset", trainset, "is empty", "Give at least one example to learn from.")
    validation = _examples("valset", valset) if valset is not None else ()
    held = _examples("heldout", heldout) if heldout is not None else ()
    anchored = {row_hash(row) for row in _examples("anchors", anchors)}
    warnings = []
    if not validation:
        validation = train
        warnings.append(
            "No valset was given: candidates are compared on the examples they were learned from, "
            "so this run supports no claim about unseen examples."
        )
    hashes = {name: [row_hash(row) for row in rows] for name, rows in _named(train, validation, held)}
    shared = len(set(hashes["validation"]) & set(hashes["train"]))
    if shared and not warnings:
        warnings.append(
            f"valset and trainset share {shared} rows: validation scores are biased upwards, "
            "so this run supports no claim about unseen examples."
        )
    for other in ("train", "validation"):
        overlap = len(set(hashes["heldout"]) & set(hashes[other]))
        if overlap:
            raise SplitOverlapError("heldout", {"train": "trainset", "validation": "valset"}[other], overlap)
    learned = len(set(hashes["heldout"]) & anchored)
    if learned:
        raise SplitOverlapError("heldout", "anchors", learned)
    if not held:
        warnings.append("No held-out set was given: this run supports no claim.")
    digests = {name: digest_of(rows) for name, rows in hashes.items() if rows}
    return Splits(train, validation, held, frozenset(hashes["train"]), digests, tuple(warnings))


def _named(
    train: Sequence[dspy.Example], validation: Sequence[dspy.Example], heldout: Sequence[dspy.Example]
) -> list[tuple[str, Sequence[dspy.Example]]]:
    return [("train", train), ("validation", validation), ("heldout", heldout)]


def _examples(name: str, value: Any) -> tuple[dspy.Example, ...]:
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
        raise ArgumentTypeError(name, value, "is no list of dspy.Example", "Give a list of dspy.Example.")
    rows = tuple(value)
    for position, row in enumerate(rows):
        if not isinstance(row, dspy.Example):
            raise ArgumentTypeError(f"{name}[{position}]", row, "is no dspy.Example", "Wrap each row in dspy.Example.")
        try:
            row.inputs()
        except ValueError as error:
            remedy = "Call .with_inputs('field', …) on each example."
            raise ArgumentValueError(
                f"{name}[{position}]", row, "does not say which fields are inputs", remedy
            ) from error
    return rows
