"""The group of all commands: those of plugins are loaded when they are asked for, and errors become one line."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import metadata
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from combee_dspy.cli._tables import plain
from combee_dspy.exceptions import CombeeError, MissingDistributionError, PluginError
from combee_dspy.lms.redact import scrub
from combee_dspy.registry import DISTRIBUTION, Entry

__all__ = ["GROUP", "CombeeGroup", "plugin_commands", "say"]

GROUP = "combee_dspy.commands"
"""Entry points of this group are commands: a ``typer.Typer`` or a function that typer can read."""

_KNOWN: Mapping[str, tuple[str, str]] = {
    "bench": ("combee-bench", "Measure Combee beside its peers on a simulated service."),
    "compare": ("combee-bench", "Methods side by side: held-out against seconds, tokens, dollars."),
    "tune-scan": ("combee-bench", "Which copies and fan-in keep most lessons, on your model."),
}
"""Commands that live in distributions of their own, listed whether these are installed or not."""

_LINE = 2_000


def say(error: BaseException, *, debug: bool = False, of: str = "") -> int:
    """Say an error, of a task where there are several, on standard error without keys; return its exit code."""
    if debug:
        sys.stderr.write(scrub("".join(traceback.format_exception(error))))
    else:
        named = error if isinstance(error, CombeeError) else f"{type(error).__name__}: {error}"
        text = "interrupted" if isinstance(error, KeyboardInterrupt) else str(named)
        sys.stderr.write(f"error: {plain(scrub(of + text), _LINE)}\n")
    if isinstance(error, KeyboardInterrupt):
        return 130
    return 2 if isinstance(error, CombeeError) else 1


def _points() -> Iterator[tuple[metadata.EntryPoint, Entry]]:
    for point in metadata.entry_points(group=GROUP):
        owner = (point.dist.name, point.dist.version) if point.dist else ("unknown", "")
        yield point, Entry("command", point.name, point.value, *owner)


def _load(name: str) -> Any:
    """Return a plugin's command; a known one's distribution is named where it is not installed."""
    for point, entry in _points():
        if point.name != name:
            continue
        try:
            found = point.load()
            if not callable(found):
                raise TypeError(f"{point.value} is no typer.Typer and no function")
            app = found
            if not isinstance(found, typer.Typer):
                app = typer.Typer(add_completion=False, rich_markup_mode=None)
                app.command(name)(found)
            command = get_command(app)
        except Exception as error:
            raise PluginError("command", name, entry.distribution, f"{type(error).__name__}: {error}") from error
        command.name = name
        return command
    raise MissingDistributionError(f"combee {name}", _KNOWN[name][0])


def plugin_commands(own: Mapping[str, Any]) -> tuple[Entry, ...]:
    """Return every command that a plugin brings, with what is wrong with it: none can take the name of our ``own``."""
    found, taken = [], dict.fromkeys(own, DISTRIBUTION)
    for _, entry in _points():
        problem = None
        if entry.name in taken:
            problem = f"the name is already taken by distribution {taken[entry.name]!r}"
        else:
            taken[entry.name] = entry.distribution
            try:
                _load(entry.name)
            except PluginError as error:
                problem = error.reason
        found.append(replace(entry, problem=problem))
    return tuple(found)


class CombeeGroup(TyperGroup):
    """The package's commands, then those of plugins."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, loading none."""
        own = super().list_commands(ctx)
        return [*own, *sorted({*_KNOWN, *(entry.name for _, entry in _points())} - set(own))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; for a plugin's, what the help page needs of it."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        owners = {entry.name: f"From {entry.distribution}." for _, entry in _points()}
        owners |= {name: text for name, (_, text) in _KNOWN.items()}
        return TyperCommand(cmd_name, callback=None, help=owners[cmd_name]) if cmd_name in owners else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that was asked for, a plugin's loaded now."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and name not in self.commands:
            command = _load(name)
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what goes wrong becomes one line and an exit code."""
        try:
            return super().invoke(ctx)
        except (CombeeError, KeyboardInterrupt) as error:
            raise typer.Exit(say(error, debug=bool(ctx.params.get("debug")))) from error
