"""``combee appworld``: AppWorld's own environment, and what there is to run in it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer
from combee_dspy.exceptions import ArgumentError, CombeeError, DataSourceError

from combee_appworld import _data, _setup

__all__ = ["app"]

app = typer.Typer(
    help="AppWorld: build its environment, look at what is here, make a miniature world.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_BAD_INPUT, _DATA_SOURCE = 2, 4


def _end(error: CombeeError) -> typer.Exit:
    typer.echo(f"error: {error}", err=True)
    return typer.Exit(_BAD_INPUT if isinstance(error, ArgumentError) else _DATA_SOURCE)


@app.command()
def setup(
    python: Annotated[str | None, typer.Option(help="A Python 3.11 or 3.12 to build with.", show_default=False)] = None,
    force: Annotated[bool, typer.Option("--force", help="Build it again.")] = False,
) -> None:
    """Build AppWorld's own environment from PyPI. Nothing after this needs a network.

    It is kept in the user's cache directory ($COMBEE_APPWORLD_HOME, or combee_appworld in
    $XDG_CACHE_HOME or ~/.cache) and every package in it is pinned by hash. AppWorld's data is not
    part of it: see combee appworld status.
    """
    try:
        made = _setup.install(python, force=force, say=lambda text: typer.echo(text, err=True))
    except CombeeError as error:
        raise _end(error) from error
    typer.echo(f"ready: {made.folder}")


@app.command()
def status() -> None:
    """Say what is installed, which data is here, and how to download AppWorld's."""
    made = _setup.find_installation()
    typer.echo(f"environment: {made.folder if made else 'not installed; run combee appworld setup'}")
    try:
        root = _data.find_root(None)
        sizes = {name: len(_data.read_rows(root, name)) for name in _data.SETS}
        typer.echo(f"data: {root}: " + ", ".join(f"{count} {name}" for name, count in sizes.items()))
    except DataSourceError as error:
        typer.echo(f"data: {error.source}: {error.reason}")
    if made:
        where = os.environ.get("APPWORLD_ROOT") or "DIR"
        typer.echo(
            f"download: {shlex.quote(str(made.python))} -m appworld.cli download data --root {shlex.quote(where)}"
        )


@app.command()
def miniature(root: Annotated[Path, typer.Argument(help="The APPWORLD_ROOT to write.")]) -> None:
    """Make a miniature world to try things on: 21 tasks over AppWorld's real apps. It is no
    benchmark.
    """
    try:
        made = _setup.make_miniature(root)
    except CombeeError as error:
        raise _end(error) from error
    typer.echo(f"ready: APPWORLD_ROOT={shlex.quote(str(made.resolve()))}")
