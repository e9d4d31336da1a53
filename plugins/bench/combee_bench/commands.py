"""Commands of ``combee``: ``bench …``, ``compare`` and ``tune-scan``.

A command is a class of options and a module that measures. The module has ``run(options)``, which
yields one row after another; ``line(options, row)``, which is said when a row is there;
``table(options, rows)``; and, where they make sense, ``summary(options, rows)`` for the JSON file,
``draw(options, rows, path)`` and ``passed(options, rows)``.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import re
import shlex
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

from combee_bench.options import (
    CanaryOptions,
    CapacityOptions,
    CeilingOptions,
    ClientOptions,
    CompareOptions,
    DamageOptions,
    DiagnoseOptions,
    FaultsOptions,
    FuzzOptions,
    KillsOptions,
    PlacementOptions,
    RealOptions,
    RedactionOptions,
    RetentionOptions,
    ScaleOptions,
    ScanOptions,
    SizesOptions,
    SoakOptions,
    SpeedOptions,
    SweepOptions,
    TuneScanOptions,
    VerdictsOptions,
)
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.files import write_plain

__all__ = ["bench", "command", "compare", "tune_scan"]

_ARGUMENT = re.compile(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", re.MULTILINE | re.DOTALL)


def command(name: str, options: type, module: str, epilog: str = "") -> Callable[..., None]:
    """Return a command whose options are the fields of a class.

    Args:
        name: The command as it is written, without ``combee``.
        options: The class of options; its docstring has the help of each.
        module: What measures, imported when the command runs: ``--help`` needs none of it.
        epilog: What is said below the first line of the help.
    """
    fields = dataclasses.fields(options)
    hints = get_type_hints(options)
    said = {
        found[1]: " ".join(found[2].split())
        for found in _ARGUMENT.finditer(f"{inspect.getdoc(options)}\n")
    }
    parameters = [_parameter(one, hints[one.name], said[one.name]) for one in fields]

    def run(**given: Any) -> None:
        json_file, picture = given.pop("json"), given.pop("picture", None)
        for option, file in (("--json", json_file), ("--picture", picture)):
            if file is not None and not file.absolute().parent.is_dir():
                # Found now rather than after minutes of measuring.
                problem, remedy = "cannot be written", "Name a file in a folder that exists."
                raise ArgumentValueError(option, str(file), problem, remedy)
        chosen = {
            key: _read(f"--{_dashed(key)}", value, hints[key]) for key, value in given.items()
        }
        _measure(name, options(**chosen), importlib.import_module(module), json_file, picture)

    files = [("json", "Write figures, machine, versions and command here.")]
    files += (
        [("picture", "Draw it here, as SVG or PNG (needs matplotlib).")] if module in _DRAWN else []
    )
    for which, text in files:
        option = typer.Option(f"--{which}", help=text, rich_help_panel="Output")
        parameters.append(_keyword(which, Annotated[Path | None, option], None))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__name__ = name.rpartition(" ")[2].replace("-", "_")
    run.__doc__ = f"{(options.__doc__ or '').partition('Args:')[0].strip()}\n\n{epilog}".strip()
    return run


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _parameter(one: dataclasses.Field[Any], hint: Any, said: str) -> inspect.Parameter:
    names = [f"--{_dashed(one.name)}", *(["--seed"] if one.name == "seeds" else [])]
    plain = _plain(hint)
    kind: Any = plain if plain in (int, float, bool, Path) else str
    default = _written(one.default) if kind is str else one.default
    # By its own default an option may be left out; the class alone knows what it may be.
    return _keyword(one.name, Annotated[kind | None, typer.Option(*names, help=said)], default)


def _plain(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(part for part in get_args(hint) if part is not type(None))
    return _plain(get_args(hint)[0]) if get_origin(hint) is Annotated else hint


def _read(option: str, value: Any, hint: Any) -> Any:
    plain = _plain(hint)
    if not isinstance(value, str) or get_origin(plain) is not tuple:
        return value
    parts = [part.strip() for part in value.split(",") if part.strip()]
    item = _plain(get_args(plain)[0])
    if item is str or get_origin(item) is Literal:
        return tuple(parts)
    try:
        if item is float:
            return tuple(float(part) for part in parts)
        spans = [
            (int(first), int(last or first))
            for first, _, last in (part.partition("-") for part in parts)
        ]
    except ValueError as error:
        raise ArgumentValueError(
            option, value, "is no list of numbers", "Give 8,16,32, or 0-9."
        ) from error
    return tuple(number for first, last in spans for number in range(first, last + 1))


def _written(value: Any) -> str | None:
    if isinstance(value, tuple):
        numbers = all(isinstance(one, int) for one in value)
        if (
            numbers
            and len(value) > 2
            and list(value) == list(range(value[0], value[0] + len(value)))
        ):
            return f"{value[0]}-{value[-1]}"
        return ",".join(map(str, value))
    return None if value is None else str(value)


def _command_line(name: str, options: Any) -> str:
    parts = ["combee", *name.split()]
    for one in dataclasses.fields(options):
        value = getattr(options, one.name)
        if value is not None and value != one.default:
            flag = f"--{_dashed(one.name)}"
            # A switch is given by its name alone; all of them are off by default.
            parts += [flag] if value is True else [flag, str(_written(value))]
    return shlex.join(parts)


def _measure(
    name: str, options: Any, module: Any, json_file: Path | None, picture: Path | None
) -> None:
    from rich.console import Console

    from combee_bench.surroundings import environment

    rows: list[Any] = []
    for row in module.run(options):
        rows.append(row)
        # On stderr, so that stdout is the table alone.
        sys.stderr.write(f"{module.line(options, row)}\n")
        if json_file is not None:
            # Written as it grows: an hour of measuring is not lost with the last row.
            record = {
                "command": _command_line(name, options),
                **environment(),
                "simulated": (
                    getattr(options, "lm", None) is None
                    and getattr(options, "config", None) is None
                ),
                "options": dataclasses.asdict(options),
                "summary": module.summary(options, rows) if hasattr(module, "summary") else None,
                "rows": [dataclasses.asdict(one) for one in rows],
            }
            write_plain(json_file, json.dumps(record, indent=2, default=str) + "\n")
    if picture is not None:
        module.draw(options, rows, picture)
    console = Console()
    if not console.is_terminal:
        # Nobody's window bounds a file.
        console = Console(width=500)
    console.print(module.table(options, rows))
    if hasattr(module, "passed") and not module.passed(options, rows):
        raise typer.Exit(1)


_DRAWN = (
    "combee_bench.speed",
    "combee_bench.compare",
    "combee_bench.scale",
    "combee_bench.retention",
)

_COMPARABLE = """A method is called so many times faster than the first one only if it learned no
less: the 95 % interval of its held-out score minus the first one's (Tango's score interval over
examples, joined with Student's over seeds) must lie above -margin. Otherwise it is "not
comparable", which may also mean that there is too little held-out to tell: 2 points take 189
held-out examples at least, and 0.5 points 765, even where not one answer differs."""

_SPEED = f"""Without --lm no language model is involved: a service on this machine answers with
seeded latencies, and seconds are its simulated seconds. Every method gets the same program, data,
service and seed.

