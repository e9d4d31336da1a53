"""Writes a new plugin: a distribution with one strategy, to rename and publish."""

from __future__ import annotations

import re
import shutil
import string
import tempfile
from importlib import resources
from pathlib import Path

from combee_dspy import registry
from combee_dspy.exceptions import ArgumentValueError

__all__ = ["KINDS", "render_plugin", "write_plugin"]

KINDS = ("aggregator", "operator", "controller")
"""Strategy kinds that there is a template for."""

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST = 40

# How a user of Combee names a strategy of each kind.
_USAGE = {"aggregator": 'aggregator="{}"', "operator": 'operators=["{}"]', "controller": 'controller="{}"'}

_FILES = {
    "pyproject.toml": "pyproject.toml.tmpl",
    "README.md": "README.md.tmpl",
    "LICENSE": "LICENSE.tmpl",
    ".github/workflows/test.yml": "test.yml.tmpl",
    "{package}/__init__.py": "init.py.tmpl",
    "{package}/_strategy.py": "{kind}.py.tmpl",
    "{package}/py.typed": None,
    "tests/test_conformance.py": "test_conformance.py.tmpl",
    "tests/test_strategy.py": "test_strategy.py.tmpl",
}


def render_plugin(name: str, kind: str) -> dict[str, str]:
    """Return the files of a new plugin: text by path below its directory.

    Args:
        name: The strategy's name: lower case, words joined by ``-``.
        kind: One of :data:`KINDS`.

    Raises:
        ArgumentValueError: The name or the kind cannot be used.
    """
    if kind not in KINDS:
        raise ArgumentValueError("kind", kind, "has no template", f"Choose one of {', '.join(KINDS)}.")
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        remedy = f"Use lower case letters and digits, words joined by '-', {_LONGEST} characters at most: first-k."
        raise ArgumentValueError("name", name, "cannot name a strategy", remedy)
    values = {
        "name": name,
        "kind": kind,
        "usage": _USAGE[kind].format(name),
        "distribution": f"combee-dspy-{name}",
        "package": f"combee_{name.replace('-', '_')}",
        "class_name": "".join(word.capitalize() for word in name.split("-")),
    }
    folder = resources.files("combee_dspy.cli") / "_plugin_template"
    files: dict[str, str] = {}
    for path, source in _FILES.items():
        text = (folder / source.format(**values)).read_text(encoding="utf-8") if source else ""
        files[path.format(**values)] = string.Template(text).substitute(values)
    return files


def write_plugin(name: str, kind: str, parent: Path) -> Path:
    """Write a new plugin into ``parent / "combee-dspy-<name>"``, whole or not at all.

    Returns:
        The new directory.

    Raises:
        ArgumentValueError: The name or kind cannot be used, the name is taken by
            an installed strategy, or the directory is there already.
    """
    files = render_plugin(name, kind)
    if name in registry.names(kind):
        problem = f"is already the name of an installed {kind}"
        raise ArgumentValueError("name", name, problem, "Choose another: of two, only the first would be found.")
    target = parent / f"combee-dspy-{name}"
    if target.exists() or target.is_symlink():
        raise ArgumentValueError("directory", str(target), "is there already", "Remove it, or choose another name.")
    if not parent.is_dir():
        raise ArgumentValueError("directory", str(parent), "is no directory", "Make it first.")
    with tempfile.TemporaryDirectory(dir=parent, prefix=".combee-plugin-") as scratch:
        draft = Path(scratch) / target.name
        for path, text in files.items():
            (draft / path).parent.mkdir(parents=True, exist_ok=True)
            (draft / path).write_text(text, encoding="utf-8")
        shutil.copymode(parent, draft)
        draft.rename(target)
    return target
