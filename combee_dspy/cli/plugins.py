"""``combee plugins``: what is installed, what is broken and why, and a plugin to start from."""

from __future__ import annotations

import enum
import json
import keyword
import os
import re
import shutil
import tempfile
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from string import Template
from typing import Annotated, Any

import typer
import yaml

from combee_dspy import registry
from combee_dspy.cli._group import plugin_commands
from combee_dspy.cli._tables import plain, show_table
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.files import write_plain

plugins_app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)

_Kind = enum.StrEnum("_Kind", [(kind, kind) for kind in registry.KINDS])  # type: ignore[misc]  # the kinds are data
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST = 40
_FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "LICENSE": "LICENSE",
    ".github/workflows/test.yml": "test.yml",
    "{package}/__init__.py": "init.py",
    "{package}/_strategy.py": "{kind}.py",
    "{package}/py.typed": "py.typed",
    "tests/test_conformance.py": "test_conformance.py",
    "tests/test_strategy.py": "test_strategy.py",
}
"""Paths in a new plugin, and the templates of their texts."""


@plugins_app.callback()
def plugins(
    context: typer.Context,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write JSON, one object a strategy or command.")
    ] = False,
) -> None:
    """Show every strategy and command that is installed, or start a new plugin.

    A broken plugin is listed with its distribution and the reason, and breaks nothing
    else: the exit code is 0.
    """
    if context.invoked_subcommand is not None:
        return
    root: Any = context.find_root().command
    entries = (*registry.installed(), *plugin_commands(root.commands))
    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in entries], indent=2))
        return
    show_table([_row(entry) for entry in entries], folded=("what it does",))
    # Reasons are sentences: in a table's column they would be cut.
    for entry in entries:
        if entry.problem:
            owner = f"{entry.distribution} {entry.version}".rstrip()
            typer.echo(plain(f"{entry.kind} {entry.name!r} from {owner}: {entry.problem}"))


def _row(entry: registry.Entry) -> dict[str, str]:
    return {
        "kind": entry.kind,
        "name": entry.name,
        "from": entry.distribution.removeprefix("combee-dspy-"),
        "what it does": "cannot be loaded: see below" if entry.problem else entry.does,
    }


@plugins_app.command("new")
def new_plugin(
    name: Annotated[
        str,
        typer.Argument(
            help="The strategy's name, such as first-k: lower case, words joined by '-'."
        ),
    ],
    kind: Annotated[_Kind, typer.Option(help="What kind of strategy it is.")],
    directory: Annotated[
        Path, typer.Option("--directory", "-d", help="Where to write it.")
    ] = Path(),
) -> None:
    """Write a new plugin: a distribution of its own, with one strategy, its tests and its CI.

    Nothing is overwritten.
    """
    target = write_plugin(name, kind.value, directory)
    # Without a slash an installer would look for a distribution of that name on the package index.
    where = target if target.is_absolute() else f".{os.sep}{target}"
    steps = (
        f'python -m pip install -e "{where}[test]"',
        f"python -m pytest {where}",
        "combee plugins",
    )
    typer.echo("\n  ".join((f"Wrote {target}. Next:", *steps)))


def render_plugin(name: str, kind: str) -> dict[str, str]:
    """Return the files of a new plugin: text by path below its directory."""
    package = f"combee_{name.replace('-', '_')}"
    if not _NAME.fullmatch(name) or len(name) > _LONGEST or package == "combee_dspy":
        remedy = (
            f"Use lower case letters and digits, words joined by '-', {_LONGEST} characters at"
            " most: first-k."
        )
        raise ArgumentValueError("name", name, "cannot name a strategy", remedy)

    templates = resources.files("combee_dspy.cli") / "_templates"

    def read(source: str) -> str:
        return (templates / source).read_text(encoding="utf-8")

    values = {"name": name, "kind": kind, "distribution": f"combee-dspy-{name}", "package": package}
    values |= {
        use: Template(text).substitute(values)
        for use, text in yaml.safe_load(read("uses.yaml"))[kind].items()
    }
    class_name = "".join(word.capitalize() for word in name.split("-"))
    # "tracker" would else name a class after the base class that it inherits from.
    is_taken = keyword.iskeyword(class_name) or re.search(
        rf"\b{class_name}\b", read(f"{kind}.py.tmpl")
    )
    values["class_name"] = f"My{class_name}" if is_taken else class_name
    return {
        path.format(**values): Template(read(f"{source.format(**values)}.tmpl")).substitute(values)
        for path, source in _FILES.items()
    }


def write_plugin(name: str, kind: str, parent: Path) -> Path:
    """Write a new plugin into ``parent / "combee-dspy-<name>"``, whole or not at all; return that
    directory.
    """
    files = render_plugin(name, kind)
    if name in registry.names(kind):
        problem = f"is already the name of an installed {kind}"
        raise ArgumentValueError(
            "name", name, problem, "Choose another: of two, only the first would be found."
        )
    target = parent / f"combee-dspy-{name}"
    if target.exists() or target.is_symlink():
        raise ArgumentValueError(
            "directory", str(target), "is there already", "Remove it, or choose another name."
        )
    try:
        with tempfile.TemporaryDirectory(dir=parent, prefix=".combee-plugin-") as scratch:
            draft = Path(scratch) / target.name
            for path, text in files.items():
                (draft / path).parent.mkdir(parents=True, exist_ok=True)
                write_plain(draft / path, text)
            shutil.copymode(parent, draft)
            draft.rename(target)
    except OSError as error:
        problem = f"cannot be written to: {error.strerror}"
        raise ArgumentValueError(
            "directory", str(parent), problem, "Name a folder that is there."
        ) from error
    return target
