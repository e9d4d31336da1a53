"""``combee bench``: Combee beside its peers, measured in one run."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from combee_dspy.cli import _bench_sweep
from combee_dspy.cli._exit import EXIT_CODES, Debug, guarded
from combee_dspy.exceptions import ArgumentValueError

if TYPE_CHECKING:
    from combee_dspy.bench import MethodResult, SpeedOptions

__all__ = ["HELP", "bench_app"]

HELP = f"""Seconds for one epoch: Combee beside dspy.GEPA, on the simulated service.

No language model is involved: a service on this machine answers with seeded
latencies, and seconds are its simulated seconds. Every method gets the same
program, data, service and seed, and the defaults of its own constructor.

\b
    combee bench speed
    combee bench speed --time-scale 1 --json speed.json
    combee bench speed --path data/formula

A method is called so many times faster than the first one only if it learned no
less: the 95 % interval of its held-out score minus the first one's (paired by
example) must lie above -0.05. Otherwise the table says "not comparable", which
may also mean that --heldout is too small to tell.

What this machine computes counts in the seconds too, and counts for more the
smaller --time-scale is: 1 costs as much time as it simulates, and is exact.

{EXIT_CODES}"""

bench_app = typer.Typer(
    name="bench",
    help="Measure Combee beside its peers on the simulated service.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_DATA = "Data"


@bench_app.callback()
def _bench() -> None:
    """Measure Combee beside its peers on the simulated service."""


def _rows(what: str) -> Any:
    return typer.Option(min=1, help=f"{what} examples.", rich_help_panel=_DATA)


@bench_app.command("speed", help=HELP)
@guarded
def speed(  # noqa: PLR0913 - one parameter an option
    methods: Annotated[str, typer.Option(help="Methods, by comma; the first is the reference.")] = "gepa,combee",
    examples: Annotated[int, _rows("Training")] = 240,
    validation: Annotated[int, _rows("Validation")] = 60,
    heldout: Annotated[int, _rows("Held-out")] = 100,
    path: Annotated[
        Path | None,
        typer.Option(help="Rows of the Formula benchmark, instead of formula-mini's.", rich_help_panel=_DATA),
    ] = None,
    slots: Annotated[int, typer.Option(min=1, help="Calls served at once; threads of each method.")] = 64,
    time_scale: Annotated[float, typer.Option(help="Wall seconds for one simulated second, above 0.")] = 0.2,
    seed: Annotated[int, typer.Option(min=0, help="Seed of service and methods.")] = 0,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write figures, machine, versions and command here.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Seconds for one epoch: Combee beside dspy.GEPA, on the simulated service."""
    if json_file is not None and (json_file.is_dir() or not json_file.absolute().parent.is_dir()):
        # Found now rather than after minutes of measuring.
        raise ArgumentValueError("--json", str(json_file), "cannot be written", "Name a file in a folder that exists.")
    # dspy takes seconds to import, and --help needs none of it.
    from combee_dspy.bench import SpeedOptions, speed_record

    names = tuple(name.strip() for name in methods.split(",") if name.strip())
    source: dict[str, Any] = {} if path is None else {"benchmark": "formula", "params": {"path": str(path)}}
    options = SpeedOptions(
        methods=names,
        examples=examples,
        validation=validation,
        heldout=heldout,
        slots=slots,
        time_scale=time_scale,
        seed=seed,
        **source,
    )
    results = _measured(options)
    if json_file is not None:
        record = speed_record(options, results, _command(options))
        json_file.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


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


bench_app.command("sweep", help=_bench_sweep.HELP)(_bench_sweep.sweep)


def _command(options: SpeedOptions) -> str:
    parts = ["combee", "bench", "speed", "--methods", ",".join(options.methods)]
    for name in ("examples", "validation", "heldout", "slots", "time_scale", "seed"):
        parts += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    path = options.params.get("path")
    return shlex.join(parts if path is None else [*parts, "--path", str(path)])


def _measured(options: SpeedOptions) -> list[MethodResult]:
    from combee_dspy.bench import LABEL, run_speed

    console, results = Console(), list[Any]()
    running = run_speed(options)
    if not console.is_terminal:
        for result in running:
            results.append(result)
            sys.stderr.write(f"{LABEL}: {result.method} took {result.seconds:,.0f} simulated s\n")
        console.print(_table(options, results))
        return results
    table = _table(options, results)
    # No thread of its own: what redraws while a method runs would take time from it.
    with Live(table, console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        for result in running:
            results.append(result)
            live.update(_table(options, results), refresh=True)
    return results


def _table(options: SpeedOptions, results: Sequence[MethodResult]) -> Table:
    from combee_dspy.bench import LABEL, MARGIN

    first = options.methods[0]
    notes = [f"wall seconds × {1 / options.time_scale:g} = simulated seconds"]
    if any(result.versus is not None and not result.versus.comparable for result in results):
        notes.append(f"not comparable: held-out is not shown to be within {MARGIN:g} of {first}'s")
    table = Table(
        title=f"One epoch of {options.examples} examples ({options.benchmark}), {options.slots} slots\n{LABEL}",
        caption="\n".join(notes),
    )
    table.add_column("")
    done = {result.method: _cells(result) for result in results}
    for name in options.methods:
        table.add_column(name, justify="right", overflow="fold")
    for number, title in enumerate(_TITLES):
        cells = (done[name][number] if name in done else "…" for name in options.methods)
        table.add_row(title.format(first=first), *cells)
    return table


_TITLES = (
    "simulated seconds",
    "times faster than {first}",
    "iterations",
    "task calls",
    "task tokens",
    "reflection calls",
    "reflection tokens",
    "other calls",
    "slot use",
    "validation",
    "held-out before",
    "held-out after",
    "difference, 95 % interval",
    "held-out minus {first}'s",
)


def _cells(result: MethodResult) -> tuple[str, ...]:
    versus = result.versus
    times, against = "reference", ""
    if versus is not None:
        times = "not comparable" if versus.times_faster is None else f"{versus.times_faster:.1f} ×"
        against = f"{versus.difference:+.3f} [{versus.low:+.3f}, {versus.high:+.3f}]"
    return (
        f"{result.seconds:,.0f}",
        times,
        str(result.iterations),
        f"{result.calls.get('task', 0):,}",
        f"{result.tokens.get('task', 0):,}",
        f"{result.calls.get('reflect', 0):,}",
        f"{result.tokens.get('reflect', 0):,}",
        f"{result.calls.get('other', 0):,}",
        f"{result.slot_use:.1%}",
        f"{result.validation:.3f}",
        f"{result.before:.3f}",
        f"{result.after:.3f}",
        f"{result.after - result.before:+.3f} [{result.low:+.3f}, {result.high:+.3f}]",
        against,
    )
