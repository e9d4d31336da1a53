"""The FiNER benchmark: four numbers of a filing, one of 139 US GAAP tags for each.

Origin: FiNER-139 (``nlpaueb/finer-139``, CC-BY-SA-4.0), put into batches of four
questions in FinLoRA and split by ACE. The data set's loading script no longer
runs with ``datasets``; the rows in the zip file beside it are read instead.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import dspy

from combee_dspy.benchmarks._base import BaseBenchmark, Benchmark
from combee_dspy.benchmarks._card import Availability, Card, Source
from combee_dspy.benchmarks._places import FILES, Known, Layout, Place, locate, read_whole, stream
from combee_dspy.benchmarks._source import Row, build_splits, check_pins
from combee_dspy.benchmarks._wanted import available, wanted_rows
from combee_dspy.benchmarks.finer.labels import LABELS
from combee_dspy.benchmarks.finer.records import Record, ambiguities, batches, parse
from combee_dspy.benchmarks.finer.scoring import TagMetric
from combee_dspy.benchmarks.finer.splitting import Pair, cut_by_sentence, keep_apart
from combee_dspy.exceptions import ArgumentValueError, DataSourceError
from combee_dspy.hashing import row_hash

__all__ = ["PINS", "Finer", "LabelList"]

_logger = logging.getLogger(__name__)

LabelList = Literal["shared", "record", "hidden"]
"""Where the 139 labels stand: once in the output field's description, in every record, or nowhere."""

PINS: Mapping[str, str] = {
    "train": "bfcc5d34a34c1d8a72cdb9e7eee55579d7151602607f2eddb9ae16526d4fb8ad",
    "validation": "59e6e53e22d3e5d6d65622edb5561e1c0fd618a880051cc9ab054e89a99b99e6",
    "heldout": "67e821a45416362841e945ab7e011ef2aa0535573293c67462ab8cf46f673be9",
}
"""Digests of the 300, 100 and 99 rows that this project's own FiNER figures are measured on."""

_HUB = "nlpaueb/finer-139"
_COMMIT = "100fd7b3f61c8c38c575e80c18f784a89bb604f3"
_MOST = 10_000
"""Records a split that are made of FiNER-139's sentences where no number is given, as in FinLoRA."""

_ORIGIN = "FiNER-139 (nlpaueb/finer-139, CC-BY-SA-4.0), batched by four in FinLoRA, split by ACE (Apache-2.0)"
_LICENCE = "CC-BY-SA-4.0 (FiNER-139)"
_CITATION = (
    "Loukas et al., FiNER: Financial Numeric Entity Recognition for XBRL Tagging, ACL 2022 (arXiv 2203.06482); "
    "FinLoRA; ACE (Agentic Context Engineering), whose task and scoring these are."
)
_HOW = (
    "Give path= a directory with train.jsonl, validation.jsonl and test.jsonl of ACE's records, one JSON object a "
    'line: {"context": "…", "target": "Tag,Tag,Tag,Tag"}; FinLoRA\'s data folder; FiNER-139\'s finer139.zip or the '
    f"folder it unpacks to; an HTTP address of any of them; or the hub id {_HUB}. Origin: {_ORIGIN}."
)
_KNOWN = Known(
    "finer",
    _HOW,
    {"train": "train/finer_train_batched.jsonl", "heldout": "test/finer_test_batched.jsonl"},
    archive="finer139.zip",
    pinned={_HUB: _COMMIT},
)


