"""Commands that other distributions bring."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

from combee_dspy.cli import main
from combee_dspy.cli._commands import installed_commands


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
