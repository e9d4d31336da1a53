"""``combee skill``: what a run has learned, as a folder for coding agents."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from combee_dspy.cli._tables import show_facts


def skill(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The run's log_dir.", show_default=False)
    ],
    out: Annotated[
        Path, typer.Option(help="The skill's folder; its name is the skill's.", show_default=False)
    ],
    predictor: Annotated[str, typer.Option(help="Which predictor, if there are several.")] = "",
    task: Annotated[str | None, typer.Option("--run", help="One of several tasks.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of SKILL.md and of each reference.")] = (
        5_000
    ),
) -> None:
    """Write what a run has learned as a skill: SKILL.md, and references by topic.

    \b
        combee skill runs/today --out skills/order-codes

    An existing skill is rewritten. What people changed in it stays: the description, and lessons
    that they edited, added or removed.
    """  # noqa: D301 - the backspace keeps lines apart on the help page
    from combee_dspy.loading import load_skill
    from combee_dspy.skills import write_skill

    learned = load_skill(run, predictor=predictor, run=task)
    files = write_skill(out, learned, max_tokens=max_tokens)
    served, references = len(learned.book.served), len(files) - 2
    show_facts({"lessons": served, "references": references, "written": files[0]})
