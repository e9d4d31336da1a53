"""``combee plugins``: what is listed, and what a new plugin holds."""

from __future__ import annotations

import ast
import importlib
import json
import sys
import tomllib

import pytest

from combee_dspy import registry
from combee_dspy.exceptions import PluginError
from combee_dspy.testing import checks_for

AGGREGATOR = """
from typing import ClassVar
from combee_dspy.aggregators import Aggregator
from combee_dspy.records import Lessons

class Mine(Aggregator):
    "Nothing."
    name: ClassVar[str] = {name!r}
    async def aggregate(self, reflections, context):
        return Lessons(context.component)
"""

BROKEN = {
    "import": (
        "import nowhere_to_be_found",
        "ModuleNotFoundError: No module named 'nowhere_to_be_found'",
    ),
    "raising": ("raise RuntimeError('boom \\x1b[2J[bold]\\nagain')", "RuntimeError: boom"),
    "attribute": ("", "AttributeError"),
    "base": ("class Mine: pass", "is not a subclass of combee_dspy.aggregators.Aggregator"),
    "name": (AGGREGATOR.format(name="another"), "calls itself 'another'"),
}


def install(site, distribution, kind, name, target, module=None):
    """Write what an installer writes: metadata, an entry point, and its module."""
    info = site / f"{distribution.replace('-', '_')}-1.2.3.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2.3\n")
    (info / "entry_points.txt").write_text(f"[combee_dspy.{kind}s]\n{name} = {target}\n")
    if module is not None:
        (site / f"{target.partition(':')[0]}.py").write_text(module)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the path with one good plugin, broken ones, and a thief of a built-in's name."""
    folder = tmp_path / "site"
    install(
        folder,
        "good-plugin",
        "aggregator",
        "good",
        "their_good:Mine",
        AGGREGATOR.format(name="good"),
    )
    install(
        folder,
        "thief-plugin",
        "aggregator",
        "union",
        "their_thief:Mine",
        AGGREGATOR.format(name="union"),
    )
    for name, (module, _) in BROKEN.items():
        install(
            folder, f"{name}-plugin", "aggregator", f"broken-{name}", f"their_{name}:Mine", module
        )
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    return folder


def listed(shell):
    code, out, err = shell("plugins", "--json")
    assert (code, err) == (0, "")
    return {
        (entry["kind"], entry["name"], entry["distribution"]): entry for entry in json.loads(out)
    }


def test_the_list_names_kind_name_distribution_and_what_it_does(shell):
    entry = listed(shell)["controller", "power-law", "combee-dspy"]
    assert entry["problem"] is None
    (line,) = [line for line in shell("plugins")[1].splitlines() if "power-law" in line]
    assert line.split()[:3] == ["controller", "power-law", "combee-dspy"]
    assert entry["does"].startswith(" ".join(line.split()[3:]).rstrip("…"))
    assert all(
        len(entry["does"]) > 10 for entry in listed(shell).values() if entry["problem"] is None
    )
    assert ("command", "bench", "combee-bench") in listed(shell)


def test_broken_plugins_are_listed_with_their_owner_and_the_reason(shell, site):
    entries = listed(shell)
    assert entries["aggregator", "good", "good-plugin"]["problem"] is None
    assert (
        "already taken by distribution 'combee-dspy'"
        in entries["aggregator", "union", "thief-plugin"]["problem"]
    )
    table = shell("plugins")[1]
    assert "\x1b" not in table
    for name, (_, reason) in BROKEN.items():
        assert reason in entries["aggregator", f"broken-{name}", f"{name}-plugin"]["problem"]
        (line,) = [
            line
            for line in table.splitlines()
            if line.startswith(f"aggregator 'broken-{name}' from {name}-plugin")
        ]
        assert reason in line
    assert type(registry.build("aggregator", "good")).__module__ == "their_good"
    with pytest.raises(PluginError, match="import-plugin"):
        registry.build("aggregator", "broken-import")


@pytest.mark.parametrize("kind", registry.KINDS)
def test_a_new_plugin_is_found_and_conforms(shell, kind, tmp_path, monkeypatch):
    code, out, err = shell("plugins", "new", f"try-this-{kind}", "--kind", kind, "-d", tmp_path)
    assert code == 0, err
    folder = tmp_path / f"combee-dspy-try-this-{kind}"
    assert str(folder) in out
    assert [path.name for path in tmp_path.iterdir()] == [folder.name], "no draft is left behind"
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    ((name, target),) = project["entry-points"][f"combee_dspy.{kind}s"].items()
    install(tmp_path / "site", project["name"], kind, name, target)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()
    strategy = registry.build(kind, f"try-this-{kind}")
    for check in checks_for(strategy):
        check(strategy)
    for path in folder.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            text = path.read_text()
            assert "${" not in text.replace("${{ matrix.python }}", "")
            assert "emplate" not in text, f"{path} still speaks of the template"


@pytest.mark.parametrize("kind", registry.KINDS)
def test_a_name_that_the_example_uses_itself_still_makes_a_class(shell, kind, tmp_path):
    for name in ("none", kind, "any", "learn"):
        shell("plugins", "new", name, "--kind", kind, "-d", tmp_path)
        module = ast.parse(
            (tmp_path / f"combee-dspy-{name}" / f"combee_{name}" / "_strategy.py").read_text()
        )
        classes = [node.name for node in module.body if isinstance(node, ast.ClassDef)]
        imported = {
            alias.name
            for node in ast.walk(module)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        assert classes
        assert len(set(classes)) == len(classes)
        assert not set(classes) & imported


@pytest.mark.parametrize(
    "name", ["", "First", "first_k", "-k", "a--b", "1st", "../up", "é", "x" * 41, "a\n", "dspy"]
)
def test_new_refuses_names_that_cannot_be_published(shell, name, tmp_path):
    code, _, err = shell("plugins", "new", "--kind", "operator", "-d", tmp_path, "--", name)
    assert code == 2
    assert "error: name cannot name a strategy" in err
    assert not list(tmp_path.iterdir())


def test_new_overwrites_nothing_and_leaves_nothing_half_written(shell, tmp_path, monkeypatch):
    there = tmp_path / "combee-dspy-mine"
    there.mkdir()
    (there / "precious").write_text("mine")
    assert (
        "is there already"
        in shell("plugins", "new", "mine", "--kind", "operator", "-d", tmp_path)[2]
    )
    assert [path.name for path in there.iterdir()] == ["precious"]
    assert (
        "already the name of an installed operator"
        in shell("plugins", "new", "insert", "--kind", "operator")[2]
    )
    assert (
        "cannot be written to"
        in shell("plugins", "new", "x", "--kind", "operator", "-d", tmp_path / "none")[2]
    )

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys.modules["combee_dspy.cli.plugins"], "write_plain", full)
    code, _, err = shell("plugins", "new", "other", "--kind", "operator", "-d", tmp_path)
    assert code == 2
    assert "No space left" in err
    assert [path.name for path in tmp_path.iterdir()] == ["combee-dspy-mine"]


def test_an_unknown_kind_names_the_ones_there_are(shell):
    code, _, err = shell("plugins", "new", "mine", "--kind", "painter")
    assert code == 2
    assert all(kind in err for kind in registry.KINDS)
