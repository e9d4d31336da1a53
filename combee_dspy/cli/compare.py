"""``combee compare``: several methods on one benchmark and one endpoint."""

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

    from combee_dspy.baselines import BaselineResult
    from combee_dspy.bench.side_by_side import CompareOptions
    from combee_dspy.bench.side_statistics import MethodSummary

__all__ = ["HELP", "compare"]

HELP = f"""Several methods side by side: held-out score against seconds, tokens and dollars.

Every method gets the same program, rows, budget in rollouts, seeds and endpoint.
Without --lm a service on this machine answers, which is no language model; its
seconds are simulated, and its figures are labelled so.

\b
    combee compare
    combee compare --methods gepa,ace,mipro,combee --seeds 0-4
    combee compare --methods ace --budget 300
    combee compare --lm embedded --methods gepa,combee --budget 120
    combee compare --lm openai/my-model --api-base http://gpu:8000/v1 --api-key-env MY_KEY
    combee compare --json compare.json --picture compare.svg

A method is called so many times faster than the first one only if it learned no
less: the 95 % interval of its held-out score minus the first one's, paired over
examples and seeds, must lie above -0.05. ★ marks the Pareto-best: no other method
has at least its held-out score for at most its cost.

{EXIT_CODES}"""

_MODEL, _DATA = "Model", "Data"

_EMBEDDED_PARAMS = {"task": "route", "levels": (1,), "formulas": 6}
"""The task that the embedded model can learn (see ``combee demo``)."""
_EMBEDDED_THREADS = 4


def _rows(what: str) -> Any:
    return typer.Option(min=1, help=f"{what} examples.", rich_help_panel=_DATA)


