"""The recorded run is told without a model, and its report is written."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.recorded import show_recorded


def test_the_recorded_run_shows_what_was_read_shuffled_scanned_and_weighed(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=100)
    page = show_recorded(tmp_path / "recorded", console)
    out = console.file.getvalue()
    assert out.count("RECORDED") == 1
    labels = [line[:10].split()[0] for line in out.splitlines() if line.startswith(" ")]
    assert labels[0] == "validated", "the untouched program's score comes first"
    assert {"update", "shuffled", "read", "scanned", "weighed", "learned"} <= set(labels)
    assert "7 lessons, such as “The correct code for a message about a fridge is 'A4'.”" in out
    assert "A message about a" in page.read_text(encoding="utf-8")


def test_no_journal_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite").write_bytes(b"mine")
    with pytest.raises(ArgumentValueError, match="has a journal already"):
        show_recorded(tmp_path, Console(file=io.StringIO()))
    assert (tmp_path / "journal.sqlite").read_bytes() == b"mine"
