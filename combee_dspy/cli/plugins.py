"""``combee plugins``: what is installed, what is broken and why, and a plugin to start from."""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from combee_dspy import registry
from combee_dspy.cli import _scaffold
from combee_dspy.cli._commands import installed_commands
from combee_dspy.exceptions import ArgumentError

__all__ = ["plugins_app"]

plugins_app = typer.Typer(
    name="plugins",
    help="Show every strategy and command that is installed, whose it is, and what failed to load; or start a new one.",
    invoke_without_command=True,
    no_args_is_help=False,
)

AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, one object a strategy or command.")]

Kind = enum.StrEnum("Kind", [(kind, kind) for kind in _scaffold.KINDS])  # type: ignore[misc]  # the kinds are data


@plugins_app.callback()
def plugins(context: typer.Context, as_json: AsJson = False) -> None:
    """Show every strategy that is installed, and every command that a plugin brings, with what failed to load.

    A broken plugin is listed with its owner and the reason, and breaks nothing
    else: the exit code is 0.
    """
    if context.invoked_subcommand is None:
        _show(as_json)


@plugins_app.command("list")
def list_plugins(as_json: AsJson = False) -> None:
    """Show every strategy and every plugin's command; the same as without a command."""
    _show(as_json)


@plugins_app.command("new")
def new_plugin(
    name: Annotated[str, typer.Argument(help="The strategy's name, such as first-k: lower case, words joined by '-'.")],
    kind: Annotated[Kind, typer.Option(help="What kind of strategy it is.")],
    directory: Annotated[Path, typer.Option("--directory", "-d", help="Where to write it.")] = Path(),
) -> None:
    """Write a new plugin: a distribution of its own, with one strategy, its tests and its CI.

    Nothing is overwritten. Exit code 2 where the name cannot be used or the
    directory is there already.
    """
    try:
        target = _scaffold.write_plugin(name, kind.value, directory)
    except (ArgumentError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    # Without a slash an installer would look for a distribution of that name on the package index.
    where = target if target.is_absolute() else f".{os.sep}{target}"
    typer.echo(f"Wrote {target}. Next:")
    typer.echo(f'  python -m pip install -e "{where}[test]"')
    typer.echo(f"  python -m pytest {where}")
    typer.echo("  combee plugins")


def _show(as_json: bool) -> None:
    entries = (*registry.installed(), *installed_commands(_own_commands()))
    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in entries], indent=2))
        return
    table = Table("kind", "name", "distribution", "version", "status")
    for entry in entries:
        status = Text("problem", style="bold red") if entry.problem else Text("ok", style="green")
        cells = (entry.kind, entry.name, entry.distribution, entry.version)
        table.add_row(*(Text(_plain(cell)) for cell in cells), status)
    console = Console()
    console.print(table)
    # Reasons are sentences: in a table's column they would be cut.
    for entry in entries:
        if entry.problem:
            owner = f"{entry.kind} {entry.name!r} from {entry.distribution} {entry.version}".rstrip()
            console.print(Text(_plain(f"{owner}: {entry.problem}")), soft_wrap=True)


def _own_commands() -> Collection[str]:
    # The command line imports this module.
    from combee_dspy.cli import app

    names = (command.name for command in app.registered_commands)
    groups = (group.name or group.typer_instance.info.name for group in app.registered_groups if group.typer_instance)
    return [name for name in (*names, *groups) if isinstance(name, str)]


def _plain(text: str) -> str:
    # Plugins' own words reach a terminal: nothing in them may steer it.
    return "".join(letter if letter.isprintable() else " " for letter in text)
