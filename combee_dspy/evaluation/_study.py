"""What one study may not do with its held-out set, over all its runs: pure checks on a book's lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from combee_dspy.evaluation._book import BookEntries, ReceiptBook
from combee_dspy.exceptions import HeldoutMovedError
from combee_dspy.hashing import digest_of

__all__ = ["SplitRows", "check_study", "content_of", "looks_at", "note_run", "note_unheld_run"]

_NEW_STUDY = "For another study, with programs that have learned nothing from this one, give another receipts file."


@dataclass(frozen=True, slots=True)
class SplitRows:
    """The three splits of a run, by row hashes.

    Attributes:
        train: Of the training set.
        validation: Of the validation set.
        heldout: Of the held-out set; empty where there is none.
        heldout_content: SHA-256 of the held-out set's content, input fields included.
    """

    train: tuple[str, ...] = ()
    validation: tuple[str, ...] = ()
    heldout: tuple[str, ...] = ()
    heldout_content: str = field(default="")


def content_of(hashes: Sequence[str]) -> str:
    """Return the SHA-256 of a split's rows in any order: a mean does not depend on it."""
    return digest_of(sorted(hashes))


def looks_at(entries: BookEntries, content: str) -> int:
    """Return how often a split's content has been read, readings that were begun only included."""
    return len(entries.of("begun", content=content))


def check_study(entries: BookEntries, rows: SplitRows, scorer: str) -> None:
    """Refuse splits that earlier runs of the study have spoilt.

    Args:
        entries: The study's lines.
        rows: This run's splits.
        scorer: What will score this run's held-out set.

    Raises:
        HeldoutMovedError: The held-out set has changed after it was read, rows that were read are
            learned from now, rows that were learned from are held out now, or another scorer
            would read what one has read.
    """
    for begun in entries.of("begun"):
        _check_not_moved(entries, begun, rows)
        _check_not_learned(entries, begun, rows)
        if rows.heldout and begun["content"] == rows.heldout_content and begun["scorer"] != scorer:
            raise HeldoutMovedError(
                "has changed after the held-out set was read: choosing the scorer by its scores is a leak, not a tune",
                {"read by": begun["scorer"], "now": scorer, "read at": begun["time"]},
                f"Score as before. {_NEW_STUDY}",
                argument="metric",
            )
    for pinned in entries.of("pinned") if rows.heldout else ():
        for name in ("train", "validation"):
            shared = entries.rows(pinned[name]) & set(rows.heldout)
            if shared:
                raise HeldoutMovedError(
                    f"shares {len(shared)} rows with the {name} set of an earlier run of this study: "
                    "what was learned there may be in the program already",
                    {"shared": len(shared), "earlier run": pinned["run"], "at": pinned["time"]},
                    f"Hold out rows that no run has seen. {_NEW_STUDY}",
                )


def _check_not_moved(entries: BookEntries, begun: Mapping[str, str], rows: SplitRows) -> None:
    if not rows.heldout or begun["content"] == rows.heldout_content:
        return
    shared = entries.rows(begun["content"]) & set(rows.heldout)
    if begun["train"] != content_of(rows.train) and not shared:
        return
    raise HeldoutMovedError(
        "has changed after a run of this study read it: that is a leak, not a tune, "
        "since whoever saw the first figures chose the second set",
        {"read": begun["content"][:16], "now": rows.heldout_content[:16], "shared rows": len(shared)},
        f"Give the held-out set that was read at {begun['time']}; a new reading is counted as one more look. "
        + _NEW_STUDY,
    )


def _check_not_learned(entries: BookEntries, begun: Mapping[str, str], rows: SplitRows) -> None:
    read = entries.rows(begun["content"])
    for argument, hashes in (("trainset", rows.train), ("valset", rows.validation)):
        shared = read & set(hashes)
        if shared:
            raise HeldoutMovedError(
                f"holds {len(shared)} rows that this study has read as held-out: what they showed would now be learned",
                {"shared": len(shared), "read at": begun["time"]},
                f"Take them out. {_NEW_STUDY}",
                argument=argument,
            )


def note_run(entries: BookEntries, rows: SplitRows, scorer: str, run: str, time: str) -> None:
    """Write down which rows a run learns from, compares on and holds out, before its first rollout."""
    contents = {"train": content_of(rows.train), "validation": content_of(rows.validation)}
    entries.note_rows(contents["train"], rows.train)
    entries.note_rows(contents["validation"], rows.validation)
    if rows.heldout:
        entries.note_rows(rows.heldout_content, rows.heldout)
    last = entries.of("pinned")[-1:]
    values = {**contents, "content": rows.heldout_content, "scorer": scorer, "run": run}
    if not last or any(last[0].get(name) != value for name, value in values.items()):
        entries.append("pinned", **values, time=time)


def note_unheld_run(book: ReceiptBook | None, rows: SplitRows, *, run: str = "", time: str = "") -> None:
    """Check and write down a run that holds nothing out, so that a later one cannot hold out what it learned from.

    Args:
        book: The study's book, or ``None`` for none.
        rows: The run's splits; ``heldout`` is empty.
        run: The run's name.
        time: When, ISO 8601.

    Raises:
        HeldoutMovedError: The run would learn from rows that the study has read as held-out.
        ReceiptError: The book is not as it was written.
    """
    if book is None:
        return
    with book.opened() as entries:
        check_study(entries, rows, "")
        note_run(entries, rows, "", run, time)
