"""Which of a source's rows are used: cuts by hash, slices, and whether the source is here."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from combee_dspy.benchmarks._card import Availability
from combee_dspy.benchmarks._places import Known, Layout, locate
from combee_dspy.benchmarks._source import Row, is_url, sliced
from combee_dspy.exceptions import ArgumentValueError, DataSourceError
from combee_dspy.hashing import canonical_json, row_hash

__all__ = ["available", "cut", "place_of", "wanted_rows"]


def place_of(benchmark: str, key: str) -> float:
    """Return a key's place in [0, 1): a pure function of the benchmark's name and the key."""
    return int(hashlib.sha256(canonical_json([benchmark, key]).encode()).hexdigest()[:8], 16) / 2**32


def cut(benchmark: str, rows: Sequence[Row], ends: Mapping[str, float]) -> dict[str, list[Row]]:
    """Cut rows into parts. A row's part depends on its own hash alone, so equal rows stay together.

    Args:
        benchmark: Its name: part of the hash.
        rows: Raw rows.
        ends: Name of each part to where it ends in [0, 1], ascending, the last at 1.
    """
    parts: dict[str, list[Row]] = {name: [] for name in ends}
    for row in rows:
        place = place_of(benchmark, row_hash(row))
        parts[next(name for name, end in ends.items() if place < end)].append(row)
    return parts


def wanted_rows(
    rows: Mapping[str, Sequence[Row]], sizes: Mapping[str, int | None]
) -> tuple[dict[str, list[Row]], tuple[str, ...]]:
    """Return the slices that are wanted, and what a reader must know of them.

    Raises:
        ArgumentValueError: A size is no whole number of at least 1.
    """
    notes: list[str] = []
    for name, size in sizes.items():
        if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
            raise ArgumentValueError(name, size, "is no number of rows", "Give a whole number of at least 1, or none.")
        if size is not None and size < len(rows[name]):
            notes.append(f"{name} is a slice: {size} of {len(rows[name])} rows, those whose hashes come first")
    return {name: sliced(rows[name], sizes.get(name)) for name in rows}, tuple(notes)


def available(known: Known, path: str | Path | None, revision: str | None, layout: Layout | None) -> Availability:
    """Tell whether a source is on this machine, without a network."""
    if path is None:
        return Availability(False, "no path is given")
    try:
        place = locate(known, path, revision, layout)
    except (DataSourceError, ArgumentValueError) as error:
        return Availability(False, str(error))
    if is_url(str(path)):
        return Availability(False, f"{path}: read over the network")
    if place.revision is not None:
        return _in_cache(known, str(path), place.revision)
    files = [place.archive] if place.archive is not None else [*place.files.values()]
    missing = [file for file in files if not Path(file).is_file()]
    return Availability(not missing, f"missing: {missing[0]}" if missing else place.said)


def _in_cache(known: Known, hub_id: str, commit: str) -> Availability:
    if known.archive is None or hub_id not in known.pinned:
        return Availability(None, f"hub {hub_id}@{commit}: whether it is cached cannot be told")
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return Availability(False, "huggingface_hub is not installed")
    found = try_to_load_from_cache(hub_id, known.archive, repo_type="dataset", revision=commit)
    here = isinstance(found, str)
    return Availability(here, str(found) if here else f"hub {hub_id}@{commit}: read over the network, then cached")