The program reasons before it answers, 300 tokens; the model is right where it was taught and
nowhere else, and a formula has up to three lessons. So nearly every lesson helps, serial dspy.GEPA
accepts and validates nearly every child, and multiples over it are large. They are smallest where
it skips most minibatches, as by what the ACE paper reports for DeepSeek-V3.1 on Formula: --lessons
formula --base-accuracy 0.675 --taught-accuracy 0.855. Show both.

\b
    combee bench speed --path data/formula --heldout 136 --seeds 0-9 --json speed.json
    combee bench speed --methods gepa,combee-epoch --path data/formula --temperature 1
    combee bench speed --lm openai/my-model --api-base http://gpu:8000/v1

{_COMPARABLE}

What this machine computes counts in the seconds too, and counts for more the smaller --time-scale
is: 1 costs as much time as it simulates, and is exact."""

_COMPARE = f"""Every method gets the same program, rows, budget in rollouts, seeds and endpoint.
Without --lm a service on this machine answers, which is no language model; its seconds are
simulated.

\b
    combee compare --methods gepa,ace,mipro,combee,combee-playbook --seeds 0-4
    combee compare --lm embedded --task route --methods gepa,combee --budget 120
    combee compare --config own.yaml --methods gepa,combee    # yours: a combee run file
    combee compare --lm openai/my-model --api-base http://gpu:8000/v1 --api-key-env MY_KEY

{_COMPARABLE} ★ marks the Pareto-best: no other method has at least its held-out score for at most
its cost."""

_TUNE = """Plants invented facts in records and in lists of lessons, asks the model to learn and to
merge, as a scan does, and reads off what it kept at each size: q(m). From that it predicts how many
lessons survive a scan of --reflections records for each p (copies) and fan-in, and names the
cheapest of the best.

A model is asked (sizes × calls × 3) times. Facts that are planted are short and unlike each other;
real lessons are neither, so take q(m) as an upper bound."""

_CAPACITY = """No language model is involved. The client is not told the number of slots. The exit
code is 1 where a rollout failed, or where rollouts in flight after the warm-up are not within 10 %
of the slots of a service that rejects."""

_RETENTION = """Each reflection says one invented fact, so what came back is counted and not judged:
a fact is kept where its code stands in one line with its goods or its port. Nothing has to be
learned for it, so a small model can show it. Without --lm the law of one call is ours, and decides
what is seen: compare it with a model's curve.

