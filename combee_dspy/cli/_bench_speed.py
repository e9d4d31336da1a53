"""``combee bench speed``: seconds for one epoch, Combee beside its peers."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from combee_dspy.cli._exit import EXIT_CODES, Debug, guarded
from combee_dspy.exceptions import ArgumentValueError

if TYPE_CHECKING:
    from rich.table import Table

    from combee_dspy.bench import MethodResult, SpeedOptions, SpeedRun

__all__ = ["HELP", "speed"]

HELP = f"""Seconds for one epoch: Combee beside dspy.GEPA, on one service, in one run.

Without --endpoint no language model is involved: a service on this machine answers
with seeded latencies, and seconds are its simulated seconds. Every method gets the
same program, data, service and seed, and the defaults of its own constructor.

\b
    combee bench speed
    combee bench speed --time-scale 1 --json speed.json
    combee bench speed --path data/formula
    combee bench speed --methods all --path data/formula --heldout 136 \\
        --time-scale 1 --repeats 3 --seeds 0-9 --json speed.json --picture speed.svg
    combee bench speed --endpoint http://gpu:8000/v1 --model my-model

A method is called so many times faster than the first one only if it learned no
less: the 95 % interval of its held-out score minus the first one's (paired by
example, and by seed where --seeds names several) must lie above -0.05. Otherwise
the table says "not comparable", which may also mean that there is too little
held-out to tell. Seeds other than the timed one are run without latencies.

What this machine computes counts in the seconds too, and counts for more the
smaller --time-scale is: 1 costs as much time as it simulates, and is exact.

Efficiency is the method's own bound over its seconds: the sum, over its barriers,
of the longest chain of calls that need each other, or of what the slots can serve
where that is more. "Without barriers" grants it none that its texts do not show.

