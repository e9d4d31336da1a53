"""``combee bench capacity``: whether an unknown service's capacity is found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from combee_dspy.cli._exit import EXIT_CODES, Debug, guarded
from combee_dspy.exceptions import ArgumentValueError

__all__ = ["HELP", "capacity"]

HELP = f"""Whether the adaptive limit finds the capacity of a service that nobody told it.

\b
    combee bench capacity
    combee bench capacity --modes reject --slots 37 --json capacity.json

No language model is involved: a service on this machine answers with seeded
latencies. Beyond its slots it answers 429 with Retry-After (reject), lets calls
wait (queue), or rejects and halves its slots in the middle (changing). The client
has default settings and is not told the number. The exit code is 1 where a rollout
failed, or where rollouts in flight after the warm-up are not within 10 % of the slots
of a service that rejects.

{EXIT_CODES}"""


@guarded
def capacity(  # noqa: PLR0913 - one parameter an option
    modes: Annotated[str, typer.Option(help="What the service does beyond its slots, by comma.")] = (
        "reject,queue,changing"
    ),
    clients: Annotated[str, typer.Option(help="plain (dspy.LM) or pooled, by comma.")] = "plain,pooled",
    slots: Annotated[int, typer.Option(min=2, help="Calls served at once.")] = 37,
    rollouts: Annotated[int, typer.Option(min=20, help="Rollouts of each run, of one call each.")] = 1500,
    seconds: Annotated[float, typer.Option(help="Median simulated seconds of a call.")] = 2.0,
    retry_after: Annotated[float, typer.Option(help="Simulated seconds of Retry-After.")] = 1.0,
    time_scale: Annotated[float, typer.Option(help="Wall seconds for one simulated second, above 0.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the service.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write figures, machine and versions here.")] = None,
    debug: Debug = False,
) -> None:
    """Whether the adaptive limit finds the capacity of a service that nobody told it."""
    if json_file is not None and (json_file.is_dir() or not json_file.absolute().parent.is_dir()):
        raise ArgumentValueError("--json", str(json_file), "cannot be written", "Name a file in a folder that exists.")
    from combee_dspy.bench.capacity import main

    given = {
        "modes": modes,
        "clients": clients,
        "slots": slots,
        "rollouts": rollouts,
        "seconds": seconds,
        "retry-after": retry_after,
        "time-scale": time_scale,
        "seed": seed,
    }
    arguments = [f"--{name}={value}" for name, value in given.items()]
    if main(arguments if json_file is None else [*arguments, f"--json={json_file}"]):
        raise typer.Exit(1)
