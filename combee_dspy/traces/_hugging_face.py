"""Traces in a data set that ``datasets`` can read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from combee_dspy.exceptions import ArgumentValueError, TraceSourceError, how_to_install
from combee_dspy.strategies import parameters
from combee_dspy.traces._base import TraceSource
from combee_dspy.traces._fields import FieldPaths, RecordReader, check_paths
from combee_dspy.traces._records import Trace

if TYPE_CHECKING:
    import datasets


@parameters
class HuggingFace(TraceSource):
    """A split of any data set of the Hugging Face hub, or of a local folder in its layout.

    No code of the data set runs. Rows are streamed: nothing but the part at hand is read.

    Args:
        path: The hub id ``owner/name``, a local folder, or a builder such as ``"json"``.
        split: Its split.
        subset: The configuration of a data set that has several; empty for none.
        revision: The commit of a hub data set, so that the same rows come again; empty for the
            newest.
        files: Files for a builder; empty where ``path`` says it all.
        fields: Where a row holds what (see :class:`JsonLines`).
    """

    name: ClassVar[str] = "hugging-face"

    path: str
    split: str = "train"
    subset: str = ""
    revision: str = ""
    files: tuple[str, ...] = ()
    fields: FieldPaths = Field(default_factory=dict)

    def __post_init__(self) -> None:
        check_paths(self.fields)

    def read(self, after: str = "") -> Iterator[Trace]:
        """Yield a trace a row; a cursor is the number of rows up to it."""
        if not (after or "0").isdecimal():
            remedy = "Give the cursor of a trace of this data set."
            raise ArgumentValueError("after", after, "is no number of rows", remedy)
        first = int(after or 0)
        reader = RecordReader(f"{self.path}, {self.split}", self.fields, whole=not after)
        try:
            for number, row in enumerate(self._rows().skip(first), start=first + 1):
                yield reader.trace(row, f"row {number}", str(number))
        except (OSError, ValueError, LookupError) as error:
            raise self._error(f"{type(error).__name__}: {error}") from error
        reader.finish()

    def _rows(self) -> datasets.IterableDataset:
        try:
            import datasets
        except ImportError as error:
            remedy = how_to_install("combee-dspy[benchmarks]")
            raise self._error(f"the package datasets is not installed. {remedy}") from error
        rows = datasets.load_dataset(
            self.path,
            self.subset or None,
            data_files=list(self.files) or None,
            split=self.split,
            revision=self.revision or None,
            streaming=True,
        )
        # Labels are stored as numbers; their names are what readers understand.
        classes = {
            column: kind
            for column, kind in (rows.features or {}).items()
            if isinstance(kind, datasets.ClassLabel)
        }
        if not classes:
            return rows

        def label(row: dict[str, int | None]) -> dict[str, str | None]:
            numbers = {column: row[column] for column in classes}
            return {
                column: None if number is None or number < 0 else classes[column].int2str(number)
                for column, number in numbers.items()
            }

        return rows.map(label, features=None)

    def _error(self, problem: str) -> TraceSourceError:
        remedy = "Install combee-dspy[benchmarks]; give a data set's id or folder, and its split."
        return TraceSourceError(self.path, problem, remedy)
