"""Formula: numerical reasoning over 50 finance formulas, one number per question.

Origin: XBRL-Agent (MIT), collected in FinLoRA (``data/{train,test}/formula_*.jsonl``,
OpenMDW-1.0) and split by ACE (Apache-2.0). It is on no hub as such, so the
caller names the source, and nothing stands in for it when it is absent.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import dspy

from combee_dspy.benchmarks._base import BaseBenchmark, Benchmark
from combee_dspy.benchmarks._source import Row, build_splits, check_pins, is_hub_id, is_url, read_hub, read_json
from combee_dspy.benchmarks.numeric import AnswerNumber, exact_metric, plain_number, tolerant_metric
from combee_dspy.exceptions import ArgumentValueError, DataSourceError
from combee_dspy.hashing import canonical_json, row_hash

__all__ = ["KNOWN_NOISE", "PINS", "Formula"]

PINS: Mapping[str, str] = {
    "train": "67eb930374d27c968c665d48480e06b1622c5d91d0360548b6ba5b61a7678457",
    "validation": "8b14b4810d2ad6f77a8edea462655faa2248ed358f44fdf6518af158266d4849",
    "heldout": "11338e954e39dedb9d84c0a5c983d63ae0794b4338fc54637a09b148a0f4fda4",
}
"""Digests of the 500, 164 and 136 rows that this project's own Formula figures are measured on."""

KNOWN_NOISE: Mapping[str, str] = {
    "da7575563108bec79c9ebd5f87b50ee789cdf6db97beafc46b2a83a2d23ddfb8": (
        "the gold answer is 1000000000.0; 5 % of a labour force of 500,000 is 25,000"
    ),
}
"""Raw row hash to what is wrong with the row's gold answer. The rows are kept and scored as they are."""

_ORIGIN = (
    "XBRL-Agent (MIT), collected in FinLoRA (data/{train,test}/formula_*.jsonl, OpenMDW-1.0), split by ACE (Apache-2.0)"
)
_LICENCE = "OpenMDW-1.0 (FinLoRA); MIT (XBRL-Agent)"
_CITATION = "XBRL-Agent; FinLoRA; ACE (Agentic Context Engineering), whose Formula task and scoring these are."
_HOW = (
    "Give path= a directory with train.jsonl, validation.jsonl and test.jsonl, one JSON object a line: "
    '{"context": "…", "target": "2.0"}. One .jsonl file, an HTTP address or a hub id with revision= work too. '
    f"Origin: {_ORIGIN}."
)
_FILES = {"train": "train", "validation": "validation", "heldout": "test"}
_COMMIT = re.compile(r"[0-9a-f]{40}")


