"""``combee bench speed``: seconds for one epoch, Combee beside its peers."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from combee_dspy.cli._bench_speed_table import run_line, speed_table, width_of
from combee_dspy.cli._exit import EXIT_CODES, Debug, guarded
from combee_dspy.exceptions import ArgumentValueError

if TYPE_CHECKING:
    from combee_dspy.bench import MethodResult, SpeedOptions, SpeedRun

__all__ = ["HELP", "speed"]

HELP = f"""Seconds for one epoch: Combee beside dspy.GEPA, on one service, in one run.

Without --endpoint no language model is involved: a service on this machine answers
with seeded latencies, and seconds are its simulated seconds. Every method gets the
same program, data, service and seed, and the defaults of its own constructor.
The program reasons before it answers, as a first program usually does, 300 tokens;
the model is right where it was taught and nowhere else, and a formula has up to three
lessons. So nearly every lesson helps, serial dspy.GEPA accepts and validates nearly every
child, and multiples over it are large. They are smallest where it skips most minibatches,
as by what the ACE paper reports for DeepSeek-V3.1 on Formula: --lessons formula
--base-accuracy 0.675 --taught-accuracy 0.855. By --attention items full rewrites lose
most lessons. Show those beside it. --program predict answers at once.

\b
    combee bench speed
    combee bench speed --methods gepa,combee-epoch --path data/formula
    combee bench speed --path data/formula --heldout 136 --time-scale 0.25 \\
        --repeats 3 --peer-repeats 1 --seeds 0-9 --json speed.json --picture speed.svg
    combee bench speed --methods combee,combee-picked,combee-epoch \\
        --path data/formula --time-scale 1 --json efficiency.json
    combee bench speed --program predict --path data/formula
    python -m combee_dspy.bench.speed_seeds speed-0.json speed-1.json speed-2.json
    combee bench speed --endpoint http://gpu:8000/v1 --model my-model

A method is called so many times faster than the first one only if it learned no
less: the 95 % interval of its held-out score minus the first one's (paired by
example, and by seed where --seeds names several) must lie above -0.05. Otherwise
the table says "not comparable", which may also mean that there is too little
held-out to tell. Seeds other than the timed one are run without latencies. To time
several, run once with each --seed and a --json of its own: speed_seeds joins the files.

What this machine computes counts in the seconds too, and counts for more the
smaller --time-scale is: 1 costs as much time as it simulates, and is exact.

Efficiency is the method's own schedule over its seconds: what its calls take,
in its order, on the service's slots, each as soon as what it needs is there. The
rows below it grant more: to know beforehand which calls last long, then no barrier
either that its texts do not show.

{EXIT_CODES}"""

_DATA, _ENDPOINT = "Data", "Endpoint"
_ALL = "all"


def _rows(what: str) -> Any:
    return typer.Option(min=1, help=f"{what} examples.", rich_help_panel=_DATA)


def _of_endpoint(said: str) -> Any:
    return typer.Option(help=said, rich_help_panel=_ENDPOINT)


@guarded
def speed(  # noqa: PLR0913 - one parameter an option
    methods: Annotated[
        str | None,
        typer.Option(help="Methods, by comma, or all; the first is the reference. By default those that matter."),
    ] = None,
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
    peer_repeats: Annotated[
        int | None, typer.Option(min=1, help="Timed runs of dspy.GEPA, where as many as of the others are too many.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of service and methods in timed runs.")] = 0,
    seeds: Annotated[
        str, typer.Option(help="Seeds on which held-out is compared, such as 0-9; by default as it was timed.")
    ] = "",
    temperature: Annotated[
        float | None,
        typer.Option(help="Temperature of both LMs: above 0 they sample. By default the service's own."),
    ] = None,
    base_accuracy: Annotated[
        float, typer.Option(help="Share of questions that the simulated model answers rightly untaught.")
    ] = 0.0,
    taught_accuracy: Annotated[float, typer.Option(help="Share of them that it answers rightly when taught.")] = 1.0,
    lessons: Annotated[
        str,
        typer.Option(help="What a lesson of the simulated model covers: mistake (one kind, of a formula) or formula."),
    ] = "mistake",
    reasoning_tokens: Annotated[float, typer.Option(help="Median tokens of the simulated model's reasoning.")] = 300.0,
    reasoning_spread: Annotated[
        float, typer.Option(help="Standard deviation of the log of these tokens; 0: always as many.")
    ] = 0.0,
    attention: Annotated[
        str,
        typer.Option(help="What the simulated model takes in at once: 12 items, or by reading, about 5,000 tokens."),
    ] = "reading",
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
        attention=attention,  # type: ignore[arg-type]
        lessons=lessons,  # type: ignore[arg-type]
        reasoning_tokens=reasoning_tokens,
        reasoning_spread=reasoning_spread,
        temperature=temperature,
        base_accuracy=base_accuracy,
        taught_accuracy=taught_accuracy,
        slots=slots,
        time_scale=time_scale,
        repeats=repeats,
        peer_repeats=peer_repeats,
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
        sys.stderr.write(f"{options.label}: {run_line(run, options)}\n")
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
        console = Console(width=width_of(len(options.methods)))
    console.print(speed_table(options, results))


def _methods(text: str | None) -> tuple[str, ...]:
    named = None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())
    if named is not None and named != (_ALL,):
        return named
    from combee_dspy.bench.speed_methods import DEFAULT_METHODS, METHODS, lacking

    wanted = DEFAULT_METHODS if named is None else tuple(METHODS)
    for name in wanted:
        if lacking(name):
            sys.stderr.write(f"left out: {name} needs {lacking(name)}, which this version lacks\n")
    return tuple(name for name in wanted if not lacking(name))


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
    for name in (
        "examples",
        "validation",
        "heldout",
        "program",
        "slots",
        "time_scale",
        "repeats",
        "seed",
        "base_accuracy",
        "taught_accuracy",
        "reasoning_tokens",
        "reasoning_spread",
        "attention",
        "lessons",
    ):
        parts += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    given = {
        "peer-repeats": options.peer_repeats,
        "temperature": options.temperature,
        "seeds": ",".join(str(one) for one in options.seeds) or None,
        "path": options.params.get("path"),
        "endpoint": options.endpoint,
        "model": options.model,
        "api-key-env": options.api_key_env,
    }
    for name, value in given.items():
        parts += [] if value is None else [f"--{name}", str(value)]
    return shlex.join(parts)
