"""``combee demo``: watch a prompt get better.

The demo is a run, as a file of ``combee run`` would describe it. What was tuned for it is in
:data:`EMBEDDED`: on rows of other seeds, and on the held-out rows of seeds 0 and 1; the demo itself
runs seed 2 (see the results page).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from combee_dspy.cli._tables import show_facts
from combee_dspy.exceptions import ArgumentError, ArgumentValueError

if TYPE_CHECKING:
    import dspy

    from combee_dspy.cli._plan import Plan

# A gain of 0.21, the mean of seeds 2 to 7, where 0.46 of the answers change: 48 held-out questions
# tell it from none in 57 of 100 runs, 144 in 96 (Connor's formula, as in detectable_difference).
QUESTIONS: Mapping[str, Any] = {
    "task": "route",
    "levels": [1],
    "formulas": 6,
    "train": 72,
    "validation": 24,
    "heldout": 144,
}
"""Parameters of formula-mini for the embedded model."""

# Written lessons teach this model nothing, and its own are no lessons: demonstrations alone.
_SWAP = {"name": "few-shot-swap", "params": {"labelled": True}}
EMBEDDED: Mapping[str, Any] = {
    "strategies": {"operators": [_SWAP, _SWAP]},
    "budget": {"rollouts": 190},
    "num_threads": 4,
    # The budget pays for two large updates: the second is to know of the first.
    "reflection_minibatch_size": 18,
    "search": {"keep": "pareto", "staleness": 0},
    "use_merge": False,
}
"""The run of the embedded model."""

_REMOTE: Mapping[str, Any] = {
    "strategies": {"operators": ["insert", "few-shot-swap"]},
    "budget": {"rollouts": 1_000},
    "num_threads": 32,
}
_ABOUT_EMBEDDED = """
This model is real but tiny: 135 million parameters, on your processor. It learns from worked \
examples alone."""
# Of the runs on the results page: 144 questions tell the mean gain from none, and not the smallest.
_SHOWN = """\
What the demo shows: with all of six seeds (2 to 7) the score on held-out questions rose, by 0.21 \
on average. Five of these gains are beyond chance; that of seed 4, 0.11, is not."""
_ELSEWHERE = """\
Point the demo at a model of yours:
  combee demo --lm openai/MODEL [--api-base URL] [--api-key-env NAME]
  combee demo --lm openai/MODEL --benchmark formula --path DIR"""


def _option(text: str) -> Any:
    return typer.Option(help=text, show_default=False)


def demo(  # noqa: PLR0913 - one parameter an option
    lm: Annotated[
        str | None, _option("Model, by DSPy's name; the embedded one by default.")
    ] = None,
    model_file: Annotated[
        Path | None, _option("A GGUF file that the embedded model is read from.")
    ] = None,
    api_base: Annotated[str | None, _option("Address of an OpenAI-compatible service.")] = None,
    api_key_env: Annotated[str | None, _option("Environment variable that holds the key.")] = None,
    benchmark: Annotated[
        str, typer.Option(help="A benchmark's name; see combee benchmarks.")
    ] = "formula-mini",
    path: Annotated[Path | None, _option("Where the benchmark's rows are, if not bundled.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 2,
    rollouts: Annotated[int | None, _option("Budget: at most so many rollouts.")] = None,
    calls: Annotated[int | None, _option("Budget: at most so many LM calls.")] = None,
    tokens: Annotated[int | None, _option("Budget: at most so many tokens.")] = None,
    dollars: Annotated[float | None, _option("Budget: at most so many dollars.")] = None,
    seconds: Annotated[float | None, _option("Budget: at most so many seconds.")] = None,
    log_dir: Annotated[Path | None, _option("Folder to keep the run's journal in.")] = None,
    mlflow: Annotated[bool, typer.Option("--mlflow", help="Record the run in MLflow.")] = False,
    recorded: Annotated[
        bool,
        typer.Option("--recorded", help="Replay a recorded run of a larger model; ask none."),
    ] = False,
) -> None:
    """Watch Combee teach a language model, on examples it has not seen.

    Without options, a tiny model inside this process learns which finance formula a
    question calls for. It takes about three minutes on two idle cores.

    \b
        combee demo
        combee demo --recorded
        combee demo --seed 3 --seconds 120 --log-dir runs/demo
        combee demo --model-file qwen.gguf
        combee demo --lm openai/gpt-5-nano
        combee demo --lm openai/my-model --api-base http://gpu:8000/v1 --api-key-env MY_KEY
        combee demo --lm openai/gpt-5-nano --benchmark formula --path data/formula

    It prints held-out scores before and after, what that cost, and the learned prompt.
    If the prompt did not get better, it says so.
    """  # noqa: D301 - the backspace keeps lines apart on the help page
    if recorded:
        _show_recorded(log_dir)
        return
    if lm is None and (api_base or api_key_env):
        option = "--api-base" if api_base else "--api-key-env"
        problem = "says where a model is, but no model is named"
        remedy = "Add --lm, such as --lm openai/my-model."
        raise ArgumentValueError(option, api_base or api_key_env, problem, remedy)
    if model_file is not None and (lm is not None or not model_file.is_file()):
        problem = "is no file" if lm is None else "is given beside --lm, which names another model"
        remedy = "Give the path of a GGUF file, without --lm."
        raise ArgumentValueError("--model-file", str(model_file), problem, remedy)
    run = EMBEDDED if lm is None else _REMOTE
    embedded = {"slots": run["num_threads"], "file": model_file and str(model_file)}
    remote = {"api_base": api_base, "api_key_env": api_key_env}
    limits = {
        "rollouts": rollouts,
        "calls": calls,
        "tokens": tokens,
        "dollars": dollars,
        "seconds": seconds,
    }
    is_tuned = lm is None and benchmark == "formula-mini"
    params = {**QUESTIONS, "seed": seed} if is_tuned else {}
    file = {
        **run,
        "data": {
            "benchmark": {
                "name": benchmark,
                "params": params | ({"path": str(path)} if path else {}),
            }
        },
        "lms": {"task": {"model": lm or "embedded", **(remote if lm else embedded)}},
        "budget": {**run["budget"], **_chosen(limits)},
        "seed": seed,
        **_chosen({"log_dir": log_dir and str(log_dir)}),
        **({"tracker": ["progress", "mlflow"]} if mlflow else {}),
    }
    try:
        _run(file)
    except ArgumentError as error:
        *section, name = error.argument.split(".")
        if section not in (["budget"], ["lms", "task"]):
            raise
        # The person has written an option, and no file.
        remedy = error.remedy.replace("combee run --help, and --schema", "combee demo --help")
        option = f"--{name.replace('_', '-')}"
        raise ArgumentValueError(option, error.value, error.problem, remedy) from None


def _chosen(options: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in options.items() if value is not None}


def _run(file: Mapping[str, Any]) -> None:
    """Run what a file's mapping describes, and print it."""
    # dspy takes seconds to import, and --help needs none of it.
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    from combee_dspy.cli._plan import plan_run
    from combee_dspy.cli.run import compiled

    plan = plan_run(file, Path.cwd())
    limits = ", ".join(f"{most:g} {name}" for name, most in file["budget"].items())
    show_facts(_heading(plan, limits))
    if plan.proposer.model == "embedded" and not plan.proposer.file:
        typer.echo(_ABOUT_EMBEDDED)
        if plan.tasks[0].benchmarks[0][0].name == "formula-mini":
            typer.echo(_SHOWN)
        typer.echo(_ELSEWHERE)
    (result,) = compiled(plan)
    if result.report is None or result.program is None:
        raise result.error or RuntimeError("the demo ended without a report")
    show_facts(result.report.facts())
    prompt = Panel(Text(_prompt(result.program)), title="the learned prompt", title_align="left")
    Console().print(prompt)
    if not result.report.page:
        typer.echo("Report: none. Add --log-dir DIR to keep the run and its report.")


def _heading(plan: Plan, limits: str) -> dict[str, object]:
    ((benchmark, _),) = plan.tasks[0].benchmarks
    task = benchmark.signature.instructions.splitlines()[0]
    learn, compare, heldout = map(len, benchmark.splits)
    return {
        "model": plan.proposer.model,
        "task": f"{benchmark.name}/{benchmark.task}: {task}",
        "questions": f"{learn} to learn from, {compare} to compare candidates on, {heldout} held"
        " out until the end",
        "source": benchmark.source,
        "budget": f"{limits}, seed {plan.config.seed}",
    }


def _prompt(program: dspy.Module) -> str:
    lines: list[str] = []
    for name, predictor in program.named_predictors():
        lines += [f"[{name}]", predictor.signature.instructions]
        for row in predictor.demos:
            lines.append(f"  for example — {'; '.join(f'{key}: {row[key]}' for key in row)}")
    return "\n".join(lines)


def _show_recorded(log_dir: Path | None) -> None:
    from rich.console import Console

    from combee_dspy.recorded import show_recorded

    folder = Path(tempfile.mkdtemp(), "recorded") if log_dir is None else log_dir
    page = show_recorded(folder, Console())
    typer.echo(f"Report: {page} (combee report {folder} --open)")