@guarded
def compare(  # noqa: PLR0913 - one parameter an option
    methods: Annotated[
        str, typer.Option(help="Methods, by comma; the first is the reference. See combee plugins.")
    ] = "gepa,mipro,combee",
    seeds: Annotated[str, typer.Option(help="A seed, or first-last.")] = "0",
    budget: Annotated[int, typer.Option(min=1, help="Rollouts that each method may buy.")] = 600,
    lm: Annotated[
        str | None,
        typer.Option(help="embedded, or a model by DSPy's name; simulated by default.", rich_help_panel=_MODEL),
    ] = None,
    reflection_lm: Annotated[
        str | None, typer.Option(help="Another model that writes prompts.", rich_help_panel=_MODEL)
    ] = None,
    api_base: Annotated[
        str | None, typer.Option(help="Address of an OpenAI-compatible service.", rich_help_panel=_MODEL)
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable that holds the key.", rich_help_panel=_MODEL)
    ] = None,
    prices: Annotated[
        str | None,
        typer.Option(help="Dollars per million prompt,completion tokens.", rich_help_panel=_MODEL),
    ] = None,
    benchmark: Annotated[str, typer.Option(help="A benchmark's name.", rich_help_panel=_DATA)] = "formula-mini",
    task: Annotated[
        str | None, typer.Option(help="Task of formula-mini: compute or route.", rich_help_panel=_DATA)
    ] = None,
    path: Annotated[
        Path | None, typer.Option(help="Where the benchmark's rows are, if not bundled.", rich_help_panel=_DATA)
    ] = None,
    train: Annotated[int, _rows("Training")] = 168,
    validation: Annotated[int, _rows("Validation")] = 48,
    heldout: Annotated[int, _rows("Held-out")] = 100,
    threads: Annotated[int | None, typer.Option(min=1, help="Calls at once; 32, or 4 with the embedded model.")] = None,
    time_scale: Annotated[float, typer.Option(help="Wall seconds for one simulated second, above 0.")] = 0.2,
    mlflow: Annotated[bool, typer.Option("--mlflow", help="Record every run in MLflow, side by side.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write figures, curves, machine, versions and command here.")
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw held-out against cost here, as SVG.")] = None,
    debug: Debug = False,
) -> None:
    """Several methods side by side: held-out score against seconds, tokens and dollars."""
    for option, file in (("--json", json_file), ("--picture", picture)):
        if file is not None and (file.is_dir() or not file.absolute().parent.is_dir()):
            # Found now rather than after minutes of measuring.
            raise ArgumentValueError(option, str(file), "cannot be written", "Name a file in a folder that exists.")
    if task is not None and benchmark != "formula-mini":
        raise ArgumentValueError("--task", task, "is a choice of formula-mini only", "Leave it out.")
    # dspy takes seconds to import, and --help needs none of it.
    from combee_dspy.bench.side_by_side import CompareOptions

    embedded = lm == "embedded"
    options = CompareOptions(
        methods=tuple(name.strip() for name in methods.split(",") if name.strip()),
        seeds=_seeds(seeds),
        budget=budget,
        train=train,
        validation=validation,
        heldout=heldout,
        benchmark=benchmark,
        params=_params(benchmark, task, path, embedded),
        lm=lm,
        reflection_lm=reflection_lm,
        api_base=api_base,
        api_key_env=api_key_env,
        threads=threads or (_EMBEDDED_THREADS if embedded else 32),
        time_scale=time_scale,
        prices=_prices(prices),
        mlflow=mlflow,
    )
    _measure(options, json_file, picture, _command(options, task, path, prices))


def _params(benchmark: str, task: str | None, path: Path | None, embedded: bool) -> dict[str, Any]:
    if path is not None:
        return {"path": str(path)}
    if benchmark != "formula-mini":
        return {}
    if task is None and embedded:
        return dict(_EMBEDDED_PARAMS)
    return {"task": task or "compute"}


def _seeds(text: str) -> tuple[int, ...]:
    first, _, last = text.partition("-")
    try:
        found = tuple(range(int(first), int(last or first) + 1))
    except ValueError as error:
        raise ArgumentValueError("--seeds", text, "is no seed and no range", "Give 0, or 0-4.") from error
    if not found:
        raise ArgumentValueError("--seeds", text, "holds no seed", "Give 0, or 0-4.")
    return found


def _prices(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        prompt, completion = (float(part) for part in text.split(","))
    except ValueError as error:
        remedy = "Give dollars per million tokens, for example 0.25,2."
        raise ArgumentValueError("--prices", text, "are not two numbers", remedy) from error
    return prompt, completion


def _command(options: CompareOptions, task: str | None, path: Path | None, prices: str | None) -> str:
    seeds = f"{options.seeds[0]}-{options.seeds[-1]}" if len(options.seeds) > 1 else str(options.seeds[0])
    parts = ["combee", "compare", "--methods", ",".join(options.methods), "--seeds", seeds]
    for name in ("budget", "train", "validation", "heldout", "benchmark", "threads", "time_scale"):
        parts += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    for name in ("lm", "reflection_lm", "api_base", "api_key_env"):
        if getattr(options, name) is not None:
            parts += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    for option, value in (("--task", task), ("--path", path), ("--prices", prices)):
        parts += [] if value is None else [option, str(value)]
    return shlex.join(parts + (["--mlflow"] if options.mlflow else []))


def _measure(options: CompareOptions, json_file: Path | None, picture: Path | None, command: str) -> None:
    from rich.console import Console

    from combee_dspy.bench import side_by_side
    from combee_dspy.bench.side_picture import compare_svg
    from combee_dspy.bench.side_statistics import summarize

    results: list[BaselineResult] = []
    summaries: list[MethodSummary] = []
    for result in side_by_side.run_compare(options):
        results.append(result)
        sys.stderr.write(f"{options.label}: {_line(result)}\n")
        if len(results) < len(options.methods):
            continue
        # Written as it grows: hours of measuring are not lost with the last run.
        summaries = summarize([side_by_side.figures_of(one) for one in results])
        if json_file is not None:
            record = side_by_side.compare_record(options, results, summaries, command)
            json_file.write_text(json.dumps(record, indent=2, default=str) + "\n", encoding="utf-8")
        if picture is not None:
            picture.write_text(compare_svg(summaries, _title(options)), encoding="utf-8")
    Console().print(_table(options, summaries, results))


def _line(result: BaselineResult) -> str:
    found = result.heldout
    held = "" if found is None else f", held-out {found.before:.2f} → {found.after:.2f}"
    return f"{result.method} seed {result.seed}: {result.rollouts} rollouts, {result.seconds:,.0f} s{held}"


def _title(options: CompareOptions) -> str:
    seeds = f"{len(options.seeds)} seeds" if len(options.seeds) > 1 else f"seed {options.seeds[0]}"
    data = f"{options.benchmark}, {options.heldout} held-out examples, {options.budget} rollouts each, {seeds}"
    return f"{options.label}: {data}"


def _table(options: CompareOptions, summaries: Sequence[MethodSummary], results: Sequence[BaselineResult]) -> Table:
    from rich.table import Table

    from combee_dspy.bench import MARGIN

    first = options.methods[0]
    notes = []
    if any(one.best_on for one in summaries):
        notes.append("★ Pareto-best: no other method has at least its held-out score for at most this cost")
    if options.lm is None:
        notes.append(f"wall seconds × {1 / options.time_scale:g} = simulated seconds")
    if any(one.versus is not None and not one.versus.comparable for one in summaries):
        notes.append(f"not comparable: held-out is not shown to be within {MARGIN:g} of {first}'s")
    if len(options.seeds) == 1:
        notes.append("one seed: intervals say nothing about other seeds")
    told = (one for one in results if one.seed == options.seeds[0])
    notes += [f"{one.method}: {note}" for one in told for note in one.notes]
    table = Table(title=_title(options), caption="\n".join(notes), caption_justify="left")
    table.add_column("")
    for one in summaries:
        table.add_column(one.method, justify="right", overflow="fold")
    versions = {result.method: result.versions for result in results}
    columns = [_cells(one, versions[one.method]) for one in summaries]
    for number, title in enumerate(_TITLES):
        table.add_row(title.format(first=first), *(column[number] for column in columns))
    return table


_TITLES = (
    "version",
    "rollouts",
    "validation",
    "held-out before",
    "held-out after",
    "95 % interval",
    "gain, 95 % interval",
    "held-out minus {first}'s",
    "seconds",
    "tokens",
    "dollars",
    "times faster than {first}",
)


def _cells(one: MethodSummary, versions: Any) -> tuple[str, ...]:
    versus = one.versus
    times, against = "reference", ""
    if versus is not None:
        times = "not comparable" if versus.times_faster is None else f"{versus.times_faster:.1f} ×"
        against = f"{versus.difference:+.3f} [{versus.low:+.3f}, {versus.high:+.3f}]"

    def cost(axis: str, shown: str) -> str:
        return f"★ {shown}" if axis in one.best_on else shown

    return (
        ", ".join(f"{name} {version}" for name, version in versions.items() if name != "combee-dspy") or "",
        f"{one.rollouts:,.0f}",
        "" if one.validation is None else f"{one.validation:.3f}",
        f"{one.before:.3f}",
        f"{one.heldout.mean:.3f}",
        f"[{one.heldout.low:.3f}, {one.heldout.high:.3f}]",
        f"{one.gain.mean:+.3f} [{one.gain.low:+.3f}, {one.gain.high:+.3f}]",
        against,
        cost("seconds", f"{one.seconds:,.0f}"),
        cost("tokens", f"{one.tokens:,.0f}"),
        "unknown" if one.dollars is None else cost("dollars", f"{one.dollars:.4f}"),
        times,
    )
