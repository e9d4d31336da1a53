"""Formula: numerical reasoning over 50 finance formulas, one number per question.

Origin: XBRL-Agent (MIT), collected in FinLoRA (``data/{train,test}/formula_*.jsonl``,
OpenMDW-1.0) and in files of ACE (Apache-2.0). It is on no hub as such, so the
caller names the source, and nothing stands in for it when it is absent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import ClassVar

import dspy

from combee_dspy.benchmarks._base import Card, LoadedBenchmark, Row
from combee_dspy.benchmarks._records import PUBLISHED, RecordBenchmark
from combee_dspy.benchmarks._source import RowSource
from combee_dspy.benchmarks.numeric import AnswerNumber, exact_metric, plain_number, tolerant_metric
from combee_dspy.strategies import parameters

PINS: Mapping[str, str] = {
    "train": "67eb930374d27c968c665d48480e06b1622c5d91d0360548b6ba5b61a7678457",
    "validation": "8b14b4810d2ad6f77a8edea462655faa2248ed358f44fdf6518af158266d4849",
    "heldout": "11338e954e39dedb9d84c0a5c983d63ae0794b4338fc54637a09b148a0f4fda4",
}
"""Digests of the 500, 164 and 136 rows that this project's own Formula figures are measured on: its
own cut.
"""

KNOWN_NOISE: Mapping[str, str] = {
    "da7575563108bec79c9ebd5f87b50ee789cdf6db97beafc46b2a83a2d23ddfb8": (
        "the gold answer is 1000000000.0; 5 % of a labour force of 500,000 is 25,000"
    ),
}
"""Raw row hash to what is wrong with the row's gold answer. The rows are kept and scored as they
are.
"""

_ORIGIN = (
    "XBRL-Agent (MIT), collected in FinLoRA (data/{train,test}/formula_*.jsonl, OpenMDW-1.0), "
    "in files of ACE (Apache-2.0)"
)
_REMEDY = (
    "Formula is on no hub and is not bundled. Give path= ACE's eval/finance/data, a directory"
    ' with train.jsonl, validation.jsonl and test.jsonl, one JSON object a line: {"context": "…",'
    ' "target": "2.0"}. One .jsonl file, an HTTP address or a hub id with revision= work too.'
    f" Origin: {_ORIGIN}."
)
_ASKED = re.compile(
    r"Use formula .+? to answer this question:\s*(.+?)\s*with a numerical answer\b.*\Z", re.DOTALL
)
_MARKED = re.compile(
    r"(?>.*?Formula:)(?>.*?Explanation:)(?>.*?Question:)(.*)Answer:\s*\Z", re.DOTALL
)

_CARD = Card(
    task="Numerical reasoning over 50 finance formulas: one question, one number.",
    licence="OpenMDW-1.0 (FinLoRA); MIT (XBRL-Agent)",
    citation=(
        "XBRL-Agent; FinLoRA; ACE (Agentic Context Engineering), whose Formula task and scoring"
        " these are."
    ),
    size=(
        "500 train, 300 validation, 200 held-out (ACE's files); 500, 164, 136 (this project's own"
        " cut of ACE's files, which its figures are measured on: not comparable with the paper);"
        " about 0.4 MB"
    ),
    sources=(
        "path ACE/eval/finance/data (ACE's files by their names, as they are)",
        "path DIR/{train,validation,test}.jsonl (rows of your own cut)",
        "url https://… (the folder or file of the same form)",
        "hub owner/name (with revision=; no public one is known)",
    ),
    scoring="prediction and target, commas removed, equal as floats; a tolerant score beside it",
)


@parameters
class Formula(RecordBenchmark):
    """The Formula benchmark, from a source that the caller names.

    :data:`PINS` has the digests of this project's figures.

    Attributes:
        formula_text: ``True`` gives the whole context, with the formula and its explanation.
            ``False``, as in ACE, gives the question alone. ACE appends the answer format to each
            question; here it is the description of the signature's ``answer`` field.
        reasoning: Whether the default program is ``dspy.ChainOfThought``, since ACE's generator
            reasons too and a model that must write the number first has no room to carry a
            calculation out, or ``dspy.Predict``.
    """

    name: ClassVar[str] = "formula"
    card: ClassVar[Card | None] = _CARD
    rows: ClassVar[RowSource] = RowSource(
        "formula",
        remedy=_REMEDY,
        published={
            "train": ("formula_train_subset_500.jsonl", 500),
            "validation": ("formula_val_subset_300.jsonl", 300),
            "heldout": ("formula_test.jsonl", 200),
        },
    )
    own: ClassVar[Mapping[str, str]] = PINS

    formula_text: bool = False
    reasoning: bool = True

    def load(self) -> LoadedBenchmark:
        """Read the rows and return the benchmark (see :meth:`RecordBenchmark.read`)."""
        reading = self.read()
        missing = reading.missing or (
            "the formula's text is shown, which ACE hides" if self.formula_text else ""
        )
        module = dspy.ChainOfThought if self.reasoning else dspy.Predict
        return LoadedBenchmark(
            name=self.name,
            task="formula" if self.formula_text else "formula, formula text hidden",
            source=f"{reading.source}; origin: {_ORIGIN}",
            licence=_CARD.licence,
            citation=_CARD.citation,
            train=reading.splits["train"],
            validation=reading.splits["validation"],
            heldout=reading.splits["heldout"],
            signature=AnswerNumber,
            program=lambda: module(AnswerNumber),
            metric=exact_metric,
            tolerant_metric=tolerant_metric,
            known_noise=KNOWN_NOISE,
            notes=reading.notes,
            comparable=False if missing else None,
            standing=missing or PUBLISHED,
        )

    def problem(self, row: Row) -> str | None:
        """Return why a row is none of Formula's, or ``None``."""
        context, target = row.get("context"), row.get("target")
        if not isinstance(context, str) or not context.strip() or not isinstance(target, str):
            return "context and target are not both text"
        value = plain_number(target)
        if value is None or not math.isfinite(value):
            return f"the target {target[:80]!r} is not a finite number"
        if not self.formula_text and _question(context) is None:
            form = "'Formula: … Explanation: … Question: … Answer:'"
            return (
                f"the context has no {form} to cut the formula from; formula_text=True uses"
                " contexts as they are"
            )
        return None

    def to_example(self, row: Mapping[str, object]) -> dspy.Example:
        """Return the question and its answer; with ``formula_text`` the whole context is the
        question.
        """
        question = row["context"] if self.formula_text else _question(str(row["context"]))
        return dspy.Example(question=question, answer=row["target"]).with_inputs("question")


def _question(context: str) -> str | None:
    """Return the question without the formula, its explanation and its own quotes; ``None`` if it
    is not there.
    """
    match = _ASKED.match(context) or _MARKED.match(context)
    if match is None:
        return None
    question = match[1].strip().removesuffix(".").strip()
    if len(question) > 1 and question[0] in '"“' and question[-1] in '"”':
        question = question[1:-1].strip()
    return question or None
