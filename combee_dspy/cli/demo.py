"""``combee demo``: watch a prompt get better."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from combee_dspy.cli._exit import EXIT_CODES, Debug, guarded
from combee_dspy.exceptions import ArgumentValueError

__all__ = ["HELP", "demo"]

HELP = f"""Watch Combee teach a language model, on examples it has not seen.

Without options: which of some finance formulas does a question call for, with a
tiny model that runs inside this process, in at most five minutes on two cores.

\b
    combee demo
    combee demo --seed 3 --seconds 120
    combee demo --lm openai/gpt-5-nano
    combee demo --lm openai/my-model --api-base http://gpu:8000/v1 --api-key-env MY_KEY
    combee demo --lm openai/gpt-5-nano --benchmark formula --path data/formula

It prints held-out scores before and after with an interval, tokens and seconds
by role, the learned prompt, and where to look at the run. If the prompt did not
get better, it says so.

{EXIT_CODES}"""


_BUDGET = "Budget (the run stops softly at the first that is reached)"
_MODEL = "Model and task"


def _budget(what: str) -> Any:
    return typer.Option(help=f"At most so many {what}.", show_default=False, rich_help_panel=_BUDGET)


@guarded
def demo(  # noqa: PLR0913 - one parameter an option
    lm: Annotated[
        str | None,
        typer.Option(help="Model, by DSPy's name; the embedded one by default.", rich_help_panel=_MODEL),
    ] = None,
    api_base: Annotated[
        str | None, typer.Option(help="Address of an OpenAI-compatible service.", rich_help_panel=_MODEL)
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable that holds the key.", rich_help_panel=_MODEL)
    ] = None,
    benchmark: Annotated[
        str, typer.Option(help="A benchmark's name; see combee plugins.", rich_help_panel=_MODEL)
    ] = "formula-mini",
    path: Annotated[
        Path | None, typer.Option(help="Where the benchmark's rows are, if not bundled.", rich_help_panel=_MODEL)
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 2,
    rollouts: Annotated[int | None, _budget("rollouts")] = None,
    calls: Annotated[int | None, _budget("LM calls")] = None,
    tokens: Annotated[int | None, _budget("tokens")] = None,
    dollars: Annotated[float | None, _budget("dollars")] = None,
    seconds: Annotated[float | None, _budget("seconds")] = None,
    no_mlflow: Annotated[bool, typer.Option("--no-mlflow", help="Do not record the run in MLflow.")] = False,
    debug: Debug = False,
) -> None:
    """Watch Combee teach a language model, on examples it has not seen."""
    if lm is None and (api_base or api_key_env):
        option = "--api-base" if api_base else "--api-key-env"
        problem = "says where a model is, but no model is named"
        raise ArgumentValueError(option, api_base or api_key_env, problem, "Add --lm, such as --lm openai/my-model.")
    limits = {"rollouts": rollouts, "calls": calls, "tokens": tokens, "dollars": dollars, "seconds": seconds}
    for name, value in limits.items():
        if value is not None and value <= 0:
            raise ArgumentValueError(f"--{name}", value, "is not positive", "Leave it out for no limit.")
    # dspy takes seconds to import, and --help needs none of it.
    from combee_dspy.demo import DemoOptions, run_demo

    run_demo(
        DemoOptions(
            lm=lm,
            api_base=api_base,
            api_key_env=api_key_env,
            benchmark=benchmark,
            path=path,
            seed=seed,
            rollouts=rollouts,
            calls=calls,
            tokens=tokens,
            dollars=dollars,
            seconds=seconds,
            mlflow=not no_mlflow,
        )
    )
