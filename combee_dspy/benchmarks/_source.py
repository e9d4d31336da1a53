"""Rows through ``datasets.load_dataset``, and what is checked before they become splits."""

from __future__ import annotations

import glob
import logging
import re
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from combee_dspy.benchmarks._base import Split
from combee_dspy.exceptions import DataSourceError
from combee_dspy.hashing import row_hash

if TYPE_CHECKING:
    import dspy

__all__ = [
    "Row",
    "build_splits",
    "check_pins",
    "fetch",
    "is_hub_id",
    "is_url",
    "read_hub",
    "read_json",
    "sliced",
    "stream_json",
]

Row = dict[str, Any]
SPLITS = ("train", "validation", "heldout")
_INSTALL = "Install it with: pip install 'combee-dspy[benchmarks]'."

_logger = logging.getLogger(__name__)
_quiet = threading.Lock()
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def is_url(source: str) -> bool:
    """Tell whether a source is an HTTP address."""
    return source.startswith(("http://", "https://"))


def is_hub_id(source: str) -> bool:
    """Tell whether a source has the form ``owner/name``."""
    return _HUB_ID.fullmatch(source) is not None


def read_json(benchmark: str, source: str) -> list[Row]:
    """Read the rows of one JSON Lines file.

    Args:
        benchmark: The benchmark's name, for errors.
        source: A local file or an HTTP address.

    Raises:
        DataSourceError: It cannot be read.
    """
    if is_url(source):
        return _load(benchmark, source, "json", data_files=source, split="train")
    if not Path(source).is_file():
        raise DataSourceError(benchmark, source, "there is no such file", "Check the path.")
    # The cache of a local file would outlive it, and a home may be read-only.
    with tempfile.TemporaryDirectory(prefix="combee-rows-") as cache, _offline_and_quiet():
        return _load(benchmark, source, "json", data_files=glob.escape(source), split="train", cache_dir=cache)


def read_hub(benchmark: str, hub_id: str, revision: str, split: str) -> list[Row]:
    """Read one split of a data set on the Hugging Face hub.

    Args:
        benchmark: The benchmark's name, for errors.
        hub_id: ``owner/name``.
        revision: The commit to read.
        split: The split's name on the hub.

    Raises:
        DataSourceError: It cannot be read.
    """
    return _load(benchmark, f"{hub_id}@{revision}:{split}", hub_id, revision=revision, split=split)


def fetch(benchmark: str, address: str) -> str:
    """Return the local copy of a file, fetched into the cache of ``datasets`` unless it is there.

    Args:
        benchmark: The benchmark's name, for errors.
        address: An HTTP address, or a file of the hub (``hf://datasets/owner/name@commit/file``).

    Raises:
        DataSourceError: It cannot be fetched.
    """
    try:
        import datasets
    except ImportError as error:
        raise DataSourceError(benchmark, address, "the package datasets is not installed", _INSTALL) from error
    try:
        return str(datasets.DownloadManager().download(address))
    except Exception as error:
        # Whatever the transport raises, one error names the source.
        reason = f"{type(error).__name__}: {error}"
        raise DataSourceError(benchmark, address, reason, "Check the address and the network.") from error


def stream_json(benchmark: str, source: str) -> Iterator[Row]:
    """Yield the rows of a local JSON Lines file one by one, without holding all of them.

    Args:
        benchmark: The benchmark's name, for errors.
        source: A member of an archive as fsspec writes it: ``zip://train.jsonl::rows.zip``.

    Raises:
        DataSourceError: It cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="combee-rows-") as cache:
        with _offline_and_quiet():
            rows = _rows(benchmark, source, "json", data_files=source, split="train", cache_dir=cache)
            first = next(rows, None)
        if first is not None:
            yield first
        yield from rows


def sliced(rows: Sequence[Row], size: int | None) -> list[Row]:
    """Return some of the rows, in their order: those whose hashes come first.

    Which rows are chosen depends on the rows alone, and a smaller slice is part of a larger one.

    Args:
        rows: Raw rows.
        size: How many; ``None`` or more than there are is all of them.
    """
    if size is None or size >= len(rows):
        return list(rows)
    order = sorted(range(len(rows)), key=lambda place: (row_hash(rows[place]), place))
    kept = set(order[:size])
    return [row for place, row in enumerate(rows) if place in kept]


def _load(benchmark: str, source: str, builder: str, **options: Any) -> list[Row]:
    return list(_rows(benchmark, source, builder, **options))


def _rows(benchmark: str, source: str, builder: str, **options: Any) -> Iterator[Row]:
    try:
        import datasets
    except ImportError as error:
        raise DataSourceError(benchmark, source, "the package datasets is not installed", _INSTALL) from error
    try:
        loaded = datasets.load_dataset(builder, **options)
        named = _label_names(getattr(loaded, "features", None) or {})
        for row in loaded:
            yield {name: named[name](value) if name in named else value for name, value in dict(row).items()}
    except Exception as error:
        # Readers raise what they like, StopIteration for an empty file included: one error names the source.
        cause = error.__cause__ or error
        reason = f"{type(cause).__name__}: {cause}"
        remedy = "Check that the source exists, can be reached, and holds one JSON object a line."
        raise DataSourceError(benchmark, source, reason, remedy) from error


def _label_names(features: Mapping[str, Any]) -> dict[str, Callable[[Any], Any]]:
    """Return what turns label numbers into names, by column: the hub's own conversions hold numbers."""
    import datasets

    named: dict[str, Callable[[Any], Any]] = {}
    for name, kind in features.items():
        inner = getattr(kind, "feature", kind)
        if isinstance(inner, datasets.ClassLabel):
            named[name] = inner.int2str
    return named


