"""Checks for benchmarks: rows with known hashes in, a score with feedback out.

The checks that need rows are skipped, visibly, where the benchmark says that
its rows cannot be read: give one that can, for example ``MyBenchmark(path=…)``.
"""

from __future__ import annotations

import copy
import re
import unittest
from functools import partial
from typing import Any

import dspy

from combee_dspy.benchmarks import Availability, Benchmark, Card, LoadedBenchmark
from combee_dspy.exceptions import ArgumentError, DataSourceError
from combee_dspy.testing._kit import attempt, expect

_HASH = re.compile(r"[0-9a-f]{64}")
_EXAMPLES = 20
# What a program may answer: a score must come of each.
_HOSTILE = (
    None,
    "",
    "   ",
    "\x00\x1b[31m",
    "__import__('os').abort()",
    "9" * 5_000,
    "," * 5_000,
    ["nested", ["list"]],
    {"a": 1},
    float("nan"),
    -(10**400),
)


def _load(strategy: Benchmark) -> LoadedBenchmark:
    try:
        loaded = strategy.load()
    except DataSourceError as error:
        raise unittest.SkipTest(
            f"the rows of {strategy.name} cannot be read here: {error}"
        ) from error
    expect(
        isinstance(loaded, LoadedBenchmark),
        "a `LoadedBenchmark` from `load`",
        f"{type(loaded).__name__}",
    )
    return loaded


def _first_examples(loaded: LoadedBenchmark) -> list[Any]:
    return [example for split in loaded.splits for example in split.examples[:_EXAMPLES]]


def check_has_a_card(strategy: Benchmark) -> None:
    """Licence, size and sources are known before a row is read, and whether the rows are here."""
    card: Any = strategy.card
    mend = (
        "write `card: ClassVar[Card | None] = Card(task=…, licence=…, citation=…, size=…,"
        " sources=(…), scoring=…)`"
    )
    expect(isinstance(card, Card), "a class attribute `card`", f"{card!r:.100}", mend)
    fields = ("task", "licence", "citation", "size", "scoring")
    empty = [name for name in fields if not str(getattr(card, name)).strip()]
    expect(not empty, "a card whose fields all say something", f"empty: {', '.join(empty)}")
    expect(card.sources, "at least one source on the card", f"{card.sources!r:.200}")
    availability = attempt(
        strategy.availability,
        "an `availability` that never raises",
        "return Availability(False, reason)",
    )
    right = (
        isinstance(availability, Availability)
        and availability.here in (True, False, None)
        and availability.where
    )
    expect(right, "an `Availability` with a place", f"{availability!r:.200}")


def check_a_refusal_names_the_source(strategy: Benchmark) -> None:
    """Rows that cannot be read are refused with the source and a remedy."""
    try:
        strategy.load()
    except (DataSourceError, ArgumentError) as error:
        expect(
            len(str(error).split()) > 3,
            "an error that says what is missing and how to mend it",
            str(error),
        )
    except Exception as error:
        expect(
            False,
            "DataSourceError",
            f"{type(error).__name__}: {error}",
            "raise DataSourceError(…) from error",
        )
        raise


def check_splits_hold_rows_and_hashes(strategy: Benchmark) -> None:
    """Each split has the same rows each time, and held-out shares none."""
    loaded, again = _load(strategy), _load(strategy)
    same = loaded.pins == again.pins
    expect(
        same,
        "the same digests when it is read twice",
        f"{loaded.pins} and {again.pins}",
        "no clock, no `random`",
    )
    for name, split in zip(("train", "validation", "heldout"), loaded.splits, strict=True):
        expect(
            split.name == name and len(split),
            f"a split {name!r} with rows",
            f"{split.name}: {len(split)} rows",
        )
        hashed = len(split.row_hashes) == len(split) and all(
            _HASH.fullmatch(item) for item in split.row_hashes
        )
        expect(
            hashed,
            "one SHA-256 a row",
            f"another in {name}",
            "use combee_dspy.hashing.row_hash on the raw rows",
        )
    shared = {*loaded.train.row_hashes, *loaded.validation.row_hashes} & set(
        loaded.heldout.row_hashes
    )
    expect(
        not shared,
        "a held-out split that shares no row with the others",
        f"{len(shared)} rows are shared",
    )
    noisy = [
        item
        for item, why in loaded.known_noise.items()
        if not _HASH.fullmatch(item) or not str(why).strip()
    ]
    expect(not noisy, "known_noise from hashes of raw rows to reasons", f"{noisy[:2]!r}")


def check_programs_fit_the_examples(strategy: Benchmark) -> None:
    """The program takes an example's inputs, and each run gets a program of its own."""
    loaded = _load(strategy)
    first, second = loaded.program(), loaded.program()
    fresh = isinstance(first, dspy.Module) and first is not second and first.named_predictors()
    expect(
        fresh, "a new dspy.Module with a predictor from each call of `program`", f"{first!r:.100}"
    )
    wanted = set(loaded.signature.input_fields)
    for example in _first_examples(loaded):
        inputs = set(example.inputs().keys())
        # A program around an agent takes more than the agent is told: which task it is.
        labelled = any(name in example for name in loaded.signature.output_fields)
        fits = inputs == wanted if labelled else inputs >= wanted
        expect(
            fits,
            f"examples whose inputs are {sorted(wanted)}",
            f"{sorted(inputs)}",
            "mark them .with_inputs(…)",
        )


def check_scores_and_says_why(strategy: Benchmark) -> None:
    """The labels themselves score 1, anything else in [0, 1], and each score has feedback."""
    loaded = _load(strategy)
    outputs = list(loaded.signature.output_fields)
    for example in _first_examples(loaded):
        before = copy.deepcopy(dict(example))
        # What an agent leaves behind is judged, and not what it says: there is no label to give
        # back.
        if labels := {name: example[name] for name in outputs if name in example}:
            score = _score(loaded, example, dspy.Prediction(**labels))
            expect(score == 1, "1.0 for the labels themselves", f"{score} for {labels!r:.200}")
            expect(
                dict(example) == before,
                "an example unchanged by the metric",
                "it was changed",
                "work on a copy",
            )
    for answer in _HOSTILE:
        _score(loaded, loaded.train.examples[0], dspy.Prediction(**dict.fromkeys(outputs, answer)))
    _score(loaded, loaded.train.examples[0], dspy.Prediction())


def _score(loaded: LoadedBenchmark, example: dspy.Example, prediction: dspy.Prediction) -> float:
    scores = []
    for metric in (loaded.metric, loaded.tolerant_metric or loaded.metric):
        work = partial(metric, example, prediction, None, None, None)
        mend = "read the prediction with getattr and str; parse, never evaluate"
        result = attempt(work, f"a score for {prediction!r:.120}", mend)
        score, feedback = getattr(result, "score", None), getattr(result, "feedback", None)
        right = (
            isinstance(score, (int, float))
            and 0 <= score <= 1
            and isinstance(feedback, str)
            and feedback.strip()
        )
        expect(right, "dspy.Prediction(score in [0, 1], feedback)", f"{result!r:.200}")
        scores.append(float(score or 0))
    expect(
        scores[1] >= scores[0], "a tolerant score that is never below the official one", f"{scores}"
    )
    return scores[0]
