"""From what a user names (folder, file, address, hub data set) to raw rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from combee_dspy.benchmarks._base import Availability, Row
from combee_dspy.benchmarks._network import within_reach
from combee_dspy.exceptions import ArgumentValueError, DataSourceError, how_to_install
from combee_dspy.files import check_plain

_FILES = (".jsonl", ".json")


@dataclass(frozen=True, slots=True)
class Place:
    """A source that was understood.

    Attributes:
        layout: How its rows lie. ``"splits"``: ``train.jsonl`` and its sisters in one folder;
            ``"single"``: one file; ``"published"``: the files of the published benchmark, by their
            names; ``"hub"``: a data set with the three splits.
        name: What a log calls it.
        files: Split to its file, or to the hub id; ``"all"`` to one that is still to be cut.
        revision: The commit of a hub data set.
    """

    layout: Literal["splits", "single", "published", "hub"]
    name: str
    files: Mapping[str, str]
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class RowSource:
    """Where a benchmark's rows are, and how they are read.

    Attributes:
        benchmark: Its name, for errors.
        path: What the user named: a folder or HTTP address with one JSON Lines file a split, one
            ``.jsonl`` or ``.json`` file or its address, or a hub id ``owner/name``.
        revision: The 40-digit commit to read of a hub data set.
        remedy: How to name a source, for errors.
        names: Our splits to what the source calls them. Of a hub data set these are any expressions
            that ``datasets.load_dataset`` takes as ``split``, such as ``"train[:80%]"``.
        subset: The configuration of a hub data set that has several.
        published: Split to the name of its file as the benchmark was published, and the rows that
            it holds.
        hub: Whether a local folder is a data set in the hub's layout, which ``datasets`` reads.
    """

    benchmark: str
    path: str | Path | None = None
    revision: str | None = None
    remedy: str = "Give path= a folder, a file, an address, or a hub id with revision=."
    names: Mapping[str, str] = field(
        default_factory=lambda: {"train": "train", "validation": "validation", "heldout": "test"}
    )
    subset: str | None = None
    published: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    hub: bool = False

    def error(self, reason: str, where: str = "", remedy: str = "") -> DataSourceError:
        """Return the error that names this source."""
        return DataSourceError(
            self.benchmark, where or str(self.path), reason, remedy or self.remedy
        )

    def locate(self) -> Place:
        """Say where the rows are, without reading them or using a network.

        Raises:
            DataSourceError: No path is given, or a local source is not there.
            ArgumentValueError: A hub id comes without a commit, or another source with one.
        """
        if self.path is None:
            raise self.error("no path is given", "no path")
        source = str(self.path)
        if not _is_url(source) and not Path(source).exists():
            if source.endswith(_FILES) or not re.fullmatch(r"[\w.-]+/[\w.-]+", source):
                raise self.error("there is no such file or directory")
            return self._hub(source)
        if self.revision is not None:
            remedy = "A revision belongs to a hub id; leave it out, or pin the rows with pin=."
            raise ArgumentValueError(
                "revision", self.revision, f"cannot be used with {source}", remedy
            )
        if self.hub:
            return Place("hub", source, dict.fromkeys(self.names, source))
        if source.endswith(_FILES):
            return Place("single", source, {"all": source})
        return self._folder(source.rstrip("/"))

    def _folder(self, folder: str) -> Place:
        # Where nothing is known, reading will name the first file that is missing.
        splits = Place(
            "splits",
            folder,
            {split: f"{folder}/{name}.jsonl" for split, name in self.names.items()},
        )
        if _is_url(folder) or Path(splits.files["train"]).exists():
            return splits
        named = {split: f"{folder}/{name}" for split, (name, _) in self.published.items()}
        if named and all(Path(file).is_file() for file in named.values()):
            return Place("published", folder, named)
        return splits

    def _hub(self, source: str) -> Place:
        commit = self.revision
        if commit is None or not re.fullmatch(r"[0-9a-f]{40}", commit):
            remedy = (
                "Give the 40-digit commit of the data set: a branch moves, and results with it."
            )
            raise ArgumentValueError(
                "revision", self.revision, f"does not pin the hub id {source}", remedy
            )
        return Place("hub", f"hub {source}@{commit}", dict.fromkeys(self.names, source), commit)

    def availability(self) -> Availability:
        """Tell whether the rows are on this machine."""
        try:
            place = self.locate()
        except (DataSourceError, ArgumentValueError) as error:
            return Availability(False, str(error))
        if place.revision is not None or _is_url(str(self.path)):
            return Availability(None, f"{place.name}: read over the network, then cached")
        missing = [file for file in place.files.values() if not Path(file).exists()]
        return Availability(not missing, f"missing: {missing[0]}" if missing else place.name)

    def rows(self) -> dict[str, Iterator[Row]]:
        """Return the rows of each split that the source has, each row read as it is needed.

        One file that is still to be cut stands under ``"all"``.

        Raises:
            DataSourceError: They cannot be read; raised while reading too.
        """
        place = self.locate()
        if place.layout == "hub":
            remedy = "Check splits=, subset= and what each split holds on the data set's page."
            return {
                split: self._read(place.name, self._hub_rows(place, split), remedy)
                for split in place.files
            }
        remedy = "Give rows as JSON: one object a line, or a list of objects."
        return {
            split: self._read(file, self._file_rows(file), remedy)
            for split, file in place.files.items()
        }

    def _read(self, where: str, rows: Iterator[Row], remedy: str) -> Iterator[Row]:
        """Yield rows; ``remedy`` is for those that can be had and not be read."""
        try:
            yield from rows
        except DataSourceError:
            raise
        except Exception as error:
            # Readers and transports raise what they like: one error names the source.
            if not isinstance(error, ValueError):
                remedy = "Check that the source exists and can be reached."
            raise self.error(f"{type(error).__name__}: {error}", where, remedy) from error

    def _file_rows(self, file: str) -> Iterator[Row]:
        yield from _json_rows(Path(self._fetched(file)))

    def _hub_rows(self, place: Place, split: str) -> Iterator[Row]:
        datasets = self._datasets()
        more = {} if self.subset is None else {"name": self.subset}
        with within_reach() if place.revision is not None else nullcontext():
            loaded = datasets.load_dataset(
                place.files[split], revision=place.revision, split=self.names[split], **more
            )
        # The hub's own conversions hold the numbers of labels instead of their names.
        kinds = {
            name: getattr(kind, "feature", kind) for name, kind in (loaded.features or {}).items()
        }
        named = {
            name: kind.int2str
            for name, kind in kinds.items()
            if isinstance(kind, datasets.ClassLabel)
        }
        for row in loaded:
            yield {
                name: named[name](value) if name in named else value
                for name, value in dict(row).items()
            }

    def _fetched(self, file: str) -> str:
        """Return the local copy of a file, fetched into the cache of ``datasets`` where it has an
        address.
        """
        if "://" not in file:
            return file
        return str(self._datasets().DownloadManager().download(file))

    def _datasets(self) -> Any:
        try:
            import datasets
        except ImportError as error:
            remedy = f"{how_to_install('combee-dspy[benchmarks]')}."
            raise self.error("the package datasets is not installed", remedy=remedy) from error
        return datasets


def _is_url(source: str) -> bool:
    return source.startswith(("http://", "https://"))


def _json_rows(file: Path) -> Iterator[Row]:
    """Yield the objects of a JSON Lines file, or of a file that holds one list of objects."""
    check_plain(file.resolve())  # a pipe would be waited for
    with file.open(encoding="utf-8-sig") as lines:
        filled = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
        start, first = next(filled, (1, "[]"))
        if first.lstrip().startswith("["):
            # Line breaks stand for the blank lines before, so that an error names the file's line.
            rows = json.loads("\n" * (start - 1) + first + lines.read())
            for number, row in enumerate(rows, 1):
                yield _checked(row, f"row {number}")
            return
        for number, line in chain([(start, first)], filled):
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                problem = f"line {number}, column {error.colno}: {error.msg}"
                raise ValueError(problem) from error
            yield _checked(row, f"line {number}")


def _checked(row: object, where: str) -> Row:
    if not isinstance(row, dict):
        raise ValueError(f"{where} is no JSON object with named fields: {str(row)[:80]}")
    return row
