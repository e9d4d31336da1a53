"""``combee demo``: watch a prompt get better."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from combee_dspy.exceptions import ArgumentValueError

__all__ = ["demo"]


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
        bool, typer.Option("--recorded", help="Show a recorded run of a larger model; ask none.")
    ] = False,
) -> None:
    """Watch Combee teach a language model, on examples it has not seen.

    Without options: which of some finance formulas does a question call for, with a
    tiny model that runs inside this process, in about three minutes on two idle cores.

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
    options = dict(locals())
    del options["recorded"]
    if recorded:
        _show_recorded(log_dir)
        return
    if lm is None and (api_base or api_key_env):
        option = "--api-base" if api_base else "--api-key-env"
        problem = "says where a model is, but no model is named"
        raise ArgumentValueError(
            option, api_base or api_key_env, problem, "Add --lm, such as --lm openai/my-model."
        )
    if model_file is not None and (lm is not None or not model_file.is_file()):
        problem = "is no file" if lm is None else "is given beside --lm, which names another model"
        raise ArgumentValueError(
            "--model-file", str(model_file), problem, "Give the path of a GGUF file, without --lm."
        )
    # dspy takes seconds to import, and --help needs none of it.
    from combee_dspy.demo import DemoOptions, run_demo

    run_demo(DemoOptions(**options))


def _show_recorded(log_dir: Path | None) -> None:
    from rich.console import Console

    from combee_dspy.recorded import show_recorded

    folder = Path(tempfile.mkdtemp(), "recorded") if log_dir is None else log_dir
    page = show_recorded(folder, Console())
    print(f"Report: {page} (combee report {folder} --open)")  # noqa: T201 - the command's answer
