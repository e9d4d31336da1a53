"""Checks for benchmarks: rows with known hashes in, a score with feedback out.

The checks that need rows are skipped, visibly, where the benchmark says that
its rows cannot be read: give one that can, for example ``MyBenchmark(path=…)``.
"""

from __future__ import annotations

import copy
import re
import unittest
from typing import TYPE_CHECKING, Any

from combee_dspy.benchmarks import Availability, BaseBenchmark, Benchmark, Card, Source
from combee_dspy.exceptions import ArgumentError, DataSourceError
from combee_dspy.hashing import row_hash
from combee_dspy.testing.checks._expect import attempt, expect

if TYPE_CHECKING:
    import dspy

__all__ = ["CHECKS"]

_HASH = re.compile(r"[0-9a-f]{64}")
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
"""What a program may answer: a score must come of each."""

_EXAMPLES = 20


def _loaded(strategy: BaseBenchmark) -> Benchmark:
    try:
        found = strategy.load()
    except DataSourceError as error:
        raise unittest.SkipTest(f"the rows of {strategy.name} cannot be read here: {error}") from error
    expect(
        isinstance(found, Benchmark),
        "a `Benchmark` from `load`",
        f"{type(found).__name__}",
        "return combee_dspy.benchmarks.Benchmark(…)",
    )
    return found


def check_has_a_card(strategy: BaseBenchmark) -> None:
    """Licence, size and sources are known before a row is read."""
    card = strategy.card
    expect(
        isinstance(card, Card),
        "a class attribute `card`",
        f"{type(strategy).__name__}.card is {card!r:.100}",
        "write `card: ClassVar[Card | None] = Card(task=…, licence=…, citation=…, size=…, sources=(…), scoring=…)`",
    )
    texts = {name: getattr(card, name) for name in ("task", "licence", "citation", "size", "scoring")}
    empty = [name for name, text in texts.items() if not isinstance(text, str) or not text.strip()]
    expect(not empty, "a card whose fields all say something", f"empty: {', '.join(empty)}", "fill them in")
    sources = getattr(card, "sources", ())
    expect(
        isinstance(sources, tuple) and sources and all(isinstance(source, Source) for source in sources),
        "at least one `Source` on the card",
        f"{sources!r:.200}",
        'write sources=(Source("path", "DIR/train.jsonl"),)',
    )


def check_says_whether_its_rows_are_here(strategy: BaseBenchmark) -> None:
    """`combee benchmarks` asks every benchmark, and must survive each."""
    found = attempt(strategy.availability, "an `availability` that never raises", "return Availability(False, reason)")
    expect(
        isinstance(found, Availability) and found.here in (True, False, None) and found.where,
        "an `Availability` with a place",
        f"{found!r:.200}",
        "return Availability(here, where)",
    )


def check_a_refusal_names_the_source(strategy: BaseBenchmark) -> None:
    """Rows that cannot be read are refused with the source and a remedy; nothing stands in for them."""
    try:
        strategy.load()
    except (DataSourceError, ArgumentError) as error:
        said = str(error)
    except Exception as error:
        expect(False, "DataSourceError", f"{type(error).__name__}: {error}", "raise DataSourceError(…) from error")
        raise
    else:
        return
    expect(len(said.split()) > 3, "an error that says what is missing and how to mend it", said, "say more")


def check_the_same_rows_each_time(strategy: BaseBenchmark) -> None:
    """Digests pin a result's rows, so reading twice must give them twice."""
    first, second = _loaded(strategy), _loaded(strategy)
    expect(
        first.pins == second.pins,
        "the same digests when it is read twice",
        f"{first.pins} and then {second.pins}",
        "order rows by what they hold; no clock, no `random`, no order of sets",
    )


def check_splits_hold_rows_and_hashes(strategy: BaseBenchmark) -> None:
    """Each split has rows, one hash a row, and held-out shares none with the others."""
    found = _loaded(strategy)
    for name, split in zip(("train", "validation", "heldout"), found.splits, strict=True):
        expect(split.name == name, f"the name {name!r} for the split {name}", split.name, "name it so")
        expect(len(split) > 0, f"rows in {name}", "none", "raise DataSourceError where a split is empty")
        expect(
            len(split.row_hashes) == len(split.examples) and all(_HASH.fullmatch(item) for item in split.row_hashes),
            "one SHA-256 a row",
            f"{len(split.row_hashes)} hashes for {len(split.examples)} examples of {name}",
            "use combee_dspy.hashing.row_hash on the raw rows",
        )
    learned = set(found.train.row_hashes) | set(found.validation.row_hashes)
    shared = learned & set(found.heldout.row_hashes)
    expect(
        not shared,
        "a held-out split that shares no row with the others",
        f"{len(shared)} rows are shared",
        "take them out of train and validation, and say so in notes",
    )


