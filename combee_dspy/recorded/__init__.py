"""A run of a real model that was recorded, for machines that have none.

``journal.sqlite.xz`` is its journal; ``README.md`` beside it says what ran, when and where.
"""

from __future__ import annotations

import lzma
from importlib.resources import files
from pathlib import Path

from rich.console import Console
from rich.panel import Panel

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.files import make_folder, write_plain
from combee_dspy.journal import Reader, journal_file
from combee_dspy.tracking import narrate, write_report

__all__ = ["show_recorded"]

_CAPTION = (
    "RECORDED: no model answers now. Qwen2.5-Coder-1.5B learned six invented rules by Combee's"
    " defaults, for 28,241 tokens. On 24 held-out questions, asked apart, it went from 0.17 to"
    " 0.71; sixteen such runs went from 0.16 to 0.52 on average."
)


def show_recorded(folder: Path, console: Console, pause: float = 0.5) -> Path:
    """Unpack the journal into a folder, tell the run, and write its report.

    Args:
        folder: A folder without a journal; made where it is not there.
        console: Where to write.
        pause: Seconds between two lines on a terminal.

    Returns:
        The report's page.

    Raises:
        ArgumentValueError: The folder has a journal.
        OSError: The folder cannot be written to.
    """
    journal = folder / "journal.sqlite"
    if journal.exists():
        raise ArgumentValueError(
            "--log-dir", str(folder), "has a journal already", "Name a folder that is not there."
        )
    make_folder(folder)
    packed = files(__name__).joinpath("journal.sqlite.xz").read_bytes()
    write_plain(journal, lzma.decompress(packed))
    console.print(Panel(_CAPTION, title="a recorded run", title_align="left"))
    with Reader(journal_file(folder)) as reader:
        narrate(reader, console, pause)
    return write_report(folder)
