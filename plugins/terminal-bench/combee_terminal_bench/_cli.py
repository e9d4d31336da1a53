"""``combee terminal-bench``: build Harbor's environment, and see whether tasks are sound."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal

import typer
from combee_agents import EnvironmentFaultError
from combee_dspy.exceptions import ArgumentError, ArgumentValueError, CombeeError

from combee_terminal_bench._environment import HarborEnvironment, judge
from combee_terminal_bench._setup import set_up
from combee_terminal_bench._tasks import read_tasks

__all__ = ["app"]

app = typer.Typer(
    help="Terminal-Bench: build Harbor's environment, check tasks.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_BAD_INPUT, _DATA_SOURCE = 2, 4


def _end(error: Exception) -> typer.Exit:
    typer.echo(f"error: {error}", err=True)
    return typer.Exit(_BAD_INPUT if isinstance(error, ArgumentError) else _DATA_SOURCE)


@app.command()
def setup(
    python: Annotated[str | None, typer.Option(help="A Python 3.12 or newer.", show_default=False)] = None,
    venv: Annotated[Path | None, typer.Option(help="Where to build.", show_default=False)] = None,
) -> None:
    """Build Harbor's own environment from PyPI, every package pinned by hash, unless it is there.

    It is kept in combee_dspy/terminal-bench below $XDG_CACHE_HOME or ~/.cache.
    """
    try:
        typer.echo(set_up(venv, python))
    except CombeeError as error:
        raise _end(error) from error


@app.command()
def check(
    tasks: Annotated[Path, typer.Argument(help="Folder of the tasks.")],
    environment: Annotated[str, typer.Option(help="docker, or namespace for tests of the harness.")] = "docker",
    python: Annotated[str | None, typer.Option(help="The Python that has Harbor.", show_default=False)] = None,
) -> None:
    """See that each task gives the oracle 1 and whoever does nothing 0; exit with 1 where one does
    not.
    """
    wrong = 0
    with ExitStack() as stack:
        try:
            if environment not in ("docker", "namespace"):
                raise ArgumentValueError("environment", environment, "is none", "Give 'docker' or 'namespace'.")
            found = read_tasks(tasks)
            harbor = HarborEnvironment({task.name: str(task.folder) for task in found}, environment, python)
            stack.callback(harbor.kill)
            harbor.start()
        except (CombeeError, EnvironmentFaultError) as error:
            raise _end(error) from error
        for task in found:
            scores = {
                "oracle": _score(harbor, task.name, "oracle"),
                "nop": _score(harbor, task.name, "nop"),
            }
            wrong += scores != {"oracle": "1", "nop": "0"}
            typer.echo(f"{task.name}: " + ", ".join(f"{agent} {score}" for agent, score in scores.items()))
    if wrong:
        raise typer.Exit(1)


def _score(harbor: HarborEnvironment, task: str, agent: Literal["oracle", "nop"]) -> str:
    try:
        return f"{judge(harbor, task, agent).score:g}"
    except EnvironmentFaultError as fault:
        return str(fault)