class Formula(BaseBenchmark):
    """The Formula benchmark, from a source that the caller names.

    The default program is ``dspy.ChainOfThought``: the answer is the end of a
    calculation, and a model that must write the number first has no room to
    carry it out. ACE's generator reasons before it answers too.

    Args:
        path: A directory or HTTP address holding ``train.jsonl``,
            ``validation.jsonl`` and ``test.jsonl``; one ``.jsonl`` file or
            address, cut 60/20/20 by row hash; or a hub id ``owner/name`` with
            these three splits. ``test`` becomes held-out.
        revision: The 40-digit commit to read; required for a hub id, and only there.
        formula_text: ``True`` gives the whole context, with the formula and
            its explanation. ``False``, as in ACE, gives the question alone. ACE
            appends the answer format to each question; here it is the
            description of the signature's ``answer`` field.
        pin: Split name to required digest. :data:`PINS` has those of this project's figures.
    """

    name: ClassVar[str] = "formula"

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        revision: str | None = None,
        formula_text: bool = False,
        pin: Mapping[str, str] | None = None,
    ) -> None:
        self.path = path
        self.revision = revision
        self.formula_text = formula_text
        self.pin = pin

    def load(self) -> Benchmark:
        """Read the rows and return the benchmark.

        Raises:
            DataSourceError: No path is given, the rows cannot be read or are
                not Formula's, or differ from ``pin``.
            ArgumentValueError: A hub id comes without a commit.
        """
        if self.path is None:
            reason = "Formula is on no hub and is not bundled, and no path is given"
            raise DataSourceError(self.name, "no path", reason, _HOW)
        source = str(self.path)
        rows, how = self._rows(source)
        for split, items in rows.items():
            if not items:
                raise DataSourceError(self.name, source, f"the {split} split is empty", _HOW)
            for number, row in enumerate(items, 1):
                self._check(row, f"{source}, {_FILES[split]} row {number}")
        splits, notes = build_splits(rows, self._example)
        check_pins(self.name, source, splits, self.pin)
        return Benchmark(
            name=self.name,
            task="formula" if self.formula_text else "formula, formula text hidden",
            source=f"{how}; origin: {_ORIGIN}",
            licence=_LICENCE,
            citation=_CITATION,
            train=splits["train"],
            validation=splits["validation"],
            heldout=splits["heldout"],
            signature=AnswerNumber,
            program=_program,
            metric=exact_metric,
            tolerant_metric=tolerant_metric,
            known_noise=KNOWN_NOISE,
            notes=notes,
        )

    def _rows(self, source: str) -> tuple[dict[str, list[Row]], str]:
        single = source.endswith((".jsonl", ".json"))
        if is_url(source) or Path(source).exists():
            if self.revision is not None:
                remedy = "A revision belongs to a hub id; leave it out, or pin the rows with pin=."
                raise ArgumentValueError("revision", self.revision, f"cannot be used with {source}", remedy)
            if single:
                return _cut(read_json(self.name, source)), f"{source}, cut 60/20/20 by row hash"
            base = source.rstrip("/")
            return {split: read_json(self.name, f"{base}/{file}.jsonl") for split, file in _FILES.items()}, source
        if single or not is_hub_id(source):
            raise DataSourceError(self.name, source, "there is no such file or directory", _HOW)
        if self.revision is None or not _COMMIT.fullmatch(self.revision):
            remedy = "Give the 40-digit commit of the data set: a branch moves, and results with it."
            raise ArgumentValueError("revision", self.revision, f"does not pin the hub id {source}", remedy)
        rows = {split: read_hub(self.name, source, self.revision, file) for split, file in _FILES.items()}
        return rows, f"hub {source}@{self.revision}"

    def _check(self, row: Row, where: str) -> None:
        context, target = row.get("context"), row.get("target")
        if not isinstance(context, str) or not context.strip() or not isinstance(target, str):
            raise DataSourceError(self.name, where, "context and target are not both text", _HOW)
        value = plain_number(target)
        if value is None or not math.isfinite(value):
            raise DataSourceError(self.name, where, f"the target {target[:80]!r} is not a finite number", _HOW)
        if not self.formula_text and _question(context) is None:
            reason = "the context has no 'Formula: … Explanation: … Question: … Answer:' to cut the formula from"
            raise DataSourceError(self.name, where, reason, "Pass formula_text=True to use contexts as they are.")

    def _example(self, row: Row) -> dspy.Example:
        context: str = row["context"]
        question = context if self.formula_text else _question(context)
        return dspy.Example(question=question, answer=row["target"]).with_inputs("question")


def _program() -> dspy.Module:
    return dspy.ChainOfThought(AnswerNumber)


def _question(context: str) -> str | None:
    """Return the question without the formula, its explanation and its own quotes; ``None`` if it is not there."""
    rest = context
    for mark in ("Formula:", "Explanation:", "Question:"):
        _, found, rest = rest.partition(mark)
        if not found:
            return None
    question, found, tail = rest.rpartition("Answer:")
    if not found or tail.strip():
        return None
    question = question.strip().removesuffix(".").strip()
    if len(question) > 1 and question[0] in '"“' and question[-1] in '"”':
        question = question[1:-1].strip()
    return question or None


def _cut(rows: list[Row]) -> dict[str, list[Row]]:
    """Cut one file's rows 60/20/20. A row's place depends on its own hash alone, so equal rows stay together."""
    parts: dict[str, list[Row]] = {split: [] for split in _FILES}
    for row in rows:
        place = int(hashlib.sha256(canonical_json(["formula", row_hash(row)]).encode()).hexdigest()[:8], 16) / 2**32
        parts["train" if place < 0.6 else "validation" if place < 0.8 else "heldout"].append(row)
    return parts