{EXIT_CODES}"""

_DATA, _ENDPOINT = "Data", "Endpoint"
_ALL = "all"


def _rows(what: str) -> Any:
    return typer.Option(min=1, help=f"{what} examples.", rich_help_panel=_DATA)


def _of_endpoint(said: str) -> Any:
    return typer.Option(help=said, rich_help_panel=_ENDPOINT)


@guarded
def speed(  # noqa: PLR0913 - one parameter an option
    methods: Annotated[str, typer.Option(help="Methods, by comma, or all; the first is the reference.")] = (
        "gepa,combee"
    ),
    examples: Annotated[int, _rows("Training")] = 240,
    validation: Annotated[int, _rows("Validation")] = 60,
    heldout: Annotated[int, _rows("Held-out")] = 100,
    path: Annotated[
        Path | None,
        typer.Option(help="Rows of the Formula benchmark, instead of formula-mini's.", rich_help_panel=_DATA),
    ] = None,
    program: Annotated[
        str, typer.Option(help="chain-of-thought, which reasons before it answers, or predict.", rich_help_panel=_DATA)
    ] = "chain-of-thought",
    slots: Annotated[int, typer.Option(min=1, help="Calls served at once; threads of each method.")] = 64,
    time_scale: Annotated[float, typer.Option(help="Wall seconds for one simulated second, above 0.")] = 0.2,
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs of each method; their median is shown.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of service and methods in timed runs.")] = 0,
    seeds: Annotated[
        str, typer.Option(help="Seeds on which held-out is compared, such as 0-9; by default as it was timed.")
    ] = "",
    endpoint: Annotated[
        str | None, _of_endpoint("Address of an OpenAI-compatible service, instead of simulated.")
    ] = None,
    model: Annotated[str | None, _of_endpoint("The model's name there.")] = None,
    api_key_env: Annotated[str | None, _of_endpoint("Environment variable that holds its key.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write figures, machine, versions and command here.")
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Write an SVG here.")] = None,
    debug: Debug = False,
) -> None:
    """Seconds for one epoch: Combee beside dspy.GEPA, on one service."""
    for option, file in (("--json", json_file), ("--picture", picture)):
        # Found now rather than after minutes of measuring.
        if file is not None and (file.is_dir() or not file.absolute().parent.is_dir()):
            raise ArgumentValueError(option, str(file), "cannot be written", "Name a file in a folder that exists.")
    # dspy takes seconds to import, and --help needs none of it.
    from combee_dspy.bench import SpeedOptions

    source: dict[str, Any] = {} if path is None else {"benchmark": "formula", "params": {"path": str(path)}}
    options = SpeedOptions(
        methods=_methods(methods),
        examples=examples,
        validation=validation,
        heldout=heldout,
        # Checked with all other options.
        program=program,  # type: ignore[arg-type]
        slots=slots,
        time_scale=time_scale,
        repeats=repeats,
        seed=seed,
        seeds=_seeds(seeds),
        endpoint=endpoint,
        model=model,
        api_key_env=api_key_env,
        **source,
    )
    _measure(options, json_file, picture)


def _measure(options: SpeedOptions, json_file: Path | None, picture: Path | None) -> None:
    from rich.console import Console

    from combee_dspy import bench

    runs: list[SpeedRun] = []
    results: list[MethodResult] = []
    running = bench.run_speed(options)
    source = bench.data_source(options)
    for run in running:
        runs.append(run)
        # On stderr, so that stdout is the table alone.
        sys.stderr.write(f"{options.label}: {_line(run, options)}\n")
        results = bench.summarize_speed(options.methods, runs, seed=options.seed)
        if json_file is not None:
            # Written as it grows: an hour of measuring is not lost with the last run.
            record = bench.speed_record(options, results, runs, _command(options), source=source)
            json_file.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    if picture is not None:
        picture.write_text(bench.speed_svg(results, options), encoding="utf-8")
    console = Console()
    if not console.is_terminal:
        # Nobody's window bounds a file.
        console = Console(width=_FIRST + _COLUMN * len(options.methods))
    console.print(_table(options, results))


def _methods(text: str) -> tuple[str, ...]:
    named = tuple(name.strip() for name in text.split(",") if name.strip())
    if named != (_ALL,):
        return named
    from combee_dspy.bench.speed_methods import METHODS, lacking

    for name in METHODS:
        if lacking(name):
            sys.stderr.write(f"left out: {name} needs {lacking(name)}, which this version lacks\n")
    return tuple(name for name in METHODS if not lacking(name))


def _seeds(text: str) -> tuple[int, ...]:
    found: list[int] = []
    for part in (part.strip() for part in text.split(",") if part.strip()):
        first, _, last = part.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()):
            raise ArgumentValueError("--seeds", part, "is no whole number", "Give 0-9, or numbers by comma.")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def _command(options: SpeedOptions) -> str:
    parts = ["combee", "bench", "speed", "--methods", ",".join(options.methods)]
    for name in ("examples", "validation", "heldout", "program", "slots", "time_scale", "repeats", "seed"):
        parts += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    given = {
        "seeds": ",".join(str(one) for one in options.seeds) or None,
        "path": options.params.get("path"),
        "endpoint": options.endpoint,
        "model": options.model,
        "api-key-env": options.api_key_env,
    }
    for name, value in given.items():
        parts += [] if value is None else [f"--{name}", str(value)]
    return shlex.join(parts)


def _line(run: SpeedRun, options: SpeedOptions) -> str:
    after = sum(run.after) / len(run.after)
    took = "" if run.seconds is None else f"{_seconds(run.seconds)} {options.unit}, "
    which = f"seed {run.seed}" if run.repeat is None else f"repeat {run.repeat + 1} of {options.repeats}"
    return f"{run.method}, {which}: {took}held-out {after:.3f}"


def _table(options: SpeedOptions, results: Sequence[MethodResult]) -> Table:
    from rich.table import Table

    from combee_dspy.bench import MARGIN, METHODS

    first = options.methods[0]
    notes = [f"wall seconds × {1 / options.time_scale:g} = simulated seconds", options.law] if options.law else []
    if options.repeats > 1:
        notes.append(f"median of {options.repeats}; calls, tokens, slot use and bounds are of the median run")
    seeds = {len(result.seeds) for result in results}
    notes.append("held-out over " + " or ".join(f"{count} seed{'s' * (count > 1)}" for count in sorted(seeds)))
    if any(result.versus is not None and not result.versus.comparable for result in results):
        notes.append(f"not comparable: held-out is not shown to be within {MARGIN:g} of {first}'s")
    if any(result.repeated is False for result in results):
        notes.append("a timed run did not score on held-out what its repetition without latencies did")
    table = Table(
        title=f"One epoch of {options.examples} examples ({options.benchmark}), {options.slots} slots\n{options.label}",
        caption="\n".join([*notes, *(f"{result.method}: {METHODS[result.method].said}" for result in results)]),
        caption_justify="left",
    )
    table.add_column("")
    for result in results:
        table.add_column(result.method, justify="right", overflow="fold")
    columns = [_cells(result) for result in results]
    for number, title in enumerate(_TITLES):
        table.add_row(title.format(first=first, seconds=options.unit), *(column[number] for column in columns))
    return table


_FIRST, _COLUMN = 36, 27
_TITLES = (
    "{seconds}, one epoch",
    "times faster than {first}",
    "updates",
    "planned sizes",
    "task calls",
    "task tokens",
    "reflection calls",
    "reflection tokens",
    "… of them written",
    "other calls",
    "speculative calls",
    "slot use",
    "own bound, {seconds}",
    "efficiency",
    "… without barriers",
    "validation",
    "held-out before",
    "held-out after",
    "gain, 95 % interval",
    "held-out minus {first}'s",
)
_UNKNOWN = "n/a"


def _cells(result: MethodResult) -> tuple[str, ...]:
    versus, run = result.versus, result.median
    times, against = "reference", ""
    if versus is not None:
        times = "not comparable" if versus.times_faster is None else f"{versus.times_faster:.1f} ×"
        against = f"{versus.difference:+.3f} [{versus.low:+.3f}, {versus.high:+.3f}]"
    return (
        _seconds(result.seconds),
        times,
        str(run.updates),
        _sizes(run.sizes),
        f"{run.calls.get('task', 0):,}",
        f"{run.tokens.get('task', 0):,}",
        f"{run.calls.get('reflect', 0):,}",
        f"{run.tokens.get('reflect', 0):,}",
        f"{run.written.get('reflect', 0):,}",
        f"{run.calls.get('other', 0):,}",
        "" if run.speculative is None else f"{run.speculative:,}",
        _share(run.slot_use),
        _UNKNOWN if run.bound is None else _seconds(run.bound.staged),
        _share(run.efficiency),
        _share(run.free_efficiency),
        f"{run.validation:.3f}",
        f"{result.before:.3f}",
        f"{result.heldout.mean:.3f}",
        f"{result.gain.mean:+.3f} [{result.gain.low:+.3f}, {result.gain.high:+.3f}]",
        against,
    )


def _share(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.1%}"


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _sizes(sizes: Sequence[int]) -> str:
    """Return sizes with repeats folded: ``3 8 20×11``."""
    folded: list[list[int]] = []
    for size in sizes:
        if folded and folded[-1][0] == size:
            folded[-1][1] += 1
        else:
            folded.append([size, 1])
    return " ".join(f"{size}×{count}" if count > 1 else str(size) for size, count in folded)
