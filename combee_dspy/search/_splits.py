"""The data of a run: rows that are checked, and pinned by their hashes."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import cast

import dspy

from combee_dspy.evaluation import Heldout
from combee_dspy.exceptions import (
    ArgumentTypeError,
    ArgumentValueError,
    EmptyTrainsetError,
    SplitOverlapError,
)
from combee_dspy.hashing import digest_of, holds_address, row_hash
from combee_dspy.search._candidates import Row, Split, Splits
from combee_dspy.traces import Selection, Traces
from combee_dspy.verdicts import UNPROVEN

NOT_VALIDATED = (
    "Nothing was validated, since there are neither validation nor training rows: what the traces"
    " taught is a proposal, and this run supports no claim."
)


@dataclass(frozen=True, slots=True, eq=False)
class Data:
    """What a user gives to learn from and to compare on; see :meth:`combee_dspy.Combee.compile`."""

    trainset: Sequence[dspy.Example] | None
    valset: Sequence[dspy.Example] | None = None
    heldout: Sequence[dspy.Example] | Heldout | None = None
    traces: Traces | None = None
    selection: Selection | None = None


_logger = logging.getLogger("combee_dspy")


def make_splits(data: Data, heldout: Sequence[dspy.Example]) -> Splits:
    """Pin the rows of a run by their hashes; without a valset the trainset is validated on, as in
    GEPA.
    """
    train = _rows("trainset", () if data.trainset is None else data.trainset, "train")
    if not train and data.traces is None:
        raise EmptyTrainsetError(data.trainset)
    validation = _rows("valset", () if data.valset is None else data.valset, "validation")
    held = _rows("heldout", heldout, "heldout")
    sets = {"trainset": train, "valset": validation, "heldout": held}
    warnings = [*_warn_of_repeats(sets), *_warn_of_addresses(chain(*sets.values()))]
    full_eval = len(train) + len(validation)
    if not validation and not train:
        warnings.append(NOT_VALIDATED)
    elif not validation:
        validation = tuple(replace(row, split="validation") for row in train)
        warnings.append(
            "No valset was given: candidates are compared on the examples they were learned from, "
            "so this run supports no claim about unseen examples."
        )
    elif shared := _shared(validation, train):
        warnings.append(
            f"valset and trainset share {shared} rows: validation scores are biased upwards, "
            "so this run supports no claim about unseen examples."
        )
    for argument, rows in (("trainset", train), ("valset", validation)):
        if overlap := _shared(held, rows):
            raise SplitOverlapError("heldout", argument, overlap)
    if not held:
        warnings.append(UNPROVEN)
    named = {"train": train, "validation": validation, "heldout": held}
    digests = {name: digest_of(row.hash for row in rows) for name, rows in named.items() if rows}
    return Splits(train, validation, held, digests, full_eval, tuple(warnings))


def _warn_of_repeats(sets: Mapping[str, Sequence[Row]]) -> list[str]:
    """Log which sets repeat rows, and return what of it makes a run unfit for claims: an interval
    over the same held-out row twice is too narrow.
    """
    warnings = []
    for argument, rows in sets.items():
        if repeated := len(rows) - len({row.hash for row in rows}):
            text = (
                f"{repeated} rows of {argument} repeat an earlier row of it: they count twice in"
                " every mean, and as evidence once."
            )
            _logger.warning("%s", text)
            if argument == "heldout":
                warnings.append(f"{text} The held-out interval is narrower than it may be.")
    return warnings


def _warn_of_addresses(rows: Iterable[Row]) -> list[str]:
    """Log which row makes that a run cannot go on in another process, and return it."""
    for row in rows:
        try:
            json.dumps(row.fields, skipkeys=True)
        except TypeError:
            if holds_address(row.fields):
                text = (
                    f"This run cannot be resumed: row {row.index} of its {row.split} set holds a"
                    " function, a lock or the like, which no other process knows again. Give rows"
                    " a name of it, and let the program look it up."
                )
                _logger.warning("%s", text)
                return [text]
    return []


def _shared(some: Sequence[Row], others: Sequence[Row]) -> int:
    return len({row.hash for row in some} & {row.hash for row in others})


def examples_in(argument: str, value: object) -> Sequence[dspy.Example]:
    """Return what may be a list of examples.

    Raises:
        ArgumentTypeError: It is something else.
    """
    if (
        isinstance(value, (str, bytes, Mapping))
        or not hasattr(value, "__iter__")
        or not hasattr(value, "__len__")
    ):
        raise ArgumentTypeError(
            argument, value, "is no list of dspy.Example", "Give a list of dspy.Example."
        )
    return cast("Sequence[dspy.Example]", value)


def _rows(argument: str, value: object, split: Split) -> tuple[Row, ...]:
    return tuple(
        _make_row(f"{argument}[{index}]", index, example, split)
        for index, example in enumerate(examples_in(argument, value))
    )


def _make_row(argument: str, index: int, example: object, split: Split) -> Row:
    """Return an example as a row, checked.

    Args:
        argument: The user's name of it, for errors.
        index: Its position in the split.
        example: The example.
        split: The split.

    Raises:
        ArgumentTypeError: It is no example.
        ArgumentValueError: It names no inputs, or holds what no journal can.
    """
    if not isinstance(example, dspy.Example):
        raise ArgumentTypeError(
            argument, example, "is no dspy.Example", "Wrap each row in dspy.Example."
        )
    try:
        example.inputs()
    except ValueError as error:
        remedy = "Call .with_inputs('field', …) on each example."
        raise ArgumentValueError(
            argument, example, "does not say which fields are inputs", remedy
        ) from error
    try:
        digest = row_hash(example)
        # What holds itself, or no text of it can be had.
        json.dumps(dict(example.items()), default=lambda value: type(value).__name__, skipkeys=True)
    except (RecursionError, ValueError) as error:
        remedy = "Give values that JSON can hold, or of a class with a codec of its own."
        raise ArgumentValueError(
            argument, type(example).__name__, f"cannot be told from others: {error}", remedy
        ) from error
    return Row(split, index, example, digest)
