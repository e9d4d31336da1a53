"""What is to be written to MLflow: frozen values. Doing one twice is the same as doing it once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from combee_dspy.tracking._rows import Cells, Row

if TYPE_CHECKING:
    from combee_dspy.tracking.report import ReportData

__all__ = ["Batch", "Datasets", "Name", "Part", "Register", "Report", "Status", "Text", "Traces", "Write"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Metrics, parameters and tags.

    Attributes:
        points: Name, value, milliseconds since 1970 and step of each metric. The time is taken from the
            journal, so that a metric written twice is one point.
        params: Value by name; none of them had a value before.
        tags: Value by name.
    """

    points: tuple[tuple[str, float, int, int], ...] = ()
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Text:
    """A text artifact. One that is there already is overwritten."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Part:
    """Rollouts as one Parquet artifact that is named by their serials."""

    path: str
    rows: tuple[Cells, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """The report, as ``report.html``."""

    data: ReportData


@dataclass(frozen=True, slots=True)
class Name:
    """The run's name."""

    name: str


@dataclass(frozen=True, slots=True)
class Status:
    """The run's status, as MLflow names it."""

    status: str
    at: int


@dataclass(frozen=True, slots=True)
class Register:
    """A version of a prompt.

    Attributes:
        component: The component.
        text: Its text.
        tags: Of the version; with the run's id, ``combee.candidate_id`` tells whether it is there already.
    """

    component: str
    text: str
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Datasets:
    """The splits: rows and SHA-256 by name."""

    sizes: Mapping[str, int]
    digests: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Traces:
    """Rollouts as traces: each with why it is shown, and when it ended, in seconds since 1970."""

    rollouts: tuple[tuple[Row, str, float], ...]


Write = Batch | Text | Part | Report | Name | Status | Register | Datasets | Traces


def summary_of(write: Write) -> str:
    """Return what a write is, for a log line."""
    place: Any = getattr(write, "path", getattr(write, "component", ""))
    return f"{type(write).__name__} {place}".strip()
