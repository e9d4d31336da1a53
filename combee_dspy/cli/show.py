"""``combee show``: a run's report, or one of its candidates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from combee_dspy.cli._exit import EXIT_CODES, Debug, guarded
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.tracking import one_line

if TYPE_CHECKING:
    from combee_dspy.tracking.query import Candidate

__all__ = ["HELP", "show"]

HELP = f"""Show a candidate of a run, or write the run's report.

\b
    combee show checkpoints best             what the result changed in its parent
    combee show checkpoints 7                the candidate with index 7 in the pool
    combee show checkpoints 3f2a --json      by the beginning of its id; as JSON, with whole texts
    combee show checkpoints --html run.html  the report, also of a run that was killed

RUN is a log_dir, a journal's folder, its name in combee_runs/journals, or the
id of a run in MLflow.

From Python: combee_dspy.tracking.query.candidate(RUN, "best").texts.

{EXIT_CODES}"""

_LINE = 2_000
_STYLES = {"add": ("+ ", "green"), "del": ("- ", "red"), "same": ("  ", ""), "gap": ("  ", "dim")}


@guarded
def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Which run.", show_default=False)],
    candidate: Annotated[
        str | None,
        typer.Argument(metavar="[CANDIDATE]", help="Its index, the beginning of its id, best or seed."),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write the run's report to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON, with whole texts.")] = False,
    tracking_uri: Annotated[str | None, typer.Option(help="The MLflow store.")] = None,
    debug: Debug = False,
) -> None:
    """Show a candidate of a run, or write the run's report."""
    # MLflow and pyarrow take seconds to import, and --help needs neither.
    from combee_dspy.tracking import query

    if html is not None:
        page = query.report_html(run, tracking_uri)
        try:
            html.write_text(page, encoding="utf-8", errors="replace")
        except OSError as error:
            raise ArgumentValueError(
                "--html", str(html), f"cannot be written: {error}", "Name another file."
            ) from error
        typer.echo(f"Wrote {html}")
        if candidate is None:
            return
    found = query.candidate(run, "best" if candidate is None else candidate, tracking_uri)
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2))
    else:
        _print(found, Console())


def _print(found: Candidate, console: Console) -> None:
    from combee_dspy.tracking.report import diff, readable

    for name, value in _facts(found).items():
        console.print(Text.assemble((f"{name:<12}", "bold"), one_line(value, _LINE)), soft_wrap=True)
    for component in sorted({*found.texts, *found.parent_texts}):
        before, after = found.parent_texts.get(component, ""), found.texts.get(component, "")
        if before == after and found.row.index != 0:
            continue
        console.print(Text(f"\n{one_line(component, 200)}", style="bold"), soft_wrap=True)
        for line in diff(readable("" if found.row.index == 0 else before), readable(after)):
            mark, style = _STYLES[line.kind]
            shown = "".join(text for text, _ in line.spans)
            # One line at a time: what is no line feed must not steer the terminal.
            console.print(Text(mark + _visible(shown), style=style), soft_wrap=True)


def _visible(line: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in line)


def _facts(found: Candidate) -> dict[str, str]:
    row = found.row
    index = "not in the pool" if row.index is None else f"{row.index} in the pool"
    facts = {"candidate": f"{row.candidate_id}, {index}", "fate": row.fate}
    parents = ", ".join(map(str, row.parents)) or row.parent_id
    facts["made by"] = f"{row.operator} in iteration {row.iteration}" + (f", from {parents}" if parents else "")
    if row.validation is not None:
        facts["validation"] = f"{row.validation:.4f}"
    if row.minibatch is not None:
        parent = "" if row.parent_minibatch is None else f", its parent {row.parent_minibatch:.4f}"
        facts["minibatch"] = f"{row.minibatch:.4f}{parent}"
    for purpose, count in sorted(found.rollouts.items()):
        facts[f"as {purpose}"] = f"{count} rollouts, mean {found.scores[purpose]:.4f}"
    return facts
