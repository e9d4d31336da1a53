"""Finds and leaves held-out receipts: in the run's journal and in the project's file.

The file holds hashes, times and scores: no text of an example, prompt or program, no name of a
model, user or host.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

import orjson

from combee_dspy.evaluation import Heldout, HeldoutIdentity, Receipt, check_unmoved
from combee_dspy.exceptions import ArgumentValueError, HeldoutMovedError, NotPlainFileError
from combee_dspy.files import append_plain, read_plain
from combee_dspy.hashing import digest_of
from combee_dspy.journal import Reader, RunHistory, RunLog

logger = logging.getLogger("combee_dspy")

_FILE = "combee-heldout.jsonl"


def journal_receipts(reader: Reader) -> list[tuple[int, Receipt]]:
    """Return the receipts in a journal, with the number of their run, oldest first."""
    return [(entry.run, entry.event) for entry in RunHistory(reader).entries(Receipt)]


class Receipts:
    """The receipts that concern one run; :class:`combee_dspy.evaluation.Heldout` says which.

    Several processes may append to the file at once.

    Args:
        heldout: As the user gave it; ``None`` where nothing is held out.
        log: The run's part of the journal. Borrowed.
        log_dir: Where the journal stays; ``None`` where it goes with the run.

    Attributes:
        run: What the receipts of this run call it.
        own: Those in the journal, of earlier parts of the run too.
        place: Where looks are recorded and what nobody knows, as the report says it.
    """

    def __init__(self, heldout: Heldout | None, log: RunLog, log_dir: str | None) -> None:
        self._log = log
        self._study = (heldout.study if heldout is not None else None) or ""
        # Only these runs are held to their rows, and recorded for later ones.
        self._binds = bool(self._study or log_dir)
        with Reader(log.journal.path) as reader:
            (created,) = reader.rows("SELECT created FROM run WHERE id = ?", (log.number,))[0]
            self.own = [receipt for run, receipt in journal_receipts(reader) if run == log.number]
        self.run = f"run {log.number}, {digest_of([repr(created)])[:8]}"
        self._file = _project_file(self._study, log_dir)
        self.place = self._describe_place(log_dir)

    def _describe_place(self, log_dir: str | None) -> str:
        if not self._binds:
            return (
                "no study name and no log_dir: this look is not counted, and whether other rows"
                " were held out before is not known"
            )
        if self._file is None:
            why = "COMBEE_RECEIPTS=off" if _is_off() else "no project folder"
            return f"no study name and {why}: looks outside {log_dir} may not be known"
        return f"{f'study {self._study!r}, ' if self._study else ''}recorded in {self._file}"

    def check(self, identity: HeldoutIdentity) -> list[str]:
        """Hold the data against what the study has read; return what stops nobody as warnings.

        Raises:
            HeldoutMovedError: The study has a name, or the run a ``log_dir``, and the held-out set
                was moved.
            ArgumentValueError: The study's file is not as it was written.
        """
        with Reader(self._log.journal.path) as reader:
            earlier = [
                receipt for run, receipt in journal_receipts(reader) if run != self._log.number
            ]
        check_unmoved(earlier, identity, str(self._log.journal.path), self._study)
        others = [
            receipt
            for receipt in self._read_file()
            if receipt.study == self._study and receipt.run != self.run
        ]
        try:
            check_unmoved(others, identity, str(self._file), self._study)
        except HeldoutMovedError as error:
            if self._binds:
                raise
            why = "This run has neither a study name nor a log_dir, so it is not refused that"
            return [f"{why} {error}"]
        return []

    def looks(self) -> list[Receipt]:
        """Return all receipts that this run can find, its own too, each once, oldest first."""
        with Reader(self._log.journal.path) as reader:
            everywhere = [receipt for _, receipt in journal_receipts(reader)]
        everywhere += self._read_file()
        each = {
            (receipt.run, receipt.stage, receipt.programs): receipt
            for receipt in reversed(everywhere)
        }
        return sorted(each.values(), key=lambda receipt: receipt.at)

    def keep(self, receipt: Receipt) -> None:
        """Keep a receipt, once.

        Raises:
            ArgumentValueError: The file of a named study cannot be written to.
        """
        step = (receipt.stage, receipt.programs)
        if step in [(other.stage, other.programs) for other in self.own]:
            return
        if receipt.stage != "pinned" and self._binds:
            self._append(replace(receipt, models={}, warnings=()))
        self.own.append(receipt)
        self._log.emit(receipt)

    def _append(self, receipt: Receipt) -> None:
        if self._file is None:
            return
        try:
            append_plain(self._file, orjson.dumps(receipt.to_dict()) + b"\n")
        except (OSError, NotPlainFileError) as error:
            if self._study:
                problem = f"cannot be recorded in {self._file}: {error}"
                raise ArgumentValueError(
                    "heldout.study", self._study, problem, "Let it be written to."
                ) from error
            self._give_up(error)

    def _read_file(self) -> list[Receipt]:
        if self._file is None:
            return []
        try:
            lines = read_plain(self._file).decode("utf-8", "replace").splitlines()
            return [Receipt.from_json(line) for line in lines if line.strip()]
        except FileNotFoundError:
            return []
        except (OSError, NotPlainFileError, ArgumentValueError) as error:
            if self._binds:
                problem = f"cannot be read: {error}"
                raise ArgumentValueError(
                    "heldout", str(self._file), problem, "Restore the file."
                ) from error
            self._give_up(error)
            return []

    def _give_up(self, error: Exception) -> None:
        text = "Looks at held-out rows cannot be counted in %s (%s). The run goes on."
        logger.warning(text, self._file, error)
        self._file = None


def _project_file(study: str, log_dir: str | None) -> Path | None:
    """Return the file of the project folder that the user works in, else of the ``log_dir``'s."""
    if not study and _is_off():
        return None
    for start in (Path.cwd(), *([] if log_dir is None else [Path(log_dir).absolute()])):
        for folder in (start, *start.parents):
            if (folder / ".git").exists() or (folder / "pyproject.toml").exists():
                return folder / _FILE
    return Path.cwd() / _FILE if study else None


def _is_off() -> bool:
    """Return whether the user wants looks of runs without a study recorded in journals alone."""
    value = os.environ.get("COMBEE_RECEIPTS", "")
    if value and value.lower() != "off":
        logger.warning("COMBEE_RECEIPTS=%r has no effect: it can be 'off' or unset.", value)
    return value.lower() == "off"
