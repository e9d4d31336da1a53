"""From what a user names (folder, file, address, hub id) to raw rows, in the layouts that are in use."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal, get_args

from combee_dspy.benchmarks._source import Row, fetch, is_hub_id, is_url, read_hub, read_json, stream_json
from combee_dspy.exceptions import ArgumentValueError, DataSourceError

__all__ = ["FILES", "Known", "Layout", "Place", "locate", "read_whole", "stream"]

Layout = Literal["splits", "single", "finlora", "archive", "hub"]
"""How rows lie at a source.

``splits``: ``train.jsonl``, ``validation.jsonl`` and ``test.jsonl`` in one folder.
``single``: one file. ``finlora``: FinLoRA's ``data`` folder, with ``train/`` and
``test/``. ``archive``: a zip file that holds ``train.jsonl`` and its sisters.
``hub``: a data set on the Hugging Face hub with these three splits.
"""

FILES: Mapping[str, str] = {"train": "train", "validation": "validation", "heldout": "test"}
"""Our splits, and what sources call them."""

_COMMIT = re.compile(r"[0-9a-f]{40}")
_MOST_UNPACKED = 16 * 2**30


@dataclass(frozen=True, slots=True)
class Known:
    """What a benchmark knows of its sources.

    Attributes:
        benchmark: Its name, for errors.
        how: How to name a source, for errors.
        finlora: Our split to the file's place under FinLoRA's ``data``.
        archive: Name of the zip file that a data set's repository holds.
        pinned: Hub id of a data set whose rows lie in ``archive``, to its pinned commit.
    """

    benchmark: str
    how: str
    finlora: Mapping[str, str]
    archive: str | None = None
    pinned: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """A source that was understood.

    Attributes:
        layout: How its rows lie.
        said: What a log calls it.
        files: Our split to the file that holds it: the splits that the source has.
            One file that is still to be cut stands under ``"all"``. Empty for an archive.
        revision: The commit of a hub id.
        archive: The archive's path or address.
    """

    layout: Layout
    said: str
    files: Mapping[str, str]
    revision: str | None = None
    archive: str | None = None


def locate(known: Known, path: str | Path, revision: str | None = None, layout: Layout | None = None) -> Place:
    """Return where a source's rows are. Reads none of them, and uses no network.

    Args:
        known: What the benchmark knows.
        path: A folder, a file, an HTTP address or a hub id.
        revision: The commit of a hub id.
        layout: How rows lie there; ``None`` looks at the folder or the address's ending.

    Raises:
        DataSourceError: A local source is not there, or holds nothing that is known.
        ArgumentValueError: ``layout`` is none, a hub id comes without a commit, or another source with one.
    """
    source = str(path)
    if layout is not None and layout not in get_args(Layout):
        raise ArgumentValueError("layout", layout, "is no layout", f"Use one of {', '.join(get_args(Layout))}.")
    if is_url(source) or Path(source).exists():
        if revision is not None:
            remedy = "A revision belongs to a hub id; leave it out, or pin the rows with pin=."
            raise ArgumentValueError("revision", revision, f"cannot be used with {source}", remedy)
        return _files(known, source, layout or (_by_name(source) if is_url(source) else _by_look(known, source)))
    if source.endswith((".jsonl", ".json", ".zip")) or not is_hub_id(source):
        raise DataSourceError(known.benchmark, source, "there is no such file or directory", known.how)
    return _hub(known, source, revision)


def _by_name(address: str) -> Layout:
    if address.endswith(".zip"):
        return "archive"
    return "single" if address.endswith((".jsonl", ".json")) else "splits"


def _by_look(known: Known, source: str) -> Layout:
    path = Path(source)
    if path.is_file():
        return _by_name(source)
    if (path / "train.jsonl").exists():
        return "splits"
    if _finlora_base(known, path) is not None:
        return "finlora"
    if known.archive is not None and (path / known.archive).is_file():
        return "archive"
    # Nothing known: the reader will name the first file that is missing.
    return "splits"


def _finlora_base(known: Known, path: Path) -> Path | None:
    first = known.finlora["train"]
    return next((base for base in (path, path / "data") if (base / first).is_file()), None)


def _files(known: Known, source: str, layout: Layout) -> Place:
    base = source.rstrip("/")
    if layout == "single":
        return Place(layout, source, {"all": source})
    if layout == "finlora":
        found = None if is_url(source) else _finlora_base(known, Path(source))
        root = base if found is None else str(found)
        return Place(layout, f"FinLoRA at {source}", {split: f"{root}/{file}" for split, file in known.finlora.items()})
    if layout == "archive":
        archive = source
        if not source.endswith(".zip") and known.archive is not None:
            archive = f"{base}/{known.archive}"
        return Place(layout, archive, {}, archive=archive)
    if layout == "hub":
        raise ArgumentValueError("layout", layout, f"does not fit {source}", "It is for hub ids alone.")
    return Place(layout, source, {split: f"{base}/{file}.jsonl" for split, file in FILES.items()})


def _look_into(known: Known, archive: str) -> dict[str, str]:
    """Find the splits' files in a local archive, where they may lie in a folder."""
    try:
        with zipfile.ZipFile(archive) as opened:
            members = [info for info in opened.infolist() if not info.is_dir()]
    except (OSError, zipfile.BadZipFile) as error:
        raise DataSourceError(known.benchmark, archive, f"it is no readable zip file: {error}", known.how) from error
    if sum(info.file_size for info in members) > _MOST_UNPACKED:
        raise DataSourceError(known.benchmark, archive, "it unpacks to more than 16 GiB", known.how)
    found: dict[str, str] = {}
    for split, stem in FILES.items():
        name = f"{stem}.jsonl"
        places = [info.filename for info in members if PurePosixPath(info.filename).name == name]
        if len(places) != 1 or ".." in PurePosixPath(places[0]).parts or places[0].startswith("/"):
            reason = f"it holds {len(places) or 'no'} usable file {name}"
            raise DataSourceError(known.benchmark, archive, reason, known.how)
        found[split] = places[0]
    return found


