"""``combee bench scale``: how a scan grows with its reflections."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from combee_dspy.cli._exit import EXIT_CODES, Debug, guarded
from combee_dspy.exceptions import ArgumentValueError

__all__ = ["HELP", "scale"]

HELP = f"""A scan alone, from ten reflections to ten thousand: seconds, calls, tokens, depth, CPU and memory.

\b
    combee bench scale
    combee bench scale --json scale.json --svg scale.svg

No language model is involved: a service on this machine knows one planted fact a
reflection. Each scan has a process of its own. Beside what was measured stands
what the plan says. About five minutes at the full time scale. The exit code is 1
where a scan was deeper than planned, took 1 GiB or more, failed, or ended in no edit.

{EXIT_CODES}"""


@guarded
def scale(  # noqa: PLR0913 - one parameter an option
    sizes: Annotated[str, typer.Option(help="Reflections of each scan, by comma.")] = "10,30,100,300,1000,3000,10000",
    aggregators: Annotated[str, typer.Option(help="Names, by comma.")] = "union,parallel-scan",
    slots: Annotated[int, typer.Option(min=1, help="Calls served at once.")] = 64,
    time_scale: Annotated[float, typer.Option(min=0, help="Wall seconds for one simulated second.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write figures, machine and versions here.")] = None,
    svg_file: Annotated[Path | None, typer.Option("--svg", help="Write a picture here.")] = None,
    debug: Debug = False,
) -> None:
    """A scan alone, from ten reflections to ten thousand."""
    for name, file in (("--json", json_file), ("--svg", svg_file)):
        if file is not None and (file.is_dir() or not file.absolute().parent.is_dir()):
            raise ArgumentValueError(name, str(file), "cannot be written", "Name a file in a folder that exists.")
    if not all(size.strip().isdigit() for size in sizes.split(",")):
        raise ArgumentValueError("--sizes", sizes, "is no list of whole numbers", "Give 10,100,1000.")
    from combee_dspy.bench.scale import main

    given = {"sizes": sizes, "aggregators": aggregators, "slots": slots, "time-scale": time_scale, "seed": seed}
    files = {"json": json_file, "svg": svg_file}
    arguments = [f"--{name}={value}" for name, value in [*given.items(), *files.items()] if value is not None]
    if main(arguments):
        raise typer.Exit(1)
