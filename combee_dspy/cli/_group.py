"""The group of all commands.

Those of plugins are loaded when they are needed, and errors become one line.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from combee_dspy.cli._tables import plain
from combee_dspy.exceptions import CombeeError, MissingDistributionError
from combee_dspy.lms.redact import scrub
from combee_dspy.registry import DISTRIBUTION, Entry, published, survey

GROUP = "combee_dspy.commands"
"""Entry points of this group are commands: a ``typer.Typer`` or a function that typer can read."""

_GROUPS: Mapping[str, Mapping[str, str]] = {
    "Start": {
        "demo": "Watch a small model's prompt improve; --recorded replays a run.",
        "run": "Learn a program's prompts as a YAML file says.",
        "learn": "Learn lessons from recorded rollouts; nothing runs again.",
    },
    "Inspect": {
        "runs": "List runs: date, program, model, score.",
        "show": "Show a run's verdict and costs, a candidate or a rollout.",
        "report": "Write one page about a run, to open in a browser.",
        "rollouts": "List a run's rollouts, chosen by --where.",
        "candidates": "List a run's candidates with lineage and scores.",
        "track": "Complete a run's record in MLflow.",
    },
    "Prove": {
        "diagnose": "Decide whether serial search has converged.",
        "plan": "Write the plan of a wide search from a specification.",
        "verify": "Re-run a claim where it might not hold.",
        "compare": "Compare methods side by side: held-out score and cost.",
        "bench": "Measure Combee beside its peers on a simulated service.",
        "benchmarks": "List the benchmarks: licence, size, source.",
        "tune-scan": "Find the copies and fan-in that keep most lessons.",
    },
    "Ship": {
        "skill": "Write what a run learned as a skill for coding agents.",
        "publish": "Register what a run returned as the challenger.",
        "canary": "Try, promote and roll back a program in production.",
        "live": "Learn from served requests; ship what is proven.",
    },
    "Extend": {
        "plugins": "Show what is installed and what failed; start a plugin.",
    },
}
"""Our commands, and those of distributions that ``combee-dspy[all]`` installs, listed whether they
are installed or not. Commands of others are listed last.
"""

_SUMMARIES = {name: text for group in _GROUPS.values() for name, text in group.items()}

_LINE = 2_000
_COMPLETION = ("install_completion", "show_completion")

INTERRUPTED = 130
"""The exit code of a command that was interrupted."""


def say(error: BaseException, *, debug: bool = False, of: str = "") -> int:
    """Print an error on standard error without keys, and return its exit code.

    Args:
        error: What ended a command.
        debug: Whether to print the traceback instead of one line.
        of: Precedes the line: the task, where there are several.
    """
    if debug:
        sys.stderr.write(scrub("".join(traceback.format_exception(error))))
    else:
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, CombeeError):
            text = str(error)
        elif isinstance(error, KeyboardInterrupt):
            text = "interrupted"
        sys.stderr.write(f"error: {plain(scrub(of + text), _LINE)}\n")
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return 2 if isinstance(error, CombeeError) else 1


def _load(entry: Entry) -> Any:
    """Return a plugin's command.

    Raises:
        PluginError: It cannot be imported, or typer cannot read it.
    """
    app = entry.load()
    try:
        if not callable(app):
            raise TypeError(f"{entry.target} is no typer.Typer and no function")
        if not isinstance(app, typer.Typer):
            function, app = app, typer.Typer(add_completion=False, rich_markup_mode=None)
            app.command(entry.name)(function)
        command = get_command(app)
    except Exception as error:
        raise entry.error(f"{type(error).__name__}: {error}") from error
    command.name = entry.name
    # Completion is of the whole of combee.
    command.params = [part for part in command.params if part.name not in _COMPLETION]
    return command


def plugin_commands(own: Iterable[str]) -> tuple[Entry, ...]:
    """Return every command that a plugin brings, with what it does or what is wrong with it.

    None can take the name of one of our ``own``.
    """

    def describe(entry: Entry) -> str:
        return str(_load(entry).help or "").partition("\n\n")[0]

    return tuple(survey(_published(), describe, dict.fromkeys(own, DISTRIBUTION)))


def _published() -> Iterator[Entry]:
    return published("command", GROUP)


class CombeeGroup(TyperGroup):
    """The package's commands, then those of plugins."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, loading none."""
        own = super().list_commands(ctx)
        return [*own, *sorted({*_SUMMARIES, *(entry.name for entry in _published())} - set(own))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; for a plugin's, what the help page needs of it."""
        own = super().get_command(ctx, cmd_name)
        texts = _others() | _SUMMARIES
        if own is not None or cmd_name not in texts:
            return own
        return TyperCommand(cmd_name, callback=None, help=texts[cmd_name])

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands of each group, and what they do in whole words."""
        for group, commands in _GROUPS.items():
            others = _others() if group == "Extend" else {}
            with formatter.section(group):
                formatter.write_dl([*commands.items(), *others.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that was asked for, a plugin's loaded now."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is None or name in self.commands:
            return name, command, rest
        for entry in _published():
            if entry.name == name:
                return name, _load(entry), rest
        raise MissingDistributionError(f"combee {name}", "combee-dspy[all]")

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what goes wrong becomes one line and an exit code."""
        try:
            return super().invoke(ctx)
        except (CombeeError, KeyboardInterrupt) as error:
            raise typer.Exit(say(error, debug=bool(ctx.params.get("debug")))) from error


def _others() -> dict[str, str]:
    """Return what the help page says of the commands of strangers."""
    entries = [entry for entry in _published() if entry.name not in _SUMMARIES]
    return {entry.name: f"From {entry.distribution}." for entry in entries}
