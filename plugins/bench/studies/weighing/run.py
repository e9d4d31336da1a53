"""Runs methods on tasks, seeds and budgets, and prints the tables.

From plugins/bench: ``python -m studies.weighing.run --help``.
"""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import typer

from studies.weighing.runs import METHODS, PARTS, run_once
from studies.weighing.tables import details_table, means_table, paired_table
from studies.weighing.tasks import KINDS, SERVICES

Key = tuple[str, int, str, int, str]


def main(  # noqa: PLR0913 - a command's options
    out: Annotated[
        Path, typer.Option(help="File of results, one a line; what is in it is not run again.")
    ],
    methods: Annotated[str, typer.Option(help="Names, separated by commas.")] = ",".join(METHODS),
    tasks: Annotated[str, typer.Option(help="Kinds, separated by commas.")] = ",".join(KINDS),
    seeds: Annotated[int, typer.Option(help="Seeds, from --first-seed on.")] = 8,
    first_seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    budgets: Annotated[str, typer.Option(help="Rollouts, separated by commas.")] = "300,1000",
    processes: Annotated[int, typer.Option(help="Runs at a time.")] = 2,
    base: Annotated[
        str, typer.Option(help="The method that differences are taken to.")
    ] = "default",
    service: Annotated[
        str, typer.Option(help="How the service answers: a name in tasks.SERVICES.")
    ] = "usual",
) -> None:
    """Run what is missing in a file of results, and print the tables of all that was asked for."""
    _known("--service", service, SERVICES)
    wanted = [
        (task, seed, method, budget, service)
        for budget, task, method, seed in product(
            [int(text) for text in budgets.split(",")],
            _known("--tasks", tasks, KINDS),
            _known("--methods", methods, METHODS | PARTS),
            range(first_seed, first_seed + seeds),
        )
    ]
    missing = [key for key in wanted if key not in _results(out)]
    _run(missing, out, processes)
    results = _results(out)
    chosen = [results[key] for key in wanted if key in results]
    for table in (means_table(chosen), paired_table(chosen, base), details_table(chosen)):
        typer.echo(f"\n{table}")
    if len(chosen) < len(wanted):
        typer.echo(f"\n{len(wanted) - len(chosen)} runs failed; run the command again.", err=True)
        raise typer.Exit(1)


def _run(missing: list[Key], out: Path, processes: int) -> None:
    """Run in processes of their own, and add each result to the file as it comes."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        runs = {pool.submit(run_once, *key): key for key in missing}
        for number, run in enumerate(as_completed(runs), start=1):
            error = run.exception()
            if error is not None:
                typer.echo(f"{runs[run]} failed: {type(error).__name__}: {error}", err=True)
                continue
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(run.result()) + "\n")
            typer.echo(
                f"{number} of {len(missing)}: {runs[run]} {run.result()['heldout']:.1f}", err=True
            )


def _results(out: Path) -> dict[Key, dict[str, Any]]:
    if not out.exists():
        return {}
    lines = map(json.loads, out.read_text(encoding="utf-8").splitlines())
    names = ("task", "seed", "method", "budget")
    return {(*(row[name] for name in names), row.get("service", "usual")): row for row in lines}


def _known(option: str, text: str, known: Any) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(known)}", param_hint=option)
    return names


if __name__ == "__main__":
    typer.run(main)
