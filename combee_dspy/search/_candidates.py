"""What a search moves around: candidates, rows and splits, known by their content; and what it is given."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import dspy

from combee_dspy.evaluation import Heldout

__all__ = ["Candidate", "Compilation", "Row", "Split", "Splits"]

Split = Literal["train", "validation", "heldout"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program's texts by component.

    Attributes:
        texts: Not to be changed.
        id: Content hash, 16 hex digits: the same for the same texts.
    """

    texts: Mapping[str, str]
    id: str = field(init=False, compare=True)

    def __post_init__(self) -> None:
        canonical = json.dumps(dict(self.texts), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        digest = hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        object.__setattr__(self, "id", digest)

    def __hash__(self) -> int:
        return hash(self.id)

    def edited(self, texts: Mapping[str, str]) -> Candidate:
        """Return this candidate with some components replaced."""
        return Candidate({**self.texts, **texts})


@dataclass(frozen=True, slots=True)
class Row:
    """One example of a split.

    Attributes:
        split: Which split.
        index: Its position there, which is gepa's id of it.
        example: The example. Not to be changed.
        hash: SHA-256 of its content.
    """

    split: Split
    index: int
    example: dspy.Example
    hash: str


@dataclass(frozen=True, slots=True)
class Splits:
    """The data of a run, checked and pinned by row hashes.

    Attributes:
        train: What is learned from.
        validation: What candidates are compared on; the train rows where the user gave none.
        heldout: What is read once at the end; may be empty.
        digests: SHA-256 per split, over its row hashes in their order.
        warnings: What makes the run unfit for claims, in sentences.
    """

    train: tuple[Row, ...]
    validation: tuple[Row, ...]
    heldout: tuple[Row, ...]
    digests: Mapping[str, str]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Compilation:
    """What one compilation works on.

    Attributes:
        settings: The teleprompter.
        student: The program.
        splits: Its data, checked.
        heldout: The held-out set as the user gave it; ``None`` for none.
        name: The run's name in its journal.
        number: Tells the search apart from others that share the slots.
    """

    settings: Any
    student: dspy.Module
    splits: Splits
    heldout: Heldout | None
    name: str = "main"
    number: int = 0