\b
    combee bench retention --lm embedded --file qwen.gguf --json qwen.json --picture qwen.svg
    combee bench retention --lm openai/my-model --api-base http://gpu:8000/v1 --slots 32"""

_REAL = """The order of the runs is drawn before the first. What each run came to is a file in
--folder, so that an interruption costs the run under way; the same command goes on. With --hours
the budget is what fits.

\b
    combee bench real --folder study --file qwen.gguf --hours 3
    combee bench real --folder study --lm openai/my-model --api-base http://gpu:8000/v1 \\
        --slots 64 --tokens 2000000

Held-out rows are read after each run and are in no method's budget. dspy.GEPA looks at the budget
between iterations, and may pass it by one. The page real.md in the folder says what may be
concluded, and what was learned."""

_SWEEP = """No child is refused and no parent is chosen, so that what differs between two rows is
the aggregator and the size, and nothing else. On the simulated service the planted lessons are
known: "lessons kept" counts those in the last instruction, out of those that the epoch's failures
could teach.

How much one call takes in is a law of ours, and the law decides who wins: under attention and
writing whatever ends in one call must lose; reading spares short lines; under collapse the paper's
result holds; under dilution, through the same published figures, it fails; under unlimited nobody
needs an aggregator. So on the simulated service the table decides nothing. Which aggregator is best
for a model is measured with --lm."""

_SCALE = """No language model is involved. Each scan runs in a process of its own, so its memory is
its own. The exit code is 1 where a scan failed or took more than 1 GiB."""

_KILLS = """No language model is involved. Each run is a process of its own that gets SIGKILL once
its journal holds a number of effects drawn by the seed, or where --runs says, and is started again.
The exit code is 1 where a run did not end as the one that was left alone."""

_FAULTS = """No language model is involved: a server on this machine stands before the simulated
service, counts every request and spoils some of the answers. The exit code is 1 where a fault of
the service was scored, made another program, or had a right answer bought twice. What a model may
say itself is shown, and decides nothing."""

_FUZZ = """No language model is involved. Answers of the simulated service are changed on their way:
cut, spliced with marks, control codes and what is no text, nested, repeated. The exit code is 1
where anything but an error of the package's own was raised, a placeholder or a bullet was lost, or
a megabyte took more than a second."""

_DAMAGE = """No run and no service is involved. The exit code is 1 where a journal that was changed
was opened with another content, or written over."""

_SOAK = """No language model is involved. The exit code is 1 where a compile left handles or threads
behind."""

_VERDICTS = """No language model is involved: scores are drawn, so the truth is known. Every study
is judged by the functions that runs and tables are judged by. A rate is how often the verdict was
the one named, where by the truth stated it should not be, or where power is stated, should be."""

_CANARY = """No language model is involved: the program sleeps, and scores are drawn, so the truth
is known. Latencies are real ones, of this machine, over loopback. Needs MLflow for all parts but
the rule."""
_DIAGNOSE = """No language model is involved: scores are drawn, so the truth is known. Each search
validates 31 candidates in 1,200 rollouts. Converged: from 40 to 65 % by exp(−10 x), x the share of
the rollouts. Rising: the same in a line. Flat: 40 % throughout. Noisy: the converged one on 20
examples, with a coin for 40 % of the answers; right is to say that it cannot be told. The worst
error is to say go where it is not converged."""

bench = typer.Typer(help="Measure Combee against its peers.", no_args_is_help=True)
for _name, _options, _epilog in (
    ("speed", SpeedOptions, _SPEED),
    ("client", ClientOptions, ""),
    ("scale", ScaleOptions, _SCALE),
    ("sweep", SweepOptions, _SWEEP),
    ("scan", ScanOptions, ""),
    ("placement", PlacementOptions, ""),
    ("capacity", CapacityOptions, _CAPACITY),
    ("retention", RetentionOptions, _RETENTION),
    ("real", RealOptions, _REAL),
    ("ceiling", CeilingOptions, ""),
    ("kills", KillsOptions, _KILLS),
    ("faults", FaultsOptions, _FAULTS),
    ("fuzz", FuzzOptions, _FUZZ),
    ("damage", DamageOptions, _DAMAGE),
    ("soak", SoakOptions, _SOAK),
    ("sizes", SizesOptions, ""),
    ("verdicts", VerdictsOptions, _VERDICTS),
    ("diagnose", DiagnoseOptions, _DIAGNOSE),
    ("redaction", RedactionOptions, ""),
    ("canary", CanaryOptions, _CANARY),
):
    bench.command(_name)(command(f"bench {_name}", _options, f"combee_bench.{_name}", _epilog))

compare = command("compare", CompareOptions, "combee_bench.compare", _COMPARE)
tune_scan = command("tune-scan", TuneScanOptions, "combee_bench.tuning", _TUNE)
