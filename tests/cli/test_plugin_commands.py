"""Commands that other distributions bring."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from importlib import metadata

import pytest
from typer.main import get_command

from combee_dspy.cli import app, main
from combee_dspy.cli._commands import GROUP, PluginGroup, installed_commands
from combee_dspy.cli.plugins import _own_commands


def _plugin_names() -> list[str]:
    return [point.name for point in metadata.entry_points(group=GROUP)]


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Distributions on the path: one that works, one that breaks, one that is no command, one that takes a name."""

    def add(name: str, command: str, target: str, code: str) -> None:
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(code))
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[combee_dspy.commands]\n{command} = {name}:{target}\n")

    add(
        "good_one",
        "greet",
        "app",
        """
        import typer
        app = typer.Typer(help="Greets.")

        @app.callback()
        def group(): pass

        @app.command()
        def hello(name: str): print(f"hello {name}")
        """,
    )
    add("bad_one", "broken", "app", "raise RuntimeError('made wrong')")
    add("odd_one", "number", "app", "app = 7")
    add("rude_one", "runs", "app", "import typer\napp = typer.Typer(help='not the real one')")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code or 0


def test_a_plugins_command_runs(site, capsys):
    assert call("greet", "hello", "Nora") == 0
    assert "hello Nora" in capsys.readouterr().out


def test_a_broken_one_says_whose_it_is_and_breaks_nothing_else(site, capsys):
    assert call("broken", "--with", "anything") == 2
    said = capsys.readouterr().err
    assert "'bad_one'" in said
    assert "RuntimeError: made wrong" in said
    assert call("number") == 2
    assert "no command" in capsys.readouterr().err
    assert call("--help") == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "greet Greets." in page
    assert "broken (cannot be used: RuntimeError: made wrong)" in page


def test_no_plugin_takes_the_place_of_a_command_of_ours(site, capsys):
    assert call("runs", "--help") == 0
    assert "not the real one" not in capsys.readouterr().out


def test_all_are_listed_with_their_owner(site):
    found = {entry.name: (entry.distribution, entry.problem) for entry in installed_commands()}
    assert found["greet"] == ("good_one", None)
    assert found["broken"] == ("bad_one", "RuntimeError: made wrong")
    assert "no command" in found["number"][1]


def test_combee_plugins_lists_them_with_what_is_wrong(site, capsys, tmp_path):
    info = tmp_path / "second_one-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: second_one\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[combee_dspy.commands]\ngreet = good_one:app\n")
    assert call("plugins", "--json") == 0
    entries = [entry for entry in json.loads(capsys.readouterr().out) if entry["kind"] == "command"]
    found = {(entry["name"], entry["distribution"]): entry["problem"] for entry in entries}
    first, second = sorted((problem or "", owner) for (name, owner), problem in found.items() if name == "greet")
    assert first[0] == ""
    assert second[0] == f"the name is already taken by distribution {first[1]!r}"
    assert found["broken", "bad_one"] == "RuntimeError: made wrong"
    assert found["runs", "rude_one"] == "the name is already taken by distribution 'combee-dspy'"
    assert call("plugins") == 0
    assert "command 'broken' from bad_one 1.0: RuntimeError: made wrong" in capsys.readouterr().out


def test_every_command_of_ours_is_taken():
    commands = PluginGroup.list_commands(get_command(app), None)
    assert set(_own_commands()) >= {"run", "plugins", "track", "bench", *commands} - set(_plugin_names())


def test_plugins_are_not_loaded_for_other_commands(site):
    code = "import sys; from combee_dspy.cli import main\ntry: main(['runs', '--help'])\nexcept SystemExit: pass\n"
    code += "import json; print(json.dumps([name for name in ('good_one', 'bad_one') if name in sys.modules]))"
    done = subprocess.run(  # noqa: S603 - this interpreter
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={"PYTHONPATH": str(site)},
    )
    assert json.loads(done.stdout.splitlines()[-1]) == []
