"""Where a run finds and leaves held-out receipts: its journal, the project's file, and the user's
count of looks.

The two files hold hashes, times and scores: no text of an example, prompt or program, no name of a
model, user or host.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import orjson

from combee_dspy.evaluation import Heldout, HeldoutIdentity, Receipt, check_unmoved
from combee_dspy.exceptions import ArgumentValueError, HeldoutMovedError, NotPlainFileError
from combee_dspy.files import append_plain, read_plain
from combee_dspy.hashing import digest_of
from combee_dspy.journal import Reader, RunHistory, RunLog

__all__ = ["Receipts", "earlier_receipts"]

logger = logging.getLogger("combee_dspy")

_PROJECT_FILE = "combee-heldout.jsonl"
_USER_FILE = "receipts.jsonl"


def earlier_receipts(reader: Reader) -> list[tuple[int, Receipt]]:
    """Return the receipts in a journal, with the number of their run, oldest first."""
    return [(entry.run, entry.event) for entry in RunHistory(reader).entries(Receipt)]


class Receipts:
    """The receipts that concern one run; :class:`combee_dspy.evaluation.Heldout` says which file is
    whose.

    Several processes may append to a file at once.

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
        self._binds = bool(self._study or log_dir)
        with Reader(log.journal.path) as reader:
            (created,) = reader.rows("SELECT created FROM run WHERE id = ?", (log.number,))[0]
            self.own = [receipt for run, receipt in earlier_receipts(reader) if run == log.number]
        self.run = f"run {log.number}, {digest_of([repr(created)])[:8]}"
        counts = os.environ.get("COMBEE_RECEIPTS", "").lower() != "off"
        project = _project_folder(log_dir) if self._study or counts else None
        if project is None and self._study:
            project = Path.cwd()
        self._project = None if project is None else project / _PROJECT_FILE
        self._user = _user_folder() / _USER_FILE if counts else None
        self._unusable: set[Path] = set()
        self.place = self._described(log_dir)

    def _described(self, log_dir: str | None) -> str:
        if self._study:
            return f"study {self._study!r}, recorded in {self._project}"
        if not self._binds:
            return (
                "no study name and no log_dir: whether other rows were held out before is not known"
            )
        if self._project is not None:
            return f"recorded in {self._project}"
        return f"no study name and no project folder: looks outside {log_dir} may not be known"

    def check(self, identity: HeldoutIdentity) -> list[str]:
        """Hold the data against what the study has read; return what nobody is held to as warnings.

        Raises:
            HeldoutMovedError: The study has a name, or the run a ``log_dir``, and the held-out set
                was moved.
            ArgumentValueError: The study's file is not as it was written.
        """
        with Reader(self._log.journal.path) as reader:
            others = [
                receipt for run, receipt in earlier_receipts(reader) if run != self._log.number
            ]
        check_unmoved(others, identity, str(self._log.journal.path), self._study)
        project = [
            receipt for receipt in self._found_in(self._project) if receipt.study == self._study
        ]
        try:
            others = [receipt for receipt in project if receipt.run != self.run]
            check_unmoved(others, identity, str(self._project), self._study)
        except HeldoutMovedError as error:
            if self._binds:
                raise
            why = "This run has neither a study name nor a log_dir, so it is not refused that"
            return [f"{why} {error}"]
        return []

    def looks(self) -> list[Receipt]:
        """Return all receipts of looks that this run can find, its own too, each once, oldest
        first.
        """
        with Reader(self._log.journal.path) as reader:
            journal = [receipt for _, receipt in earlier_receipts(reader)]
        everywhere = [*journal, *self._found_in(self._project), *self._found_in(self._user)]
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
        if any(
            (receipt.stage, receipt.programs) == (other.stage, other.programs) for other in self.own
        ):
            return
        if receipt.stage != "pinned":
            self._record(replace(receipt, models={}, warnings=()))
        self.own.append(receipt)
        self._log.emit(receipt)

    def _record(self, receipt: Receipt) -> None:
        file = self._project if self._binds and self._project is not None else self._user
        if file is None or file in self._unusable:
            return
        if file == self._user:
            # It counts looks, and binds nobody: what was learned from is not its business.
            receipt = replace(receipt, heldout=replace(receipt.heldout, train=(), validation=()))
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            append_plain(file, orjson.dumps(receipt.to_dict()) + b"\n")
        except (OSError, NotPlainFileError) as error:
            if self._study:
                problem = f"cannot be recorded in {file}: {error}"
                raise ArgumentValueError(
                    "heldout.study", self._study, problem, "Let it be written to."
                ) from error
            self._warn(file, error)

    def _found_in(self, file: Path | None) -> list[Receipt]:
        if file is None or file in self._unusable:
            return []
        try:
            return list(_read(file))
        except (OSError, NotPlainFileError, ArgumentValueError) as error:
            if self._binds and file == self._project:
                problem = f"cannot be read: {error}"
                raise ArgumentValueError(
                    "heldout", str(file), problem, "Restore the file."
                ) from error
            self._warn(file, error)
            return []

    def _warn(self, file: Path, error: Exception) -> None:
        self._unusable.add(file)
        logger.warning(
            "Looks at held-out rows cannot be counted in %s (%s). The run goes on.", file, error
        )


def _read(file: Path) -> Iterator[Receipt]:
    try:
        lines = read_plain(file).splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        if line.strip():
            yield Receipt.from_json(line.decode("utf-8", "replace"))


def _project_folder(log_dir: str | None) -> Path | None:
    """Return the nearest project folder of where the user works, else of the ``log_dir``."""
    for start in (Path.cwd(), *([] if log_dir is None else [Path(log_dir).absolute()])):
        for folder in (start, *start.parents):
            if (folder / ".git").exists() or (folder / "pyproject.toml").exists():
                return folder
    return None


def _user_folder() -> Path:
    if chosen := os.environ.get("COMBEE_RECEIPTS"):
        return Path(os.path.expanduser(chosen))  # noqa: PTH111 - Path's own raises where there is no home
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")  # noqa: PTH111 - the same
    return Path(data) / "combee_dspy"
