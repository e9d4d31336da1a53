"""All that is shown of a run: its figures, costs, spending, parts and problems, read at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from combee_dspy.journal import Reader, journal_file
from combee_dspy.tracking._candidates import recorded
from combee_dspy.tracking._queries import audit_of, costs_of, problems_of, run_number
from combee_dspy.tracking._runs import RunFigures, figures_of, summarize_runs
from combee_dspy.tracking._spending import budget_use, read_spending, spending_rows, times_of
from combee_dspy.tracking._text import Row, clean_values, cleaner

__all__ = ["overview"]


def overview(place: Path | str, run: int | str | None = None) -> list[Row]:
    """Return the runs of a journal as :func:`runs` does, each with its ``costs``, ``budget``
    (whether it was well spent), ``spending``, ``audit`` and ``problems``. The journal is checked
    and read once.

    Args:
        place: A ``log_dir``, or its journal.
        run: Name or id of one run; all by default. A task may be named ``"2"``: a name comes before
            an id.

    Raises:
        ArgumentValueError: There is no journal or no such run.
        JournalDamagedError: It cannot be read.
    """
    with Reader(journal_file(place), checked=True) as reader:
        number = None if run is None else run_number(reader, run)
        runs = summarize_runs(reader) if number is None else [figures_of(reader, number)]
        rows = [
            {
                **figures.columns(),
                "costs": costs_of(reader, figures.id),
                **_spending_of(reader, figures),
                "audit": audit_of(reader, figures.id),
                "problems": problems_of(reader, figures.id),
            }
            for figures in runs
        ]
    clean = cleaner()
    return [clean_values(row, clean) for row in rows]


def _spending_of(reader: Reader, figures: RunFigures) -> dict[str, Any]:
    candidates = recorded(reader, figures.id)
    paid = read_spending(reader, figures.id, times_of(candidates))
    return {
        "budget": budget_use(paid, candidates, figures),
        "spending": spending_rows(paid, candidates, figures),
    }
