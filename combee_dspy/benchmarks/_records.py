"""A benchmark over records that lie somewhere: what Formula, FiNER and benchmarks of your own share."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from combee_dspy.benchmarks._base import Availability, Benchmark, Split
from combee_dspy.benchmarks._source import RowSource
from combee_dspy.benchmarks._splits import SPLITS, Row, build_splits, check_pins, cut, kept_apart, sliced
from combee_dspy.strategies import parameters


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read: its source and cut for the log, all raw rows before slices, the splits, and notes on them."""

    source: str
    rows: Mapping[str, Sequence[Row]]
    splits: Mapping[str, Split]
    notes: tuple[str, ...]


@parameters
class RecordBenchmark(Benchmark):
    """A benchmark whose rows lie where the user says: a folder, a file, an address or a hub data set.

    A benchmark over a data set of your own is a subclass with a ``rows``, a
    ``card``, ``inputs`` and a :meth:`load` that calls :meth:`read`.

    Attributes:
        path: A directory or HTTP address holding ``train.jsonl``, ``validation.jsonl`` and
            ``test.jsonl``; a zip file of them; one ``.jsonl`` file or address, cut 60/20/20 by
            hash; or a hub id ``owner/name`` with the three splits. ``test`` becomes held-out.
        revision: The 40-digit commit to read; required for a hub id, and only there.
        train: Rows to learn from, those whose hashes come first. ``None``: all.
        validation: … to select on.
        heldout: … read once at the end. A slice of it is no longer the benchmark's held-out, and the notes say so.
        pin: Split name to required digest.
    """

    rows: ClassVar[RowSource]
    """How rows lie at a source, without path and revision."""

    path: str | Path | None = None
    revision: str | None = None
    train: Annotated[int, Field(ge=1)] | None = None
    validation: Annotated[int, Field(ge=1)] | None = None
    heldout: Annotated[int, Field(ge=1)] | None = None
    pin: Mapping[str, str] | None = None

    @property
    def source(self) -> RowSource:
        """Where this benchmark's rows are."""
        return replace(self.rows, path=self.path, revision=self.revision)

    def availability(self) -> Availability:
        """Tell whether the rows are on this machine."""
        return self.source.availability()

    def problem(self, row: Row) -> str | None:
        """Return why a row cannot be used, or ``None``."""
        return None

    def together(self, row: Row) -> Sequence[Hashable]:
        """Return what a row holds that must not be in train or validation and in held-out too, besides itself."""
        return ()

    def records(self, rows: Iterator[Row], split: str) -> Iterator[Row]:
        """Yield the rows to use of those that the source holds. By default, all."""
        return rows

    def read(self) -> Reading:
        """Read, check, cut, slice and pin the rows.

        Raises:
            DataSourceError: No path is given, the rows cannot be read or used, or differ from ``pin``.
            ArgumentValueError: A hub id comes without a commit.
        """
        place = self.source.locate()
        found = {
            split: list(self._checked(self.records(rows, split), split)) for split, rows in self.source.rows().items()
        }
        how = ""
        if place.layout == "single":
            ends = {"train": 0.6, "validation": 0.8, "heldout": 1.0}
            found, how = cut(self.name, found["all"], ends, self.together), ", cut 60/20/20 by hash"
        elif place.layout == "nested":
            found |= cut(self.name, found["train"], {"train": 0.75, "validation": 1.0}, self.together)
            how = ", its training rows cut 75/25 by hash"
        if empty := [split for split in SPLITS if not found[split]]:
            raise self.source.error(f"the {empty[0]} split is empty")
        every, leaks = kept_apart(found, self.together, "share a sentence with heldout", "sentences")
        rows, slices = sliced(every, {split: getattr(self, split) for split in SPLITS})
        splits, notes = build_splits(rows, self.to_example)
        check_pins(self.name, place.said, splits, self.pin)
        return Reading(f"{place.said}{how}", every, splits, (*leaks, *slices, *notes))

    def _checked(self, rows: Iterator[Row], split: str) -> Iterator[Row]:
        for number, row in enumerate(rows, 1):
            if problem := self.problem(row):
                source = self.source
                raise source.error(problem, f"{source.path}, {source.names.get(split, split)} row {number}")
            yield row
