"""Commands of ``combee``: ``bench …``, ``compare`` and ``tune-scan``.

A command is a class of options and a module that measures. The module has ``run(options)``, which
yields one row after another; ``line(options, row)`` and ``table(options, rows)``, without which the
rows, or their summary, are written as they are; and, where it makes sense,
``summary(options, rows)`` for the JSON file.
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
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer

from combee_bench.options import (
    CeilingOptions,
    CompareOptions,
    RealOptions,
    RetentionOptions,
    SpeedOptions,
    TuneScanOptions,
)
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.files import write_plain

__all__ = ["bench", "command", "compare", "tune_scan"]

_ARGUMENT = re.compile(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", re.MULTILINE | re.DOTALL)


def command(name: str, options: type, module: str, epilog: str = "") -> Callable[..., None]:
    """Return a command whose options are the fields of a class.

    Args:
        name: How the command is called.
        options: The class of options; its docstring and its bases' have the help of each.
        module: What measures, imported when the command runs: ``--help`` needs none of it.
        epilog: What the help says below its first line.
    """
    hints = get_type_hints(options, include_extras=True)
    texts = {
        match[1]: " ".join(match[2].split())
        for base in reversed(options.__mro__)
        for match in _ARGUMENT.finditer(f"{inspect.cleandoc(base.__doc__ or '')}\n")
    }
    # Its own options come first, those that others have as well last.
    own = sorted(
        dataclasses.fields(options), key=lambda field: field.name not in options.__annotations__
    )
    parameters = [_parameter(field, hints[field.name], texts[field.name]) for field in own]

    def run(**values: Any) -> None:
        file = values.pop("json")
        if file is not None and not file.absolute().parent.is_dir():
            # Refused now rather than after minutes of measuring.
            problem, remedy = "cannot be written", "Name a file in a folder that exists."
            raise ArgumentValueError("--json", str(file), problem, remedy)
        chosen = {key: _read(_flag(key), value, hints[key]) for key, value in values.items()}
        _measure(name, options(**chosen), importlib.import_module(module), file)

    text = "Write figures, machine, versions and command here."
    option = typer.Option("--json", help=text, rich_help_panel="Output")
    parameters.append(_keyword("json", Annotated[Path | None, option], None))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__name__ = name.rpartition(" ")[2].replace("-", "_")
    run.__doc__ = f"{(options.__doc__ or '').partition('Args:')[0].strip()}\n\n{epilog}".strip()
    return run


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _parameter(field: dataclasses.Field[Any], hint: Any, text: str) -> inspect.Parameter:
    flags = [_flag(field.name), *(["--seed"] if field.name == "seeds" else [])]
    plain = _plain(hint)
    kind: Any = plain if plain in (int, float, bool, Path) else str
    default = _write(field.default) if kind is str else field.default
    # By its own default an option may be left out; the class alone knows what it may be.
    return _keyword(field.name, Annotated[kind | None, typer.Option(*flags, help=text)], default)


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
    if item not in (int, float):
        return tuple(parts)
    try:
        if item is float:
            return tuple(float(part) for part in parts)
        spans = [part.partition("-") for part in parts]
        return tuple(
            number
            for first, _, last in spans
            for number in range(int(first), int(last or first) + 1)
        )
    except ValueError as error:
        problem, remedy = "is no list of numbers", "Give 8,16,32, or 0-9."
        raise ArgumentValueError(option, value, problem, remedy) from error


def _write(value: Any) -> str | None:
    if not isinstance(value, tuple):
        return None if value is None else str(value)
    numbers = len(value) > 2 and all(isinstance(part, int) for part in value)
    if numbers and value == tuple(range(value[0], value[0] + len(value))):
        return f"{value[0]}-{value[-1]}"
    return ",".join(map(str, value))


def _command_line(name: str, options: Any) -> str:
    parts = name.split()
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if value is not None and value != field.default:
            # A switch is its name alone; all of them are off by default.
            parts += (
                [_flag(field.name)] if value is True else [_flag(field.name), str(_write(value))]
            )
    return shlex.join(parts)


def _measure(name: str, options: Any, module: Any, json_file: Path | None) -> None:
    from rich.console import Console

    from combee_bench.surroundings import environment
    from combee_bench.tables import by_fields

    rows: list[Any] = []
    for row in module.run(options):
        rows.append(row)
        # On stderr, so that stdout is the table alone.
        sys.stderr.write(f"{module.line(options, row) if hasattr(module, 'line') else row}\n")
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
                "rows": [dataclasses.asdict(row) for row in rows],
            }
            write_plain(json_file, json.dumps(record, indent=2, default=str) + "\n")
    console = Console()
    if not console.is_terminal:
        # Nobody's window bounds a file.
        console = Console(width=500)
    if hasattr(module, "table"):
        table = module.table(options, rows)
    elif hasattr(module, "summary"):
        table = by_fields(name, module.summary(options, rows))
    else:
        fields = [field.name for field in dataclasses.fields(rows[0])]
        table = by_fields(name, [{field: getattr(row, field) for field in fields} for row in rows])
    console.print(table)


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

_COMPARE = f"""Every method gets the same program, rows, budget, seeds and endpoint.
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


_RETENTION = """Each reflection says one invented fact, so what came back is counted and not judged:
a fact is kept where its code stands in one line with its goods or its port. Nothing has to be
learned for it, so a small model can show it. Without --lm the law of one call is ours, and decides
what is seen: compare it with a model's curve.

\b
    combee bench retention --lm embedded --file qwen.gguf --json qwen.json
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

bench = typer.Typer(help="Measure Combee against its peers.", no_args_is_help=True)
for _name, _options, _epilog in (
    ("speed", SpeedOptions, _SPEED),
    ("retention", RetentionOptions, _RETENTION),
    ("real", RealOptions, _REAL),
    ("ceiling", CeilingOptions, ""),
):
    bench.command(_name)(
        command(f"combee bench {_name}", _options, f"combee_bench.{_name}", _epilog)
    )

compare = command("combee compare", CompareOptions, "combee_bench.compare", _COMPARE)
tune_scan = command("combee tune-scan", TuneScanOptions, "combee_bench.tuning", _TUNE)