def check_examples_fit_the_signature(strategy: BaseBenchmark) -> None:
    """An example's inputs are what the program takes."""
    found = _loaded(strategy)
    wanted = set(found.signature.input_fields)
    for example in _some(found):
        given = set(example.inputs().keys())
        # A program around an agent takes more than the agent is told: which task it is.
        labelled = any(name in example for name in found.signature.output_fields)
        expect(
            given == wanted if labelled else given >= wanted,
            f"examples whose inputs are the signature's: {', '.join(sorted(wanted))}",
            f"{', '.join(sorted(given)) or 'none'}",
            "mark them with .with_inputs(…)",
        )


def check_programs_are_fresh(strategy: BaseBenchmark) -> None:
    """A run edits its program: the next one must not see that."""
    import dspy

    found = _loaded(strategy)
    first, second = found.program(), found.program()
    expect(
        isinstance(first, dspy.Module) and first is not second and first.named_predictors(),
        "a new dspy.Module with a predictor from each call of `program`",
        f"{first!r:.100}",
        "build it inside the function",
    )


def check_scores_and_says_why(strategy: BaseBenchmark) -> None:
    """The labels themselves score 1, anything else in [0, 1], and each score has feedback."""
    import dspy

    found = _loaded(strategy)
    outputs = list(found.signature.output_fields)
    for example in _some(found):
        before = copy.deepcopy(dict(example))
        labels = {name: example[name] for name in outputs if name in example}
        if not labels:
            # What an agent leaves behind is judged, and not what it says: there is no label to give back.
            continue
        right = dspy.Prediction(**labels)
        score = _score(found, example, right)
        expect(score == 1, "1.0 for the labels themselves", f"{score} for {right!r:.200}", "compare with the label")
        expect(dict(example) == before, "an example unchanged by the metric", "it was changed", "work on a copy")
    example = found.train.examples[0]
    for answer in _HOSTILE:
        _score(found, example, dspy.Prediction(**dict.fromkeys(outputs, answer)))
    _score(found, example, dspy.Prediction())


def _score(found: Benchmark, example: dspy.Example, prediction: dspy.Prediction) -> float:
    metrics: list[Any] = [found.metric, *([found.tolerant_metric] if found.tolerant_metric else [])]
    scores = []
    for metric in metrics:
        result = attempt(
            lambda metric=metric: metric(example, prediction, None, None, None),  # type: ignore[misc]  # bound per loop
            f"a score for {prediction!r:.120}",
            "read the prediction with getattr and str; parse, never evaluate",
        )
        score, feedback = getattr(result, "score", None), getattr(result, "feedback", None)
        expect(
            isinstance(score, (int, float)) and 0 <= score <= 1 and isinstance(feedback, str) and feedback.strip(),
            "dspy.Prediction(score in [0, 1], feedback)",
            f"{result!r:.200}",
            "score a wrong answer 0 and say what was expected",
        )
        scores.append(float(score or 0))
    expect(
        scores[-1] >= scores[0],
        "a tolerant score that is never below the official one",
        f"{scores}",
        "forgive more, not less",
    )
    return scores[0]


def check_noise_is_listed_by_row(strategy: BaseBenchmark) -> None:
    """Known noise is named by raw row hash, and its rows stay."""
    found = _loaded(strategy)
    bad = [item for item, reason in found.known_noise.items() if not _HASH.fullmatch(item) or not str(reason).strip()]
    expect(not bad, "known_noise from row hashes to reasons", f"{bad[:2]!r}", "use the hash of the raw row")
    ids = {row_hash(example) for split in found.splits for example in split.examples}
    expect(set(found.noisy_examples()) <= ids, "noisy rows that are in a split", "others", "keep the rows")


def _some(found: Benchmark) -> list[Any]:
    return [example for split in found.splits for example in split.examples[:_EXAMPLES]]


CHECKS = (
    check_has_a_card,
    check_says_whether_its_rows_are_here,
    check_a_refusal_names_the_source,
    check_the_same_rows_each_time,
    check_splits_hold_rows_and_hashes,
    check_examples_fit_the_signature,
    check_programs_are_fresh,
    check_scores_and_says_why,
    check_noise_is_listed_by_row,
)
