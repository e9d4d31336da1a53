"""Labels for numbers in filings: four of FiNER's six commonest tags, each under an invented code.

No model can know the codes, and each is learned from what its numbers have in common. The rows are
read from the benchmark's files and copied nowhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import dspy

from combee_dspy.benchmarks import LoadedBenchmark, Split
from combee_dspy.benchmarks.finer.records import Question, Record, parse
from combee_dspy.benchmarks.house_rules import rule_metric
from combee_dspy.hashing import row_hash
from combee_dspy.streams import derive

__all__ = ["TAGS", "load_labels"]

TAGS = {
    "DebtInstrumentInterestRateStatedPercentage": "The stated interest rate of a debt",
    "LineOfCreditFacilityMaximumBorrowingCapacity": (
        "The most that may be borrowed under a credit facility"
    ),
    "AntidilutiveSecuritiesExcludedFromComputationOfEarningsPerShareAmount": (
        "The number of shares that were left out of diluted earnings per share"
    ),
    "AllocatedShareBasedCompensationExpense": "The expense of share-based compensation",
}
"""The tags, and what their numbers are."""

_CODES = ("B7", "F3", "K4", "T2")
_LONGEST = 500
# The benchmark's own files share no sentence.
_FILES = {
    "train": ("train.jsonl",),
    "validation": ("validation.jsonl",),
    "heldout": ("test.jsonl",),
}


class ChooseACode(dspy.Signature):
    """Choose the code of the ledger under which the number in the sentence is booked."""

    number: str = dspy.InputField()
    sentence: str = dspy.InputField()
    answer: Literal[_CODES] = dspy.OutputField()  # type: ignore[valid-type]


def load_labels(
    folder: Path, number: int, train: int, validation: int, heldout: int
) -> LoadedBenchmark:
    """Return a draw of rows, each tag equally often, under a drawing of the codes.

    Args:
        folder: Holds ``train.jsonl``, ``validation.jsonl`` and ``test.jsonl``.
        number: Of the draw.
        train: Rows to learn from; a multiple of four, as the others.
        validation: Rows to validate on.
        heldout: Rows held out.
    """
    codes = dict(
        zip(TAGS, derive(number, "labels", "codes").sample(_CODES, len(_CODES)), strict=True)
    )
    rules = {tag: f"{text} gets the code {codes[tag]}." for tag, text in TAGS.items()}
    splits = {}
    for split, size in (("train", train), ("validation", validation), ("heldout", heldout)):
        questions = list(_questions(folder, split))
        draw = derive(number, "labels", split)
        chosen = [
            question
            for tag in TAGS
            for question in draw.sample(
                [question for question in questions if question.target == tag], size // len(TAGS)
            )
        ]
        draw.shuffle(chosen)
        rows = [
            {
                "number": question.entity,
                "sentence": question.sentence,
                "answer": codes[question.target],
                "rule": rules[question.target],
            }
            for question in chosen
        ]
        examples = tuple(dspy.Example(**row).with_inputs("number", "sentence") for row in rows)
        splits[split] = Split(split, examples, tuple(map(row_hash, rows)))
    return LoadedBenchmark(
        name="labels",
        task="labels",
        source=str(folder),
        licence="CC-BY-SA-4.0 (FiNER-139)",
        citation="FiNER-139",
        train=splits["train"],
        validation=splits["validation"],
        heldout=splits["heldout"],
        signature=ChooseACode,
        program=lambda: dspy.Predict(ChooseACode),
        metric=rule_metric,
        lessons=tuple(rules.values()),
    )


def _questions(folder: Path, split: str) -> Iterator[Question]:
    seen = set()
    for file in _FILES[split]:
        for line in (folder / file).read_text(encoding="utf-8").splitlines():
            record = parse(json.loads(line))
            if not isinstance(record, Record):
                continue
            for question in record.questions:
                key = (question.entity, question.sentence)
                if (
                    question.target in TAGS
                    and len(question.sentence) <= _LONGEST
                    and key not in seen
                ):
                    seen.add(key)
                    yield question
