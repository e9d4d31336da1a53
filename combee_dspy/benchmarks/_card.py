"""What a benchmark says of itself before anything is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Availability", "Card", "Source"]


@dataclass(frozen=True, slots=True)
class Source:
    """One place where a benchmark's rows can come from.

    Attributes:
        kind: ``"bundled"`` rows are part of a package, ``"generated"`` ones are
            made by it; ``"path"`` is a file or folder that the user has;
            ``"url"`` and ``"hub"`` (Hugging Face) are read over the network.
        address: The path's form, the address, or the hub id.
        revision: The commit that a hub id or address is pinned to, 40 hex
            digits; ``None`` where the user names it or none applies.
        note: What a reader must know, such as the layout.
    """

    kind: Literal["bundled", "generated", "path", "url", "hub"]
    address: str
    revision: str | None = None
    note: str = ""

    def __str__(self) -> str:
        pinned = f"@{self.revision[:12]}" if self.revision else ""
        note = f" ({self.note})" if self.note else ""
        return f"{self.kind} {self.address}{pinned}{note}"


@dataclass(frozen=True, slots=True)
class Card:
    """A benchmark's identity: known without reading a row.

    Attributes:
        task: The task in one sentence.
        licence: Licence of the rows.
        citation: What to cite with a result.
        size: Rows a split, in words.
        sources: Where the rows can come from, the usual one first.
        scoring: The headline's rule in one sentence.
    """

    task: str
    licence: str
    citation: str
    size: str
    sources: tuple[Source, ...]
    scoring: str


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a benchmark's rows can be read on this machine without a network.

    Attributes:
        here: True or False; ``None`` where it cannot be told.
        where: The place that was looked at, or what is missing.
    """

    here: bool | None
    where: str
