"""The held-out contract: pinned before the first rollout and never moved."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from combee_dspy.evaluation._book import BookEntries, ReceiptBook
from combee_dspy.evaluation._margin import (
    HeldoutTerms,
    check_target,
    detectable_margin,
    discordance_bound,
    effective_size,
)
from combee_dspy.evaluation._receipts import Receipt
from combee_dspy.evaluation._study import SplitRows, check_study, content_of, looks_at, note_run
from combee_dspy.exceptions import HeldoutMovedError, HeldoutReadError, SplitOverlapError
from combee_dspy.hashing import canonical_json, digest_of, row_hash

__all__ = ["HeldoutContract", "now"]


class HeldoutContract:
    """A held-out set that is fixed: made by :meth:`pin`, read by :func:`~combee_dspy.evaluation.final_evaluate`.

    Rows are held by reference and hashed again before and after the reading, so
    a row that is edited in place is found; no attribute can be set. The order of rows does not count: a
    mean does not depend on it. Which fields are inputs counts: a label that
    becomes an input is another task. Thread-safe.

    Attributes:
        rows: The rows.
        digest: SHA-256 of the row hashes in their order, as events and reports show it.
        content: SHA-256 of rows and input fields in any order: the set's identity.
        scorer: The pinned metric's id.
        margin: Smallest paired difference that it can tell from none, in score units.
        basis: Where the variance behind ``margin`` comes from, in one sentence.
        looks: Earlier readings that the book knows of; ``None`` without a book.
        terms: As given.
        warnings: What makes its figures weaker than they look, in sentences.
    """

    def __init__(self, rows: tuple[Any, ...], splits: SplitRows, scorer: str, terms: HeldoutTerms) -> None:
        """Hold the rows. Use :meth:`pin`, which checks them too."""
        self.rows = rows
        self.splits = splits
        self.digest = digest_of(splits.heldout)
        self.content = splits.heldout_content
        self.scorer = scorer
        self.terms = terms
        self.book: ReceiptBook | None = None
        self.looks: int | None = None
        self.margin = math.inf
        self.basis = ""
        self.warnings: tuple[str, ...] = ()
        self._lock = threading.Lock()
        self._state = "pinned"
        self._attempted: tuple[str, ...] = ()
        self._sealed = False

    def __setattr__(self, name: str, value: object) -> None:
        if getattr(self, "_sealed", False) and not name.startswith("_"):
            remedy = "Pin another contract, in another study."
            raise HeldoutMovedError(f"is pinned: its {name} cannot be set", value, remedy)
        super().__setattr__(name, value)

    @classmethod
    def pin(
        cls,
        rows: Iterable[Any],
        *,
        scorer: str,
        train: Iterable[str],
        validation: Iterable[str],
        digest: str | None = None,
        terms: HeldoutTerms | None = None,
        book: tuple[ReceiptBook | None, str] = (None, ""),
    ) -> HeldoutContract:
        """Fix a held-out set before the first rollout.

        Args:
            rows: Examples; read once, so a generator will do.
            scorer: The metric's id: a hash of its code, parameters and state.
            train: Row hashes of the training set.
            validation: Row hashes of the validation set.
            digest: SHA-256 of the row hashes in order, where it has been announced already.
            terms: What is to be claimed.
            book: The study's book, if it keeps one, and the run's name.

        Raises:
            ArgumentValueError: There are no rows, or the target is finer than what they can tell.
            SplitOverlapError: A row is in another split too.
            HeldoutMovedError: The rows are not those of ``digest``, or the study has spoilt them.
            ReceiptError: The book is not as it was written.
        """
        terms = terms or HeldoutTerms()
        held = tuple(rows)
        hashes = tuple(row_hash(row) for row in held)
        splits = SplitRows(tuple(train), tuple(validation), hashes, _content(held, hashes))
        size = effective_size(hashes)
        for name, other in (("trainset", splits.train), ("valset", splits.validation)):
            shared = len(set(hashes) & set(other))
            if shared:
                raise SplitOverlapError("heldout", name, shared)
        contract = cls(held, splits, scorer, terms)
        if digest is not None and digest != contract.digest:
            remedy = "Pin the rows that were announced."
            raise HeldoutMovedError("is not what was announced", {"digest": contract.digest[:16]}, remedy)
        if len(set(hashes)) < len(hashes):
            copies = len(hashes) - len(set(hashes))
            said = f"{copies} held-out rows are copies of others: the set tells as much as {size:.0f} rows would"
            contract.warnings = (f"{said}, and the interval is too narrow.",)
        contract._take(book[0], book[1], size)
        contract._sealed = True
        return contract

    def _take(self, book: ReceiptBook | None, run: str, size: float) -> None:
        self.book = book
        if book is None:
            self._measure((), size)
            return
        with book.opened() as entries:
            check_study(entries, self.splits, self.scorer)
            self.looks = looks_at(entries, self.content)
            self._measure(self._receipts(entries), size)
            note_run(entries, self.splits, self.scorer, run, now())

    def _receipts(self, entries: BookEntries) -> tuple[Receipt, ...]:
        return tuple(receipt for receipt in entries.receipts() if receipt.split == self.content)

    def _measure(self, receipts: Sequence[Receipt], size: float) -> None:
        terms = self.terms
        measured = [found for one in receipts if (found := one.discordance(terms.span)) is not None]
        if terms.discordance is not None:
            share, self.basis = terms.discordance, f"discordance {terms.discordance:.4g}, as given"
        elif measured:
            # The next pair of programs may differ on more rows than the last: the upper end, of the worst.
            share = discordance_bound(max(measured), size)
            self.basis = (
                f"discordance {max(measured):.4g} measured by {len(measured)} earlier receipts of this set, "
                f"taken at the upper end of its interval, {share:.4g}"
            )
        else:
            share = 1.0
            self.basis = (
                "worst case: nothing is measured yet, so every row may go from one end of the scale to the other"
            )
        on_one = detectable_margin(size, discordance=share, power=terms.power, confidence=terms.confidence)
        self.margin = on_one * terms.span
        check_target(terms.target, self.margin, size=size, basis=self.basis)

    def summary(self) -> str:
        """Return what to print before the first rollout, in one or two sentences."""
        terms = self.terms
        looks = "earlier looks: unknown" if self.looks is None else f"earlier looks: {self.looks}"
        told = (
            f"tells a paired difference of {self.margin:.4g} or more from none"
            if self.margin <= terms.span
            else f"can tell no difference at all: it would take one of {self.margin:.4g}"
        )
        return (
            f"Held-out: {len(self.rows)} rows, sha256 {self.digest[:16]}, {looks}. It {told} "
            f"({terms.power:.0%} power, {terms.confidence:.0%} confidence; {self.basis})."
        )

    def verify(self) -> None:
        """Check that the rows are still what was pinned.

        Raises:
            HeldoutMovedError: A row has been edited in place, or the rows have been replaced.
        """
        hashes = tuple(row_hash(row) for row in self.rows)
        if hashes == self.splits.heldout and _content(self.rows, hashes) == self.content:
            return
        pinned = self.splits.heldout
        changed = sum(a != b for a, b in zip(hashes, pinned, strict=False)) + abs(len(hashes) - len(pinned))
        remedy = "Give the run rows of its own, and let neither program nor metric write to an example."
        raise HeldoutMovedError("has changed since it was pinned", {"changed rows": changed or "inputs"}, remedy)

    def begin(self, attempt: tuple[str, ...]) -> None:
        """Take the one right to read. For :func:`~combee_dspy.evaluation.final_evaluate`.

        Args:
            attempt: What would be read: program hashes and scorer.

        Raises:
            HeldoutReadError: It has been read, is being read, or a reading of other programs has failed.
        """
        with self._lock:
            if self._state == "failed" and attempt != self._attempted:
                raise HeldoutReadError("a reading that failed may be tried again with the same programs only")
            if self._state not in ("pinned", "failed"):
                raise HeldoutReadError(f"this contract is {self._state}")
            self._state, self._attempted = "being read", attempt

    def end(self, state: str) -> None:
        """Note how the reading ended. For :func:`final_evaluate`."""
        with self._lock:
            self._state = state


def _content(rows: Sequence[Any], hashes: Sequence[str]) -> str:
    """Return the identity of a set: its rows and which of their fields a program gets to see."""
    return content_of([f"{digest} {canonical_json(_inputs(row))}" for row, digest in zip(rows, hashes, strict=True)])


def _inputs(row: Any) -> list[str]:
    inputs = getattr(row, "inputs", None)
    return sorted(str(name) for name in inputs()) if callable(inputs) else []


def now() -> str:
    """Return the time, ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
