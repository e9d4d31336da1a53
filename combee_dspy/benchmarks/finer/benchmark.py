"""The FiNER benchmark: four numbers of a filing, one of 139 US GAAP tags for each.

Origin: FiNER-139 (``nlpaueb/finer-139``, CC-BY-SA-4.0), put into batches of four
questions in FinLoRA; ACE published files of them. It is on no hub in this form, so the caller names
the source.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar, Literal

import dspy

from combee_dspy.benchmarks._base import Card, LoadedBenchmark, Row
from combee_dspy.benchmarks._records import PUBLISHED, RecordBenchmark
from combee_dspy.benchmarks._source import RowSource
from combee_dspy.benchmarks.finer.records import LABELS, Record, ambiguities, parse
from combee_dspy.benchmarks.finer.scoring import TagMetric
from combee_dspy.hashing import row_hash
from combee_dspy.strategies import parameters

PINS: Mapping[str, str] = {
    "train": "bfcc5d34a34c1d8a72cdb9e7eee55579d7151602607f2eddb9ae16526d4fb8ad",
    "validation": "59e6e53e22d3e5d6d65622edb5561e1c0fd618a880051cc9ab054e89a99b99e6",
    "heldout": "67e821a45416362841e945ab7e011ef2aa0535573293c67462ab8cf46f673be9",
}
"""Digests of the 300, 100 and 99 rows that this project's own FiNER figures are measured on: its
own cut.
"""

_ORIGIN = (
    "FiNER-139 (nlpaueb/finer-139, CC-BY-SA-4.0), batched by four in FinLoRA, in files of ACE"
    " (Apache-2.0)"
)
_REMEDY = (
    "FiNER is not bundled. Give path= ACE's eval/finance/data, a directory with train.jsonl,"
    ' validation.jsonl and test.jsonl of ACE\'s records, one JSON object a line: {"context": "…",'
    ' "target": "Tag,Tag,Tag,Tag"}. One .jsonl file, an HTTP address or a hub id with revision='
    f" work too. Origin: {_ORIGIN}."
)
_OTHER_TASK = (
    "ACE gives each record with its labels and scores tags (label_list='record', unit='tag')"
)
_CARD = Card(
    task="XBRL tags of numbers in financial filings: four questions a record, 139 labels.",
    licence="CC-BY-SA-4.0 (FiNER-139)",
    citation=(
        "Loukas et al., FiNER: Financial Numeric Entity Recognition for XBRL Tagging, ACL 2022"
        " (arXiv 2203.06482); FinLoRA; ACE (Agentic Context Engineering), whose task and scoring"
        " these are."
    ),
    size=(
        "1,000 train, 500 validation, 441 held-out (ACE's files); 300, 100, 99 (this project's own"
        " cut of ACE's validation file, which its figures are measured on: not comparable with the"
        " paper), about 3 MB"
    ),
    sources=(
        "path ACE/eval/finance/data (ACE's files by their names, as they are)",
        "path DIR/{train,validation,test}.jsonl (rows of your own cut)",
        "url https://… (the folder or file of the same form)",
        "hub owner/name (with revision=; no public one is known)",
    ),
    scoring="labels by position, case ignored: the share of right tags; a tolerant score beside it",
)


@parameters
class Finer(RecordBenchmark):
    """The FiNER benchmark, from a source that the caller names.

    Records of train and validation that share a sentence with held-out are taken out, and the notes
    say how many. A record with a question that the data answers in two ways is listed as known
    noise and kept. :data:`PINS` has the digests of this project's figures.

    Attributes:
        label_list: Where the labels stand. ``"shared"``: once, in the output field's description,
            and in no record, nine tenths of which are labels otherwise. ``"record"``: in every
            record, which the program is given as it is (ACE's form). ``"hidden"``: nowhere.
        unit: What the metric scores: ``"tag"``, the share of right tags (ACE's
            accuracy), or ``"record"``, all of a record's tags (what ACE learns from).
        reasoning: Whether the default program is ``dspy.ChainOfThought``, as ACE's generator
            reasons too, or ``dspy.Predict``.
    """

    name: ClassVar[str] = "finer"
    card: ClassVar[Card | None] = _CARD
    rows: ClassVar[RowSource] = RowSource(
        "finer",
        remedy=_REMEDY,
        published={
            "train": ("finer_train_batched_1000_samples.jsonl", 1_000),
            "validation": ("finer_val_batched_500_samples.jsonl", 500),
            "heldout": ("finer_test_subset_006_seed42.jsonl", 441),
        },
    )

    own: ClassVar[Mapping[str, str]] = PINS

    label_list: Literal["shared", "record", "hidden"] = "shared"
    unit: Literal["tag", "record"] = "tag"
    reasoning: bool = True

    def load(self) -> LoadedBenchmark:
        """Read the rows and return the benchmark (see :meth:`RecordBenchmark.read`)."""
        reading = self.read()
        as_in_ace = self.label_list == "record" and self.unit == "tag"
        missing = reading.missing or ("" if as_in_ace else _OTHER_TASK)
        records = {
            row_hash(row): self._record(row) for rows in reading.rows.values() for row in rows
        }
        labels = self._labels(records.values())
        signature = self._signature(labels)
        module = dspy.ChainOfThought if self.reasoning else dspy.Predict
        return LoadedBenchmark(
            name=self.name,
            task=f"finer, labels {self.label_list}",
            source=f"{reading.source}; origin: {_ORIGIN}",
            licence=_CARD.licence,
            citation=_CARD.citation,
            train=reading.splits["train"],
            validation=reading.splits["validation"],
            heldout=reading.splits["heldout"],
            signature=signature,
            program=lambda: module(signature),
            metric=TagMetric(self.unit, labels=labels),
            tolerant_metric=TagMetric(self.unit, tolerant=True, labels=labels),
            known_noise=ambiguities(records),
            notes=reading.notes,
            comparable=False if missing else None,
            standing=missing or PUBLISHED,
        )

    def problem(self, row: Row) -> str | None:
        """Return why a row is no record of FiNER's, or ``None``."""
        record = parse(row)
        return record if isinstance(record, str) else None

    def together(self, row: Row) -> list[str]:
        """Return a record's sentences."""
        return [question.sentence for question in self._record(row).questions]

    def _record(self, row: Mapping[str, object]) -> Record:
        record = parse(row)
        if isinstance(record, str):
            raise self.source.error(record, "one row")
        return record

    def _labels(self, records: Collection[Record]) -> tuple[str, ...]:
        """Return the labels that all records offer: those of FiNER-139 where they list none."""
        offered = {frozenset(record.labels) for record in records if record.labels} or {
            frozenset(LABELS)
        }
        if len(offered) > 1 and self.label_list == "shared":
            reason = f"its records offer {len(offered)} different lists of labels"
            raise self.source.error(
                reason, remedy="Pass label_list='record' to leave each its own."
            )
        labels = tuple(sorted(frozenset.union(*offered)))
        if unknown := {
            question.target for record in records for question in record.questions
        }.difference(labels):
            reason = (
                f"{len(unknown)} targets are among no record's labels, such as"
                f" {min(unknown)[:80]!r}"
            )
            raise self.source.error(reason)
        return labels

    def to_example(self, row: Mapping[str, object]) -> dspy.Example:
        """Return the questions (``context``, with ``label_list="record"``), their tags, and the
        numbers asked for.

        Raises:
            DataSourceError: The row is not FiNER's.
        """
        record = self._record(row)
        inputs = (
            {"context": row["context"]}
            if self.label_list == "record"
            else {"questions": record.text}
        )
        # Entities are no field of the signature: the metric names them in its feedback.
        entities = [question.entity for question in record.questions]
        return dspy.Example(**inputs, tags=row["target"], entities=entities).with_inputs(*inputs)

    def _signature(self, labels: tuple[str, ...]) -> type[dspy.Signature]:
        answer = (
            "one US GAAP tag a question, in the order of the questions, separated by commas, and"
            " nothing else"
        )
        if self.label_list == "shared":
            answer += f". Each is one of these {len(labels)}: {', '.join(labels)}"
        tags = (str, dspy.OutputField(desc=answer))
        if self.label_list == "record":
            fields = {"context": (str, dspy.InputField()), "tags": tags}
            return dspy.Signature(fields, "Answer the questions with US GAAP tags.")
        questions = dspy.InputField(
            desc="numbers (entities) of financial filings, each in its sentence"
        )
        return dspy.Signature(
            {"questions": (str, questions), "tags": tags},
            "Name the best US GAAP tag for each number.",
        )
