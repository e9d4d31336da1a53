"""A benchmark over records that lie somewhere: what Formula, FiNER and benchmarks of your own
share.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, TypeVar

import dspy
from pydantic import Field

from combee_dspy.benchmarks._base import SPLITS, Availability, Benchmark, Row, Split
from combee_dspy.benchmarks._source import Place, RowSource
from combee_dspy.exceptions import DataSourceError
from combee_dspy.hashing import canonical_json, row_hash
from combee_dspy.strategies import parameters

T = TypeVar("T")

_logger = logging.getLogger(__name__)

_ENDS = {"train": 0.6, "validation": 0.8, "heldout": 1.0}
"""Where each split of one file ends, as a share of all hashes."""

PUBLISHED = (
    "these have ACE's names and numbers of rows, whole, scored as in ACE; no row hashes of ACE's"
    " are known here"
)
"""What a report says of rows that have the paper's names and sizes: it cannot tell more."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read: its source and cut for the log, all raw rows before slices, the splits, and
    notes on them.

    ``missing``: what makes the rows others than those of the published benchmark's files, by name
    and size.
    """

    source: str
    rows: Mapping[str, Sequence[Row]]
    splits: Mapping[str, Split]
    notes: tuple[str, ...]
    missing: str = ""


@parameters
class RecordBenchmark(Benchmark):
    """A benchmark whose rows lie where the user says: a folder, a file, an address or a hub data
    set.

    A benchmark over a data set of your own is a subclass with a ``rows``, a
    ``card``, ``inputs`` and a :meth:`load` that calls :meth:`read`.

    Attributes:
        path: A directory or HTTP address holding ``train.jsonl``, ``validation.jsonl`` and
            ``test.jsonl``; a directory with the benchmark's published files under their own names,
            which are run as they are (a row of held-out is in no other split all the same); one
            ``.jsonl`` file or address, cut 60/20/20 by hash; or a hub id ``owner/name`` with the
            three splits. ``test`` becomes held-out.
        revision: The 40-digit commit to read; required for a hub id, and only there.
        train: Rows to learn from, those whose hashes come first. ``None``: all.
        validation: … to select on.
        heldout: … read once at the end. A slice of it is no longer the benchmark's held-out, and
            the notes say so.
        pin: Split name to required digest.
    """

    rows: ClassVar[RowSource]
    """How rows lie at a source, without path and revision."""
    own: ClassVar[Mapping[str, str]] = {}
    """Digests of the splits that this project's own figures are measured on, where they are no
    published ones.
    """

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
        """Return what a row holds that must not be in train or validation and in held-out too,
        besides itself.
        """
        return ()

    def read(self) -> Reading:
        """Read, check, cut, slice and pin the rows.

        Raises:
            DataSourceError: No path is given, the rows cannot be read or used, or differ from
                ``pin``.
            ArgumentValueError: A hub id comes without a commit.
        """
        source = self.source
        place = source.locate()
        rows_by_split = {
            split: list(self._checked(rows, split)) for split, rows in source.rows().items()
        }
        how = ""
        if place.layout == "single":
            rows_by_split, how = self._cut(rows_by_split["all"]), ", cut 60/20/20 by hash"
        if empty := [split for split in SPLITS if not rows_by_split[split]]:
            raise source.error(f"the {empty[0]} split is empty")
        # Published files are run as they are.
        is_published = place.layout == "published"
        every, repeats = _set_apart(
            rows_by_split, self.together, "sentence", keeps_rows=is_published
        )
        slices = {split: _first(rows, getattr(self, split)) for split, rows in every.items()}
        cuts = [
            f"{split} is a slice: {len(rows)} of {len(every[split])} rows, those whose hashes come"
            " first"
            for split, rows in slices.items()
            if len(rows) < len(every[split])
        ]
        splits, notes = build_splits(slices, self.to_example)
        check_pins(self.name, place.name, splits, self.pin)
        missing = self._missing(place, rows_by_split, splits) if source.published else ""
        return Reading(f"{place.name}{how}", every, splits, (*repeats, *cuts, *notes), missing)

    def _missing(
        self, place: Place, rows_by_split: Mapping[str, Sequence[Row]], splits: Mapping[str, Split]
    ) -> str:
        """Return what makes these rows others than the published ones, empty for nothing."""
        if self.own and all(splits[split].digest == digest for split, digest in self.own.items()):
            return "these rows are this project's own cut of ACE's files, by their digests"
        if place.layout != "published":
            return "these are not ACE's own files, by their names"
        for split, (name, size) in self.rows.published.items():
            if len(rows_by_split[split]) != size:
                return f"{name} holds {len(rows_by_split[split])} rows, not ACE's {size}"
            if len(splits[split]) != size:
                return f"{len(splits[split])} of the {size} rows of {split} are used"
        return ""

    def _checked(self, rows: Iterator[Row], split: str) -> Iterator[Row]:
        for number, row in enumerate(rows, 1):
            if problem := self.problem(row):
                source = self.source
                raise source.error(
                    problem, f"{source.path}, {source.names.get(split, split)} row {number}"
                )
            yield row

    def _cut(self, rows: Sequence[Row]) -> dict[str, list[Row]]:
        """Cut rows into splits by their hashes alone, so that their order does not count and equal
        rows stay together.

        Rows that share what :meth:`together` returns (such as a sentence), directly or through
        others, go where the smallest of their hashes goes.
        """
        from scipy.cluster.hierarchy import DisjointSet

        hashes = [row_hash(row) for row in rows]
        groups = DisjointSet(range(len(rows)))
        first: dict[Hashable, int] = {}
        for place, row in enumerate(rows):
            for item in self.together(row):
                groups.merge(place, first.setdefault(item, place))
        smallest: dict[int, str] = {}
        for group in groups.subsets():
            smallest |= dict.fromkeys(group, min(hashes[place] for place in group))
        parts: dict[str, list[Row]] = {name: [] for name in SPLITS}
        for place, row in enumerate(rows):
            key = hashlib.sha256(canonical_json([self.name, smallest[place]]).encode()).hexdigest()
            where = int(key[:8], 16) / 2**32
            parts[next(name for name, end in _ENDS.items() if where < end)].append(row)
        return parts


def _first(rows: Sequence[Row], size: int | None) -> Sequence[Row]:
    """Return the rows whose hashes come first, in their order.

    It depends on the rows alone, and a smaller slice is part of a larger one.
    """
    if size is None or size >= len(rows):
        return rows
    places = sorted(range(len(rows)), key=lambda place: row_hash(rows[place]))[:size]
    return [rows[place] for place in sorted(places)]


def _set_apart(
    rows: Mapping[str, Sequence[T]],
    holds: Callable[[T], Sequence[Hashable]],
    noun: str,
    *,
    keeps_rows: bool = False,
) -> tuple[dict[str, Sequence[T]], list[str]]:
    """Take the rows out of train and validation that hold what a row of held-out holds too.

    Held-out never changes, and what train and validation share stays. Each case is a note and a
    warning.

    Args:
        rows: By split.
        holds: Returns what a row must not share with held-out.
        noun: What that is.
        keeps_rows: Whether to say it alone, and to leave the rows where they are.
    """
    heldout_items = {item for row in rows["heldout"] for item in holds(row)}
    rows_left = dict(rows)
    notes: list[str] = []
    for name in ("train", "validation"):
        apart = [row for row in rows[name] if heldout_items.isdisjoint(holds(row))]
        if repeating := len(rows[name]) - len(apart):
            what = "as published" if keeps_rows else f"and were taken out of {name}"
            notes.append(f"{repeating} rows of {name} repeat a {noun} of heldout, {what}")
        if not keeps_rows:
            rows_left[name] = apart
    learned, compared = (
        {item for row in rows_left[name] for item in holds(row)} for name in ("train", "validation")
    )
    if both := learned & compared:
        notes.append(f"{len(both)} distinct {noun}s are in both train and validation, and stay")
    for note in notes:
        _logger.warning("%s", note)
    return rows_left, notes


def build_splits(
    rows: Mapping[str, Sequence[Row]], to_example: Callable[[Row], dspy.Example]
) -> tuple[dict[str, Split], tuple[str, ...]]:
    """Turn raw rows by split into splits by name, held-out apart from the others, and notes.

    Rows that are repeated within a split stay, and a note says so.
    """
    hashed = {name: [(row_hash(row), row) for row in rows[name]] for name in SPLITS}
    rows_left, notes = _set_apart(hashed, lambda pair: pair[:1], "row")
    for name in SPLITS:
        if repeated := len(rows_left[name]) - len({digest for digest, _ in rows_left[name]}):
            notes.append(f"{repeated} rows of {name} repeat an earlier row of it, and stay")
            _logger.warning("%s", notes[-1])
    splits = {
        name: Split(
            name, tuple(to_example(row) for _, row in pairs), tuple(digest for digest, _ in pairs)
        )
        for name, pairs in rows_left.items()
    }
    return splits, tuple(notes)


def check_pins(
    benchmark: str, source: str, splits: Mapping[str, Split], pin: Mapping[str, str] | None
) -> None:
    """Require the splits that were pinned; those without a pin are free.

    Raises:
        DataSourceError: A split's digest is not the pinned one, or the pin names no split.
    """
    for name, wanted in (pin or {}).items():
        if name not in splits:
            remedy = f"Splits are {', '.join(sorted(splits))}."
            raise DataSourceError(benchmark, source, f"pin names the split {name!r}", remedy)
        digest = splits[name].digest
        if digest != wanted:
            reason = f"the rows of {name} have digest {digest}, but {wanted} is pinned"
            raise DataSourceError(
                benchmark, source, reason, "Use the pinned rows, or pin these if they are meant."
            )
