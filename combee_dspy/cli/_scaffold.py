"""Writes a new plugin: a distribution with one strategy, to rename and publish."""

from __future__ import annotations

import keyword
import re
import shutil
import string
import tempfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from combee_dspy import registry
from combee_dspy.exceptions import ArgumentValueError

__all__ = ["KINDS", "render_plugin", "write_plugin"]

KINDS = tuple(registry.KINDS)
"""Strategy kinds that there is a template for: every kind there is."""

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST = 40


@dataclass(frozen=True, slots=True)
class _Use:
    """How a user of Combee names a strategy of one kind, ``{}`` standing for its name.

    Attributes:
        code: In Python, what it imports first.
        line: The same in a configuration or on a command line.
        language: What ``line`` is written in.
        comment: What stands before it.
    """

    code: str
    line: str
    language: str = "yaml"
    comment: str = "In the configuration of `combee run`"


_COMBEE = "from combee_dspy import Combee\n\nCombee(..., %s)"
_USAGE = {
    "aggregator": _Use(_COMBEE % 'aggregator="{}"', "strategies: {{aggregator: {}}}"),
    "operator": _Use(_COMBEE % 'operators=["{}"]', "strategies: {{operators: [{}]}}"),
    "controller": _Use(_COMBEE % 'controller="{}"', "strategies: {{controller: {}}}"),
    "executor": _Use(_COMBEE % 'executor="{}"', "strategies: {{executor: {}}}"),
    "artifact": _Use(_COMBEE % 'artifact="{}"', "strategies: {{artifact: {}}}"),
    "embedder": _Use(
        "from combee_dspy import Combee\nfrom combee_dspy.diversity import Diversity\n\n"
        'Combee(..., diversity=Diversity(embedder="{}"))',
        "strategies: {{embedder: {}}}",
    ),
    "stopping": _Use(
        "from combee_dspy import Budget, Combee\nfrom combee_dspy.registry import build\n\n"
        'Combee(..., budget=Budget(rollouts=500) | build("stopping", "{}"))',
        "strategies: {{stopping: [{}]}}",
    ),
    "tracker": _Use(_COMBEE % 'tracker="{}"', "tracker: {}"),
    "benchmark": _Use('from combee_dspy import load_benchmark\n\nload_benchmark("{}")', "data: {{benchmark: {}}}"),
    "baseline": _Use(
        'from combee_dspy.registry import build\n\nbuild("baseline", "{}").run(task)',
        "combee compare --methods {},combee",
        "sh",
        "Beside other methods",
    ),
}

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
    folder = resources.files("combee_dspy.cli") / "_plugin_template"
    use = _USAGE[kind]
    values = {
        "name": name,
        "kind": kind,
        "code": use.code.format(name),
        "line": use.line.format(name),
        "language": use.language,
        "comment": use.comment,
        "distribution": f"combee-dspy-{name}",
        "package": f"combee_{name.replace('-', '_')}",
        "class_name": _class_name(name, (folder / f"{kind}.py.tmpl").read_text(encoding="utf-8")),
    }
    if values["package"] == "combee_dspy":
        raise ArgumentValueError("name", name, "would make a package that hides combee_dspy", "Choose another.")
    files: dict[str, str] = {}
    for path, source in _FILES.items():
        text = (folder / source.format(**values)).read_text(encoding="utf-8") if source else ""
        files[path.format(**values)] = string.Template(text).substitute(values)
    return files


def _class_name(name: str, template: str) -> str:
    found = "".join(word.capitalize() for word in name.split("-"))
    # "tracker" would else name a class after the base class that it inherits from.
    taken = keyword.iskeyword(found) or re.search(rf"\b{found}\b", template) is not None
    return f"My{found}" if taken else found


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