class Finer(BaseBenchmark):
    """The FiNER benchmark, from a source that the caller names.

    Records come as they are, or are made of FiNER-139's tagged sentences as
    FinLoRA makes them. Held-out shares no sentence with train and validation:
    records that would are taken out, and the notes say how many. A record with
    a question that the data answers in two ways is listed as known noise and kept.

    Args:
        path: A directory or HTTP address holding ACE's ``train.jsonl``,
            ``validation.jsonl`` and ``test.jsonl``; one ``.jsonl`` file of
            records, cut 60/20/20 so that no sentence is in two parts; FinLoRA's
            ``data`` folder, whose training records are cut 75/25 the same way;
            FiNER-139's ``finer139.zip``, the folder it unpacks to, or the hub
            id ``nlpaueb/finer-139``. ``test`` becomes held-out.
        revision: The 40-digit commit of a hub id; for ``nlpaueb/finer-139`` one is pinned.
        layout: How rows lie at ``path``, for an address whose ending does not tell.
        label_list: Where the labels stand. ``"shared"``: once, in the output
            field's description, and in no record: nine tenths of a record are
            labels otherwise. ``"record"``: in every record, which the program
            is given as it is (ACE's form). ``"hidden"``: nowhere.
        unit: What the metric scores: ``"tag"``, the share of right tags (ACE's
            accuracy), or ``"record"``, all of a record's tags (what ACE learns from).
        reasoning: Whether the default program reasons before it answers
            (``dspy.ChainOfThought``), as ACE's generator does, or answers at once (``dspy.Predict``).
        train: Records to learn from, those whose hashes come first; of FiNER-139,
            the first in its order. ``None``: all, and of FiNER-139 10,000.
        validation: … to select on.
        heldout: … read once at the end. A slice of it is no longer the benchmark's held-out, and the notes say so.
        pin: Split name to required digest. :data:`PINS` has those of this project's figures.
    """

    name: ClassVar[str] = "finer"
    card: ClassVar[Card | None] = Card(
        task="XBRL tags of numbers in financial filings: four questions a record, 139 labels.",
        licence=_LICENCE,
        citation=_CITATION,
        size="300 train, 100 validation, 99 held-out (ACE's split), about 3 MB; FiNER-139 itself 103 MB zipped",
        sources=(
            Source("path", "DIR/{train,validation,test}.jsonl", note="ACE's split"),
            Source("path", "FinLoRA/data", note="train/ and test/finer_*_batched.jsonl"),
            Source("path", "finer139.zip", note="FiNER-139, or the folder it unpacks to"),
            Source("hub", _HUB, _COMMIT, "its zip file; the loading script is not run"),
            Source("url", "https://…", note="any of these"),
        ),
        scoring="labels by position, case ignored: the share of right tags; a tolerant score beside it",
    )

    def __init__(  # noqa: PLR0913 - flat, so that each fits one line of a YAML file
        self,
        path: str | Path | None = None,
        *,
        revision: str | None = None,
        layout: Layout | None = None,
        label_list: LabelList = "shared",
        unit: Literal["tag", "record"] = "tag",
        reasoning: bool = True,
        train: int | None = None,
        validation: int | None = None,
        heldout: int | None = None,
        pin: Mapping[str, str] | None = None,
    ) -> None:
        self.path = path
        self.revision = revision
        self.layout = layout
        self.label_list = label_list
        self.unit = unit
        self.reasoning = reasoning
        self.train = train
        self.validation = validation
        self.heldout = heldout
        self.pin = pin

    def availability(self) -> Availability:
        """Tell whether the rows are on this machine."""
        return available(_KNOWN, self.path, self.revision, self.layout)

    def validate(self) -> None:
        """Check the parameters that are no source.

        Raises:
            ArgumentValueError: One is out of its range.
        """
        for name, allowed in (("label_list", get_args(LabelList)), ("unit", ("tag", "record"))):
            if getattr(self, name) not in allowed:
                raise ArgumentValueError(name, getattr(self, name), "is unknown", f"Use one of {', '.join(allowed)}.")

    def load(self) -> Benchmark:
        """Read the rows and return the benchmark.

        Raises:
            DataSourceError: No path is given, the rows cannot be read or are not FiNER's, or differ from ``pin``.
            ArgumentValueError: A hub id comes without a commit, or a parameter cannot be used.
        """
        self.validate()
        if self.path is None:
            raise DataSourceError(self.name, "no path", "FiNER is not bundled, and no path is given", _HOW)
        place = locate(_KNOWN, self.path, self.revision, self.layout)
        pairs, how = self._pairs(place)
        for split, items in pairs.items():
            if not items:
                raise DataSourceError(self.name, place.said, f"the {split} split is empty", _HOW)
        apart, leaks = keep_apart(pairs)
        for note in leaks:
            _logger.warning("%s", note)
        records = {row_hash(row): record for split in FILES for row, record in apart[split]}
        sizes = {name: getattr(self, name) for name in FILES}
        rows, said = wanted_rows({split: [row for row, _ in apart[split]] for split in FILES}, sizes)
        labels = self._labels(list(records.values()), place.said)
        splits, notes = build_splits(rows, self.to_example)
        check_pins(self.name, place.said, splits, self.pin)
        noise = zip(records, ambiguities(list(records.values())), strict=True)
        signature = self._signature(labels)
        module = dspy.ChainOfThought if self.reasoning else dspy.Predict
        return Benchmark(
            name=self.name,
            task=f"finer, labels {self.label_list}",
            source=f"{how}; origin: {_ORIGIN}",
            licence=_LICENCE,
            citation=_CITATION,
            train=splits["train"],
            validation=splits["validation"],
            heldout=splits["heldout"],
            signature=signature,
            program=lambda: module(signature),
            metric=TagMetric(self.unit, labels=labels),
            tolerant_metric=TagMetric(self.unit, tolerant=True, labels=labels),
            known_noise={digest: reason for digest, reason in noise if reason},
            notes=(*leaks, *said, *notes),
        )

    def _pairs(self, place: Place) -> tuple[dict[str, list[Pair]], str]:
        if place.layout == "archive":
            rows = stream(_KNOWN, place)
            made = {split: self._made(rows[split], split, place.said) for split in FILES}
            return made, f"{place.said}, sentences batched by four in their order"
        raw = read_whole(_KNOWN, place)
        first = next((row for found in raw.values() for row in found), {})
        if "ner_tags" in first:
            made = {split: self._made(iter(found), split, place.said) for split, found in raw.items()}
            return self._cut(made, place, f"{place.said}, sentences batched by four in their order")
        read = {split: self._read(found, split, place.said) for split, found in raw.items()}
        return self._cut(read, place, place.said)

    def _cut(self, pairs: dict[str, list[Pair]], place: Place, how: str) -> tuple[dict[str, list[Pair]], str]:
        if place.layout == "single":
            ends = {"train": 0.6, "validation": 0.8, "heldout": 1.0}
            return cut_by_sentence(pairs["all"], ends), f"{how}, cut 60/20/20 by sentence"
        if place.layout == "finlora":
            learned = cut_by_sentence(pairs["train"], {"train": 0.75, "validation": 1.0})
            return {**learned, "heldout": pairs["heldout"]}, f"{how}, its training rows cut 75/25 by sentence"
        return pairs, how

    def _read(self, rows: list[Row], split: str, where: str) -> list[Pair]:
        pairs: list[Pair] = []
        for number, row in enumerate(rows, 1):
            found = parse(row)
            if isinstance(found, str):
                raise DataSourceError(self.name, f"{where}, {FILES.get(split, split)} row {number}", found, _HOW)
            pairs.append((row, found))
        return pairs

    def _made(self, sentences: Iterator[Row], split: str, where: str) -> list[Pair]:
        size = getattr(self, split, None) or _MOST
        made: list[Row] = []
        for number, row in enumerate(islice(batches(sentences), size), 1):
            if isinstance(row, str):
                raise DataSourceError(self.name, f"{where}, {FILES.get(split, split)} near record {number}", row, _HOW)
            made.append(dict(row))
        return self._read(made, split, where)

    def _labels(self, records: list[Record], where: str) -> tuple[str, ...]:
        """Return the labels that all records offer: those of FiNER-139 where they list none."""
        offered = {frozenset(record.labels) for record in records if record.labels} or {frozenset(LABELS)}
        if len(offered) > 1 and self.label_list == "shared":
            reason = f"its records offer {len(offered)} different lists of labels"
            raise DataSourceError(self.name, where, reason, "Pass label_list='record' to leave each its own.")
        labels = tuple(sorted(frozenset.union(*offered)))
        unknown = {question.target for record in records for question in record.questions} - set(labels)
        if unknown:
            reason = f"{len(unknown)} targets are among no record's labels, such as {min(unknown)[:80]!r}"
            raise DataSourceError(self.name, where, reason, _HOW)
        return labels

    def to_example(self, row: Mapping[str, Any]) -> dspy.Example:
        """Return the questions (``context``, with ``label_list="record"``), their tags, and the numbers asked for.

        Raises:
            DataSourceError: The row is not FiNER's.
        """
        record = parse(row)
        if isinstance(record, str):
            raise DataSourceError(self.name, "one row", record, _HOW)
        # Entities are no field of the signature: the metric names them in its feedback.
        entities = [question.entity for question in record.questions]
        if self.label_list == "record":
            return dspy.Example(context=row["context"], tags=row["target"], entities=entities).with_inputs("context")
        return dspy.Example(questions=record.text, tags=row["target"], entities=entities).with_inputs("questions")

    def _signature(self, labels: tuple[str, ...]) -> type[dspy.Signature]:
        answer = "one US GAAP tag a question, in the order of the questions, separated by commas, and nothing else"
        if self.label_list == "record":
            fields = {"context": (str, dspy.InputField()), "tags": (str, dspy.OutputField(desc=answer))}
            return dspy.Signature(fields, "Answer the questions with US GAAP tags.")
        if self.label_list == "shared":
            answer += f". Each is one of these {len(labels)}: {', '.join(labels)}"
        fields = {
            "questions": (str, dspy.InputField(desc="numbers (entities) of financial filings, each in its sentence")),
            "tags": (str, dspy.OutputField(desc=answer)),
        }
        return dspy.Signature(fields, "Name the best US GAAP tag for each number.")
