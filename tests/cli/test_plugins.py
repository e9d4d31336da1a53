from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from combee_dspy import registry
from combee_dspy.cli import _scaffold
from combee_dspy.cli.plugins import plugins_app
from combee_dspy.exceptions import ArgumentValueError, PluginError
from combee_dspy.testing import checks_for

ROOT = Path(__file__).parents[2]
run = CliRunner().invoke


def install(site, distribution, entry_points, modules=()):
    """Write what an installer writes: metadata, entry points and modules."""
    info = site / f"{distribution.replace('-', '_')}-1.2.3.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2.3\n")
    lines = [f"[combee_dspy.{kind}s]\n{name} = {target}\n" for kind, name, target in entry_points]
    (info / "entry_points.txt").write_text("\n".join(lines))
    for name, text in dict(modules).items():
        (site / f"{name}.py").write_text(text)


AGGREGATOR = """
from typing import ClassVar
from combee_dspy.aggregators import Aggregator
from combee_dspy.records import Lessons

class Mine(Aggregator):
    "Nothing."
    name: ClassVar[str] = {name!r}
    def aggregate(self, reflections, context):
        return Lessons(context.component)
"""

BROKEN = {
    "broken-import": ("import_error", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
    "broken-exit": ("explodes", "RuntimeError: boom at import"),
    "broken-attribute": ("import_attribute", "AttributeError"),
    "wrong-base": ("wrong_base", "is not a subclass of combee_dspy.aggregators.Aggregator"),
    "other-name": ("other_name", "calls itself 'another'"),
}


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the path with one good plugin, five broken ones and a thief of a built-in's name."""
    folder = tmp_path / "site"
    modules = {
        "fixture_import_error": "import nowhere_to_be_found",
        "fixture_explodes": "raise RuntimeError('boom at import')",
        "fixture_import_attribute": "",
        "fixture_wrong_base": "class Mine: pass",
        "fixture_other_name": AGGREGATOR.format(name="another"),
        "fixture_good": AGGREGATOR.format(name="good"),
        "fixture_thief": AGGREGATOR.format(name="parallel-scan"),
    }
    install(folder, "good-plugin", [("aggregator", "good", "fixture_good:Mine")], modules)
    install(folder, "thief-plugin", [("aggregator", "parallel-scan", "fixture_thief:Mine")])
    for name, (module, _) in BROKEN.items():
        install(folder, f"{name}-plugin", [("aggregator", name, f"fixture_{module}:Mine")])
    monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()
    yield folder
    for module in modules:
        sys.modules.pop(module, None)


def listed(*arguments):
    result = run(plugins_app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return {(entry["kind"], entry["name"], entry["distribution"]): entry for entry in json.loads(result.stdout)}


@pytest.mark.parametrize("arguments", [[], ["list"]])
def test_the_list_names_kind_name_distribution_version_and_state(arguments):
    entries = listed(*arguments)
    assert entries["controller", "power-law", "combee-dspy"]["problem"] is None
    result = run(plugins_app, arguments)
    assert result.exit_code == 0
    (line,) = [line for line in result.stdout.splitlines() if "power-law" in line]
    assert "controller" in line
    assert "combee-dspy" in line
    assert entries["controller", "power-law", "combee-dspy"]["version"] in line
    assert "ok" in line


def test_broken_plugins_are_listed_with_their_owner_and_the_reason(site):
    entries = listed()
    assert entries["aggregator", "good", "good-plugin"]["problem"] is None
    assert entries["aggregator", "good", "good-plugin"]["version"] == "1.2.3"
    table = run(plugins_app, []).stdout
    for name, (_, reason) in BROKEN.items():
        assert reason in entries["aggregator", name, f"{name}-plugin"]["problem"]
        (line,) = [line for line in table.splitlines() if line.startswith(f"aggregator {name!r} from {name}-plugin")]
        assert reason in line


def test_a_name_taken_by_a_built_in_stays_the_built_ins(site):
    problem = listed()["aggregator", "parallel-scan", "thief-plugin"]["problem"]
    assert "already taken by distribution 'combee-dspy'" in problem
    assert registry.find("aggregator", "parallel-scan").__module__.startswith("combee_dspy.")


def test_a_good_plugin_is_usable_beside_broken_ones(site):
    assert type(registry.build("aggregator", "good")).__module__ == "fixture_good"
    with pytest.raises(PluginError) as caught:
        registry.build("aggregator", "broken-import")
    assert (caught.value.distribution, caught.value.name) == ("broken-import-plugin", "broken-import")


def test_broken_plugins_never_break_the_import(site):
    code = "import combee_dspy, sys; print(sorted(m for m in sys.modules if m.startswith('fixture_')))"
    done = subprocess.run(  # noqa: S603 - this interpreter and the code above
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]", "plugins are loaded when they are asked for"


def test_a_plugins_words_cannot_steer_the_terminal(tmp_path, monkeypatch):
    install(
        tmp_path,
        "hostile",
        [("operator", "hostile", "fixture_hostile:X")],
        {"fixture_hostile": "raise RuntimeError('\\x1b[2J[bold]\\nok')"},
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    output = run(plugins_app, []).stdout
    assert "\x1b[2J" not in output
    assert "RuntimeError:  [2J[bold] ok" in output


@pytest.mark.parametrize("kind", _scaffold.KINDS)
def test_new_writes_a_plugin_that_is_found_and_conforms(kind, tmp_path, monkeypatch):
    result = run(plugins_app, ["new", f"try-this-{kind}", "--kind", kind, "-d", str(tmp_path)])
    assert result.exit_code == 0, result.output
    folder = tmp_path / f"combee-dspy-try-this-{kind}"
    assert str(folder) in result.stdout.replace("\n", "")
    assert [path.name for path in tmp_path.iterdir()] == [folder.name], "no draft is left behind"
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    points = project["entry-points"][f"combee_dspy.{kind}s"]
    install(tmp_path / "site", project["name"], [(kind, name, target) for name, target in points.items()])
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
            if path.suffix == ".py":
                ast.parse(text)


def test_there_is_a_template_for_every_kind():
    assert set(_scaffold.KINDS) == set(registry.KINDS)


@pytest.mark.parametrize("kind", _scaffold.KINDS)
@pytest.mark.parametrize("name", ["none", "{kind}", "any", "learn"])
def test_a_name_that_the_example_uses_itself_still_makes_a_class(kind, name, tmp_path):
    name = name.format(kind=kind)
    files = _scaffold.render_plugin(name, kind)
    module = ast.parse(files[f"combee_{name}/_strategy.py"])
    classes = [node.name for node in module.body if isinstance(node, ast.ClassDef)]
    imported = [alias.name for node in ast.walk(module) if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert classes
    assert len(set(classes)) == len(classes)
    assert not set(classes) & set(imported)


def test_new_refuses_the_name_that_would_hide_the_package(tmp_path):
    result = run(plugins_app, ["new", "dspy", "--kind", "operator", "-d", str(tmp_path)])
    assert result.exit_code == 2
    assert "hides combee_dspy" in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name",
    ["", "First", "first_k", "-k", "k-", "a--b", "1st", "../up", "a/b", "a b", "é", "x" * 41, 'a"', "a\nb", "a\n"],
)
def test_new_refuses_names_that_cannot_be_published(name, tmp_path):
    result = run(plugins_app, ["new", "--kind", "operator", "-d", str(tmp_path), "--", name])
    assert result.exit_code == 2
    assert "error: name cannot name a strategy" in result.stderr
    assert not list(tmp_path.iterdir())


def test_new_refuses_the_name_of_an_installed_strategy(tmp_path):
    result = run(plugins_app, ["new", "insert", "--kind", "operator", "-d", str(tmp_path)])
    assert result.exit_code == 2
    assert "already the name of an installed operator" in result.stderr
    assert not list(tmp_path.iterdir())


def test_new_overwrites_nothing(tmp_path):
    there = tmp_path / "combee-dspy-mine"
    there.mkdir()
    (there / "precious").write_text("mine")
    result = run(plugins_app, ["new", "mine", "--kind", "operator", "-d", str(tmp_path)])
    assert result.exit_code == 2
    assert "is there already" in result.stderr
    assert [path.name for path in there.iterdir()] == ["precious"]


def test_new_needs_a_directory_that_exists(tmp_path):
    result = run(plugins_app, ["new", "mine", "--kind", "operator", "-d", str(tmp_path / "nowhere")])
    assert result.exit_code == 2
    assert "Make it first" in result.stderr
    assert not list(tmp_path.iterdir())


def test_new_leaves_nothing_half_written(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    result = run(plugins_app, ["new", "mine", "--kind", "operator", "-d", str(tmp_path)])
    assert result.exit_code == 2
    assert "No space left" in result.stderr
    assert not list(tmp_path.iterdir())


def test_an_unknown_kind_names_the_ones_there_are(tmp_path):
    result = run(plugins_app, ["new", "mine", "--kind", "painter", "-d", str(tmp_path)])
    assert result.exit_code == 2
    assert all(kind in result.output for kind in _scaffold.KINDS)
    with pytest.raises(ArgumentValueError):
        _scaffold.render_plugin("mine", "painter")
