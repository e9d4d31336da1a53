"""``combee bench``: Combee beside its peers, measured in one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from combee_dspy.cli import _bench_capacity, _bench_scale, _bench_speed, _bench_sweep
from combee_dspy.cli._exit import Debug, guarded
from combee_dspy.exceptions import ArgumentValueError

__all__ = ["bench_app"]

bench_app = typer.Typer(
    name="bench",
    help="Measure Combee beside its peers on the simulated service.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@bench_app.callback()
def _bench() -> None:
    """Measure Combee beside its peers on the simulated service."""


bench_app.command("speed", help=_bench_speed.HELP)(_bench_speed.speed)


def _write_json(option: Path | None) -> list[str]:
    """Return the arguments that name a record's file, once it is known that it can be written."""
    if option is None:
        return []
    if option.is_dir() or not option.absolute().parent.is_dir():
        raise ArgumentValueError("--json", str(option), "cannot be written", "Name a file in a folder that exists.")
    return ["--json", str(option)]


@bench_app.command("tracking")
@guarded
def tracking(
    what: Annotated[str, typer.Argument(help="cost, agree or kill.")] = "cost",
    rollouts: Annotated[int | None, typer.Option(min=100, help="Rollouts of each run, for cost and agree.")] = None,
    times: Annotated[int, typer.Option(min=1, help="How often the writer is killed, for kill.")] = 20,
    gone: Annotated[float, typer.Option(help="Seconds without a server, for kill.")] = 60.0,
    debug: Debug = False,
) -> None:
    """What keeping the books costs, whether they agree, and whether they survive a killed writer."""
    from combee_dspy.bench.tracking import main

    if what not in ("cost", "agree", "kill"):
        raise ArgumentValueError("what", what, "is no measurement", "Give cost, agree or kill.")
    given = [] if rollouts is None or what == "kill" else ["--rollouts", str(rollouts)]
    struck = ["--times", str(times), "--gone", str(gone)] if what == "kill" else []
    if main([what, *given, *struck]):
        raise typer.Exit(1)


@bench_app.command("placement")
@guarded
def placement(
    trials: Annotated[int, typer.Option(min=2, help="Plans per size and placement.")] = 400,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the plans.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here.")] = None,
    debug: Debug = False,
) -> None:
    """Share of reflections whose copies lie in different shards, against the closed form."""
    target = _write_json(json_file)
    from combee_dspy.bench.placement import main

    main(["--trials", str(trials), "--seed", str(seed), *target])


@bench_app.command("survival")
@guarded
def survival(
    laws: Annotated[str, typer.Option(help="Capacity laws of the service, by comma.")] = "attention,writing,forgetful",
    seeds: Annotated[int, typer.Option(min=2, help="Scans per law and setting.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here.")] = None,
    debug: Debug = False,
) -> None:
    """Predicted against observed survival of lessons in a scan, on the simulated service."""
    target = _write_json(json_file)
    from combee_dspy.bench.survival import main

    main(["--laws", laws, "--seeds", str(seeds), "--seed", str(seed), *target])


@bench_app.command("client")
@guarded
def client(
    rows: Annotated[str | None, typer.Option(help="What to measure, by comma; everything by default.")] = None,
    rollouts: Annotated[int, typer.Option(min=1, help="Rollouts of one measurement.")] = 2_000,
    workers: Annotated[int, typer.Option(min=1, help="Rollouts at once.")] = 64,
    times: Annotated[int, typer.Option(min=1, help="Measurements of each row; the median counts.")] = 3,
    memory: Annotated[int, typer.Option(min=0, help="Watch memory over so many rollouts of the last row.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here.")] = None,
    debug: Debug = False,
) -> None:
    """Rollouts a second and CPU milliseconds a rollout, on a service that answers at once."""
    target = _write_json(json_file)
    from combee_dspy.bench.client import main

    chosen = [] if rows is None else ["--rows", rows]
    sizes = ["--rollouts", str(rollouts), "--workers", str(workers), "--times", str(times), "--memory", str(memory)]
    main([*chosen, *sizes, *target])


bench_app.command("sweep", help=_bench_sweep.HELP)(_bench_sweep.sweep)
bench_app.command("capacity", help=_bench_capacity.HELP)(_bench_capacity.capacity)
bench_app.command("scale", help=_bench_scale.HELP)(_bench_scale.scale)