@contextmanager
def _offline_and_quiet() -> Iterator[None]:
    """Keep ``datasets`` from reporting a local read to its servers, and from drawing bars for it."""
    try:
        import datasets
    except ImportError:
        yield
        return
    # Both are settings of the whole process, so one local read at a time may change them.
    with _quiet:
        counting, hidden = datasets.config.HF_UPDATE_DOWNLOAD_COUNTS, datasets.are_progress_bars_disabled()
        datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
        datasets.disable_progress_bars()
        try:
            yield
        finally:
            datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = counting
            if not hidden:
                datasets.enable_progress_bars()


def build_splits(
    rows: Mapping[str, Sequence[Row]], to_example: Callable[[Row], dspy.Example]
) -> tuple[dict[str, Split], tuple[str, ...]]:
    """Turn raw rows into splits, held-out kept apart from the others.

    A row of train or validation that is in held-out too is taken out of train
    or validation: held-out never changes. Rows that train and validation
    share, and rows repeated within a split, stay. Each case is one note,
    logged as a warning.

    Args:
        rows: Raw rows of ``"train"``, ``"validation"`` and ``"heldout"``.
        to_example: Makes the example of a raw row.

    Returns:
        The splits by name, and the notes.
    """
    hashed = {name: [(row_hash(row), row) for row in rows[name]] for name in SPLITS}
    held = {item for item, _ in hashed["heldout"]}
    notes: list[str] = []
    for name in ("train", "validation"):
        kept = [pair for pair in hashed[name] if pair[0] not in held]
        removed = len(hashed[name]) - len(kept)
        if removed:
            notes.append(f"{removed} rows of {name} are in heldout too and were taken out of {name}")
        hashed[name] = kept
    shared = {item for item, _ in hashed["train"]} & {item for item, _ in hashed["validation"]}
    if shared:
        notes.append(f"{len(shared)} distinct rows are in both train and validation and were kept in both")
    for name in SPLITS:
        repeated = sum(count - 1 for count in Counter(item for item, _ in hashed[name]).values())
        if repeated:
            notes.append(f"{repeated} rows of {name} repeat an earlier row of it and were kept")
    for note in notes:
        _logger.warning("%s", note)
    splits = {
        name: Split(name, tuple(to_example(row) for _, row in pairs), tuple(item for item, _ in pairs))
        for name, pairs in hashed.items()
    }
    return splits, tuple(notes)


def check_pins(benchmark: str, source: str, splits: Mapping[str, Split], pin: Mapping[str, str] | None) -> None:
    """Require the splits that were pinned.

    Args:
        benchmark: The benchmark's name.
        source: Where the rows came from.
        splits: The splits as they will be used.
        pin: Split name to digest; splits without a pin are free.

    Raises:
        DataSourceError: A split's digest is not the pinned one, or the pin names no split.
    """
    for name, wanted in (pin or {}).items():
        if name not in splits:
            raise DataSourceError(
                benchmark, source, f"pin names the split {name!r}", f"Splits are {', '.join(sorted(splits))}."
            )
        found = splits[name].digest
        if found != wanted:
            reason = f"the rows of {name} have digest {found}, but {wanted} is pinned"
            raise DataSourceError(benchmark, source, reason, "Use the pinned rows, or pin these if they are meant.")
