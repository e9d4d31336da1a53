"""Commands that plugins bring: entry points of the group ``combee_dspy.commands``.

The entry point's name is the command's (``combee NAME …``); it stands for a
``typer.Typer`` or a ``click`` command. It is loaded when it is called, or named
by ``combee --help``, and never before. A command of the package's own comes first.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from importlib import metadata
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from combee_dspy.cli._exit import ExitCode
from combee_dspy.exceptions import PluginError
from combee_dspy.registry import DISTRIBUTION, Entry

__all__ = ["GROUP", "PluginGroup", "installed_commands"]

GROUP = "combee_dspy.commands"


def _points() -> Iterator[metadata.EntryPoint]:
    taken: set[str] = set()
    for point in metadata.entry_points(group=GROUP):
        if point.name not in taken:
            taken.add(point.name)
            yield point


def _owner(point: metadata.EntryPoint) -> tuple[str, str]:
    return (point.dist.name, point.dist.version) if point.dist else ("unknown", "")


def _load(point: metadata.EntryPoint) -> Any:
    """Return a plugin's command.

    Raises:
        PluginError: It cannot be imported, or is no command.
    """
    try:
        found = point.load()
        # What typer.Typer and click's commands have in common is not in a public base class.
        command = get_command(found) if isinstance(found, typer.Typer) else found
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise PluginError("command", point.name, _owner(point)[0], reason) from error
    if not callable(getattr(command, "invoke", None)):
        raise PluginError("command", point.name, _owner(point)[0], f"{point.value} is no typer.Typer and no command")
    command.name = point.name
    return command


def installed_commands(own: Collection[str] = ()) -> tuple[Entry, ...]:
    """Return every command that a plugin brings, with what is wrong with it. Loads all of them; never raises.

    Args:
        own: Names of the package's own commands: no plugin can take one of them.
    """
    found = []
    taken = dict.fromkeys(own, DISTRIBUTION)
    for point in metadata.entry_points(group=GROUP):
        distribution, version = _owner(point)
        problem = None
        if point.name in taken:
            problem = f"the name is already taken by distribution {taken[point.name]!r}"
        else:
            taken[point.name] = distribution
            try:
                _load(point)
            except PluginError as error:
                problem = error.reason
        found.append(Entry("command", point.name, point.value, distribution, version, problem))
    return tuple(found)


class PluginGroup(TyperGroup):
    """The package's commands, then those of plugins."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        own = super().list_commands(ctx)
        return [*own, *sorted(point.name for point in _points() if point.name not in own)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; one of a plugin that cannot be loaded says so when it is called.

        Returns:
            The command, or ``None`` where there is none of that name.
        """
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        point = next((point for point in _points() if point.name == cmd_name), None)
        if point is None:
            return None
        try:
            return _load(point)
        except PluginError as error:
            return _broken(cmd_name, error)


def _broken(name: str, error: PluginError) -> Any:
    """Return a command that says why it cannot be used, to the help page and to whoever calls it."""
    app = typer.Typer(rich_markup_mode=None)

    def say() -> None:
        sys.stderr.write(f"error: {error}\n")
        raise typer.Exit(ExitCode.BAD_INPUT)

    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    app.command(name, help=f"(cannot be used: {error.reason})", context_settings=settings)(say)
    return get_command(app)
