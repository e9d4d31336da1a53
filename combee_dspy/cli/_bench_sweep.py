"""``combee bench sweep``: batch size × aggregator."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from combee_dspy.cli._exit import EXIT_CODES, Debug, guarded
from combee_dspy.exceptions import ArgumentValueError

__all__ = ["HELP", "sweep"]

HELP = f"""Batch size × aggregator: what one epoch teaches when every update is kept.

\b
    combee bench sweep
    combee bench sweep --seeds 0-2 --sizes 10,240 --json sweep.json
    combee bench sweep --model embedded --sizes 3,10 --examples 20 --seeds 0
    combee bench sweep --model openai/… --api-base https://… --seeds 0-2

Without --model a service on this machine answers, which is no language model, and
the planted lessons that are left can be counted. It is run under two of its laws,
and with --laws reading under a third, which counts tokens rather than items.
No aggregator reads these laws.

{EXIT_CODES}"""


@guarded
def sweep(  # noqa: PLR0913 - one parameter an option
    aggregators: Annotated[
        str, typer.Option(help="Aggregators, by comma.")
    ] = "single-call,top-k,summarize,parallel-scan,union",
    sizes: Annotated[str, typer.Option(help="Examples a minibatch, by comma.")] = "3,10,40,120,240",
    laws: Annotated[
        str, typer.Option(help="Laws of the simulated service, by comma; reading is a third, which counts tokens.")
    ] = "attention,writing",
    seeds: Annotated[str, typer.Option(help="A seed, or first-last.")] = "0-9",
    examples: Annotated[int, typer.Option(min=1, help="Training examples: one epoch.")] = 240,
    heldout: Annotated[int, typer.Option(min=1, help="Held-out examples.")] = 60,
    task: Annotated[str, typer.Option(help="Task of formula-mini: compute or route.")] = "compute",
    model: Annotated[str | None, typer.Option(help="embedded, or a model's name for dspy.LM.")] = None,
    api_base: Annotated[str | None, typer.Option(help="The model's endpoint.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Calls in flight.")] = 16,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every run here, one JSON line each.")] = None,
    debug: Debug = False,
) -> None:
    """Batch size × aggregator: what one epoch teaches when every update is kept."""
    from combee_dspy.bench.sweep import SweepOptions, SweepRow, run_sweep, table

    options = SweepOptions(
        aggregators=_names(aggregators),
        sizes=tuple(_whole("--sizes", size) for size in _names(sizes)),
        laws=_names(laws),
        seeds=_seeds(seeds),
        examples=examples,
        heldout=heldout,
        workers=workers,
        params={"task": task},
        model=model,
        lm_kwargs={} if api_base is None else {"api_base": api_base},
    )
    rows: list[SweepRow] = []
    for row in run_sweep(options):
        rows.append(row)
        sys.stderr.write(f"{row.law} seed {row.seed}: {row.aggregator} at {row.size}, held-out {row.after:.2f}\n")
        if json_file is not None:
            with json_file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row.to_dict()) + "\n")
    said: Any = "simulated service, no language model" if model is None else model
    typer.echo(f"{said}; one epoch of {examples} examples, {len(options.seeds)} seeds, 95 % intervals over seeds\n")
    typer.echo(table(rows))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _seeds(text: str) -> tuple[int, ...]:
    first, _, last = text.partition("-")
    return tuple(range(_whole("--seeds", first), _whole("--seeds", last or first) + 1))


def _whole(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise ArgumentValueError(option, text, "is no whole number", "Give numbers, by comma.") from error
