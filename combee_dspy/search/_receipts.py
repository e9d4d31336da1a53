"""Held-out receipts of runs without a ``log_dir``: in one file of the user's, which outlives their journals.

It holds hashes, times and scores: no text of an example, prompt or program, no name of a model, user or host.
"""

from __future__ import annotations

import logging
import os
import platform
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import dspy
import orjson

from combee_dspy.evaluation import HeldoutIdentity, Receipt, check_unmoved
from combee_dspy.exceptions import ArgumentValueError, HeldoutMovedError, NotPlainFileError
from combee_dspy.files import check_database
from combee_dspy.hashing import canonical_json, digest_of
from combee_dspy.search._candidates import Splits

__all__ = ["Receipts"]

logger = logging.getLogger("combee_dspy")

_TABLE = "CREATE TABLE IF NOT EXISTS receipt(study TEXT, journal TEXT, versions TEXT, data TEXT)"
_PATIENCE = 10.0  # seconds for another process that writes, which takes milliseconds
# A metric's hash is that of its compiled code, so it means the same metric with the same two only.
_VERSIONS = f"dspy {dspy.__version__}, python {'.'.join(platform.python_version_tuple()[:2])}"


class Receipts:
    """The receipts of one study, kept in ``receipts.sqlite``; several processes may use it at once.

    Without a ``log_dir`` a study is all runs of one user whose programs have the same predictors with the same fields,
    whatever their instructions, and learn from the same training rows, in whatever order.

    The file lies in ``$COMBEE_RECEIPTS``, else in ``combee_dspy`` in the user's data directory (``$XDG_DATA_HOME`` or
    ``~/.local/share``); ``COMBEE_RECEIPTS=off`` keeps none. A file that cannot be used is warned of and left alone.

    Args:
        student: The program.
        splits: The data.
        journal: Tells this run's journal, whose own receipts it reads itself, from all others.
    """

    def __init__(self, student: dspy.Module, splits: Splits, journal: str) -> None:
        shape = [
            [name, sorted(one.signature.input_fields), sorted(one.signature.output_fields)]
            for name, one in student.named_predictors()
        ]
        self._study = digest_of([canonical_json(shape), *sorted({row.hash for row in splits.train})])
        self._journal = journal
        self._on = os.environ.get("COMBEE_RECEIPTS", "").lower() != "off"

    def earlier(self, identity: HeldoutIdentity) -> list[Receipt]:
        """Return the receipts of the study's runs in other journals, oldest first."""
        return self._done(identity, None)

    def keep(self, receipt: Receipt) -> None:
        """Keep a receipt, after it was held against what others have kept meanwhile where it begins a reading.

        Raises:
            HeldoutMovedError: Another process has read another held-out set since this one was pinned.
        """
        self._done(receipt.heldout, replace(receipt, models={}, warnings=()))

    def _done(self, identity: HeldoutIdentity, receipt: Receipt | None) -> list[Receipt]:
        if not self._on:
            return []
        folder: Path | str = "the user's data directory"
        try:
            folder = _folder()
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = folder / "receipts.sqlite"
            check_database(file)
            with closing(sqlite3.connect(file, timeout=_PATIENCE, isolation_level=None)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(_TABLE)
                known = self._known(connection, identity)
                if receipt is not None:
                    self._insert(connection, receipt, known)
                connection.execute("COMMIT")
            return known
        except HeldoutMovedError:
            raise
        # A home that cannot be found is a RuntimeError.
        except (OSError, RuntimeError, sqlite3.Error, ArgumentValueError, NotPlainFileError) as error:
            self._on = False
            logger.warning(
                "Held-out receipts cannot be kept in %s (%s), so a held-out set that moves is not refused. Give a "
                "log_dir, or set COMBEE_RECEIPTS to a folder that can be written to, or to off.", folder, error
            )  # fmt: skip
            return []

    def _known(self, connection: sqlite3.Connection, identity: HeldoutIdentity) -> list[Receipt]:
        sql = "SELECT versions, data FROM receipt WHERE study = ? AND journal <> ? ORDER BY rowid"
        found = []
        for versions, data in connection.execute(sql, (self._study, self._journal)):
            receipt = Receipt.from_json(data)
            if versions != _VERSIONS:
                receipt = replace(receipt, heldout=replace(receipt.heldout, metric=identity.metric))
            found.append(receipt)
        return found

    def _insert(self, connection: sqlite3.Connection, receipt: Receipt, known: list[Receipt]) -> None:
        if receipt.stage == "begun":
            check_unmoved(known, receipt.heldout)
        if receipt.stage == "pinned" and any(one.heldout == receipt.heldout for one in known):
            return  # it would say nothing new
        row = (self._study, self._journal, _VERSIONS, orjson.dumps(receipt.to_dict()).decode())
        connection.execute("INSERT INTO receipt VALUES (?, ?, ?, ?)", row)


def _folder() -> Path:
    if chosen := os.environ.get("COMBEE_RECEIPTS"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "combee_dspy"
