"""``combee candidates``: every candidate of a run, with lineage and scores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from combee_dspy.cli._exit import EXIT_CODES, Debug, guarded
from combee_dspy.tracking import one_line

if TYPE_CHECKING:
    from combee_dspy.engine.loading import CandidateRecord

__all__ = ["HELP", "candidates"]

HELP = f"""List every candidate of a run, with its lineage and scores.

Works while the run goes on, and after it was killed.

\b
    combee candidates checkpoints            RUN is the run's log_dir
    combee candidates checkpoints --texts    with what each candidate says
    combee candidates checkpoints --json     one JSON array, texts included

From Python, combee_dspy.load_candidate(program, RUN, ID) returns the program
with a candidate's texts, accepted or not.

{EXIT_CODES}"""

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The run's log_dir.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, one object a candidate.")]
Texts = Annotated[bool, typer.Option("--texts", help="Show the components that differ from the parent's.")]


@guarded
def candidates(run: Run, as_json: AsJson = False, texts: Texts = False, debug: Debug = False) -> None:
    """List every candidate of a run, with its lineage and scores."""
    from combee_dspy.engine.loading import candidates as of_run

    found = of_run(run)
    if as_json:
        typer.echo(json.dumps([asdict(record) for record in found], indent=2))
        return
    console = Console()
    console.print(_table(found))
    for record in found:
        if record.reason:
            name = record.id or f"{record.operator}'s attempt in iteration {record.iteration}"
            console.print(Text(f"{name}: {one_line(record.reason, 500)}"), soft_wrap=True)
    if texts:
        _show_texts(found, console)


def _table(records: Sequence[CandidateRecord]) -> Table:
    table = Table("index", "candidate", "status", "parents", "operator", "iteration", "validation", "minibatch")
    indices = {record.id: record.index for record in records if record.id}
    for record in records:
        parents = (str(indices[one]) if indices.get(one) is not None else one for one in record.parents)
        minibatch = _figure(record.minibatch_score)
        if record.parent_score is not None:
            minibatch = f"{minibatch} against {_figure(record.parent_score)}"
        cells = (
            "" if record.index is None else str(record.index),
            record.id,
            f"{record.status}, best" if record.best else record.status,
            ", ".join(parents),
            record.operator,
            str(record.iteration),
            _figure(record.score),
            minibatch,
        )
        # What a file says may reach a terminal, but must not steer it.
        table.add_row(*(Text(one_line(cell, 200)) for cell in cells))
    return table


def _show_texts(records: Sequence[CandidateRecord], console: Console) -> None:
    known = {record.id: record.texts for record in records if record.id}
    for record in (record for record in records if record.texts):
        before = known.get(record.parents[0], {}) if record.parents else {}
        for component, text in record.texts.items():
            if before.get(component) != text:
                console.print(Text(f"\n{record.id} {one_line(component, 200)}", style="bold"), soft_wrap=True)
                console.print(Text("\n".join(one_line(line, 10_000) for line in text.splitlines())), soft_wrap=True)


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
