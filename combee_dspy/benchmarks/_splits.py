"""From raw rows to splits: cuts by hash, slices, what is kept apart, and pins."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import dspy

from combee_dspy.benchmarks._base import Split
from combee_dspy.exceptions import DataSourceError
from combee_dspy.hashing import canonical_json, row_hash

Row = dict[str, Any]
T = TypeVar("T")

SPLITS = ("train", "validation", "heldout")

_logger = logging.getLogger(__name__)


def cut(
    benchmark: str,
    rows: Sequence[Row],
    ends: Mapping[str, float],
    together: Callable[[Row], Sequence[Hashable]] = lambda row: (),
) -> dict[str, list[Row]]:
    """Cut rows into parts by their hashes alone, so that their order does not count and equal rows stay together.

    ``ends`` says where each part ends in [0, 1], ascending. Rows that share what ``together`` returns (such
    as a sentence), directly or through others, go where the smallest of their hashes goes.
    """
    from scipy.cluster.hierarchy import DisjointSet

    hashes = [row_hash(row) for row in rows]
    groups = DisjointSet(range(len(rows)))
    first: dict[Hashable, int] = {}
    for place, row in enumerate(rows):
        for item in together(row):
            groups.merge(place, first.setdefault(item, place))
    smallest: dict[int, str] = {}
    for place, digest in enumerate(hashes):
        smallest[groups[place]] = min(digest, smallest.get(groups[place], digest))
    parts: dict[str, list[Row]] = {name: [] for name in ends}
    for place, row in enumerate(rows):
        key = canonical_json([benchmark, smallest[groups[place]]])
        where = int(hashlib.sha256(key.encode()).hexdigest()[:8], 16) / 2**32
        parts[next(name for name, end in ends.items() if where < end)].append(row)
    return parts


def sliced(
    rows: Mapping[str, Sequence[Row]], sizes: Mapping[str, int | None]
) -> tuple[dict[str, list[Row]], tuple[str, ...]]:
    """Return as many rows of each split as are wanted, in their order, and what a reader must know of it.

    A slice holds the rows whose hashes come first: it depends on the rows
    alone, and a smaller slice is part of a larger one.
    """
    kept: dict[str, list[Row]] = {}
    notes: list[str] = []
    for name, items in rows.items():
        size = sizes.get(name)
        kept[name] = list(items)
        if size is not None and size < len(items):
            first = sorted((row_hash(row), place) for place, row in enumerate(items))[:size]
            kept[name] = [items[place] for place in sorted(place for _, place in first)]
            notes.append(f"{name} is a slice: {size} of {len(items)} rows, those whose hashes come first")
    return kept, tuple(notes)


def kept_apart(
    rows: Mapping[str, Sequence[T]], holds: Callable[[T], Sequence[Hashable]], leaks: str, shared: str
) -> tuple[dict[str, list[T]], tuple[str, ...]]:
    """Take out of train and validation what holds something that held-out holds too, and say how much.

    Held-out never changes. What train and validation share stays and is said. Each case is one note and warning.
    """
    held = {item for one in rows["heldout"] for item in holds(one)}
    kept = {name: list(rows[name]) for name in SPLITS}
    notes: list[str] = []
    for name in ("train", "validation"):
        kept[name] = [one for one in rows[name] if held.isdisjoint(holds(one))]
        if removed := len(rows[name]) - len(kept[name]):
            notes.append(f"{removed} rows of {name} {leaks} and were taken out of {name}")
    learned = {item for one in kept["train"] for item in holds(one)}
    if both := learned & {item for one in kept["validation"] for item in holds(one)}:
        notes.append(f"{len(both)} {shared} are in both train and validation and were kept in both")
    for note in notes:
        _logger.warning("%s", note)
    return kept, tuple(notes)


def build_splits(
    rows: Mapping[str, Sequence[Row]], to_example: Callable[[Row], dspy.Example]
) -> tuple[dict[str, Split], tuple[str, ...]]:
    """Turn raw rows by split into splits by name, held-out kept apart from the others, and notes.

    Rows that are repeated within a split stay, and are said.
    """
    hashed = {name: [(row_hash(row), row) for row in rows[name]] for name in SPLITS}
    kept, notes = kept_apart(hashed, lambda pair: pair[:1], "are in heldout too", "distinct rows")
    for name in SPLITS:
        if repeated := len(kept[name]) - len({item for item, _ in kept[name]}):
            notes = (*notes, f"{repeated} rows of {name} repeat an earlier row of it and were kept")
            _logger.warning("%s", notes[-1])
    splits = {
        name: Split(name, tuple(to_example(row) for _, row in pairs), tuple(item for item, _ in pairs))
        for name, pairs in kept.items()
    }
    return splits, notes


def check_pins(benchmark: str, source: str, splits: Mapping[str, Split], pin: Mapping[str, str] | None) -> None:
    """Require the splits that were pinned; those without a pin are free.

    Raises:
        DataSourceError: A split's digest is not the pinned one, or the pin names no split.
    """
    for name, wanted in (pin or {}).items():
        if name not in splits:
            remedy = f"Splits are {', '.join(sorted(splits))}."
            raise DataSourceError(benchmark, source, f"pin names the split {name!r}", remedy)
        found = splits[name].digest
        if found != wanted:
            reason = f"the rows of {name} have digest {found}, but {wanted} is pinned"
            raise DataSourceError(benchmark, source, reason, "Use the pinned rows, or pin these if they are meant.")
