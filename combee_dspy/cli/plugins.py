"""``combee plugins``: what is installed, what is broken and why, and a plugin to start from."""

from __future__ import annotations

import enum
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from combee_dspy import registry
from combee_dspy.cli._group import plugin_commands
from combee_dspy.cli._scaffold import write_plugin
from combee_dspy.cli._tables import plain, show_table

__all__ = ["plugins_app"]

plugins_app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)

_Kind = enum.StrEnum("_Kind", [(kind, kind) for kind in registry.KINDS])  # type: ignore[misc]  # the kinds are data
_Json = Annotated[bool, typer.Option("--json", help="Write JSON, one object a strategy or command.")]


@plugins_app.callback()
def plugins(context: typer.Context, as_json: _Json = False) -> None:
    """Show every strategy and command that is installed, whose it is, and what failed to load; or start a new one.

    A broken plugin is listed with its owner and the reason, and breaks nothing
    else: the exit code is 0.
    """
    if context.invoked_subcommand is None:
        list_plugins(context, as_json)


@plugins_app.command("list")
def list_plugins(context: typer.Context, as_json: _Json = False) -> None:
    """Show every strategy and every plugin's command; the same as without a command."""
    root: Any = context.find_root().command
    entries = (*registry.installed(), *plugin_commands(getattr(root, "commands", {})))
    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in entries], indent=2))
        return
    show_table(
        [
            {"kind": one.kind, "name": one.name, "distribution": one.distribution, "version": one.version}
            | {"status": "problem" if one.problem else "ok"}
            for one in entries
        ]
    )
    # Reasons are sentences: in a table's column they would be cut.
    for entry in entries:
        if entry.problem:
            owner = f"{entry.kind} {entry.name!r} from {entry.distribution} {entry.version}".rstrip()
            typer.echo(plain(f"{owner}: {entry.problem}"))


@plugins_app.command("new")
def new_plugin(
    name: Annotated[str, typer.Argument(help="The strategy's name, such as first-k: lower case, words joined by '-'.")],
    kind: Annotated[_Kind, typer.Option(help="What kind of strategy it is.")],
    directory: Annotated[Path, typer.Option("--directory", "-d", help="Where to write it.")] = Path(),
) -> None:
    """Write a new plugin: a distribution of its own, with one strategy, its tests and its CI.

    Nothing is overwritten.
    """
    target = write_plugin(name, kind.value, directory)
    # Without a slash an installer would look for a distribution of that name on the package index.
    where = target if target.is_absolute() else f".{os.sep}{target}"
    steps = (f'python -m pip install -e "{where}[test]"', f"python -m pytest {where}", "combee plugins")
    typer.echo("\n  ".join((f"Wrote {target}. Next:", *steps)))