def _hub(known: Known, source: str, revision: str | None) -> Place:
    commit = revision or known.pinned.get(source)
    if commit is None or not _COMMIT.fullmatch(commit):
        remedy = "Give the 40-digit commit of the data set: a branch moves, and results with it."
        raise ArgumentValueError("revision", revision, f"does not pin the hub id {source}", remedy)
    said = f"hub {source}@{commit}"
    if source in known.pinned and known.archive is not None:
        # A loading script, which datasets no longer runs, and the rows beside it in a zip file.
        address = f"hf://datasets/{source}@{commit}/{known.archive}"
        return Place("archive", f"{said}/{known.archive}", {}, commit, address)
    return Place("hub", said, dict.fromkeys(FILES, source), commit)


def read_whole(known: Known, place: Place) -> dict[str, list[Row]]:
    """Read all rows of a source that is no archive, by the splits that it has.

    Raises:
        DataSourceError: They cannot be read.
    """
    if place.layout == "hub" and place.revision is not None:
        return {
            split: read_hub(known.benchmark, source, place.revision, FILES[split])
            for split, source in place.files.items()
        }
    return {split: read_json(known.benchmark, file) for split, file in place.files.items()}


def stream(known: Known, place: Place) -> dict[str, Iterator[Row]]:
    """Return the rows of an archive's splits, each read as it is needed.

    An archive that is not on this machine is fetched first, into the cache of ``datasets``.

    Raises:
        DataSourceError: They cannot be read.
    """
    archive = place.archive or place.said
    here = fetch(known.benchmark, archive) if "://" in archive else archive
    return {
        split: stream_json(known.benchmark, f"zip://{name}::{here}") for split, name in _look_into(known, here).items()
    }
