"""Splits of FiNER that share no sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from combee_dspy.benchmarks._source import Row
from combee_dspy.benchmarks._wanted import place_of
from combee_dspy.benchmarks.finer.records import Record
from combee_dspy.hashing import row_hash

__all__ = ["cut_by_sentence", "keep_apart"]

Pair = tuple[Row, Record]
"""A raw row, and what was read from it."""


def cut_by_sentence(pairs: Sequence[Pair], ends: Mapping[str, float]) -> dict[str, list[Pair]]:
    """Cut records into parts so that no sentence is in two of them.

    Records that share a sentence, directly or through others, go together.
    Their part depends on the smallest of their hashes alone.

    Args:
        pairs: Rows with their records.
        ends: Name of each part to where it ends in [0, 1], ascending, the last at 1.
    """
    parent = list(range(len(pairs)))

    def root(place: int) -> int:
        while parent[place] != place:
            parent[place] = parent[parent[place]]
            place = parent[place]
        return place

    first: dict[str, int] = {}
    for place, (_, record) in enumerate(pairs):
        for question in record.questions:
            seen = first.setdefault(question.sentence, place)
            parent[root(place)] = root(seen)
    hashes = [row_hash(row) for row, _ in pairs]
    smallest: dict[int, str] = {}
    for place, item in enumerate(hashes):
        group = root(place)
        smallest[group] = min(item, smallest.get(group, item))
    parts: dict[str, list[Pair]] = {name: [] for name in ends}
    for place, pair in enumerate(pairs):
        where = place_of("finer", smallest[root(place)])
        parts[next(name for name, end in ends.items() if where < end)].append(pair)
    return parts


def keep_apart(splits: Mapping[str, Sequence[Pair]]) -> tuple[dict[str, list[Pair]], tuple[str, ...]]:
    """Take records out of train and validation that share a sentence with held-out, and say how many.

    Held-out never changes. What train and validation share stays and is said.
    """
    held = _sentences(splits["heldout"])
    notes: list[str] = []
    kept: dict[str, list[Pair]] = {"heldout": list(splits["heldout"])}
    for name in ("train", "validation"):
        kept[name] = [pair for pair in splits[name] if not (_sentences([pair]) & held)]
        removed = len(splits[name]) - len(kept[name])
        if removed:
            notes.append(f"{removed} rows of {name} share a sentence with heldout and were taken out of {name}")
    shared = _sentences(kept["train"]) & _sentences(kept["validation"])
    if shared:
        notes.append(f"{len(shared)} sentences are in both train and validation and were kept in both")
    return kept, tuple(notes)


def _sentences(pairs: Sequence[Pair]) -> set[str]:
    return {question.sentence for _, record in pairs for question in record.questions}
