"""The group of commands: errors, help, the version, and commands of other distributions."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import textwrap
from importlib import metadata

import pytest
import typer

from combee_dspy import __version__, tracking
from combee_dspy.cli import _group, app
from combee_dspy.exceptions import DataSourceError, LMUnreachableError, LocalModelError

GREET = """
    import typer
    app = typer.Typer(help="Greets.")

    @app.callback()
    def group(): pass

    @app.command()
    def hello(name: str): print(f"hello {name}")
"""
# By distribution: its command, and its module.
COMMANDS = {
    "their_group": ("greet", GREET),
    "their_function": ("plain", "def app(count: int = 2): print('count', count)"),
    "their_broken": ("broken", "raise RuntimeError('made wrong')"),
    "their_number": ("number", "app = 7"),
    "their_thief": ("runs", "def app(): print('not the real one')"),
}


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Distributions on the path: two that work, one that breaks, no command, a taken name."""
    folder = tmp_path / "site"
    for name, (command, code) in COMMANDS.items():
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (folder / f"{name}.py").write_text(textwrap.dedent(code))
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[combee_dspy.commands]\n{command} = {name}:app\n")
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_a_plugins_command_runs(site, shell):
    assert shell("greet", "hello", "Nora") == (0, "hello Nora\n", "")
    assert shell("plain", "--count", "3") == (0, "count 3\n", "")


def test_a_broken_plugin_is_named_and_breaks_nothing_else(site, shell):
    code, _, err = shell("broken", "--with", "anything")
    assert code == 2
    assert "'their_broken'" in err
    assert "RuntimeError: made wrong" in err
    assert "no function" in shell("number")[2]
    code, out, _ = shell("--help")
    assert code == 0
    assert "From their_broken" in out


def test_no_plugin_takes_the_place_of_a_command_of_ours(site, shell):
    assert "not the real one" not in shell("runs")[1]
    problems = {
        (entry["name"], entry["distribution"]): entry["problem"]
        for entry in json.loads(shell("plugins", "--json")[1])
        if entry["kind"] == "command"
    }
    taken = "the name is already taken by distribution 'combee-dspy'"
    assert problems["greet", "their_group"] is None
    assert problems["broken", "their_broken"] == "RuntimeError: made wrong"
    assert problems["runs", "their_thief"] == taken


@pytest.mark.parametrize("name", ["bench", "canary", "diagnose", "tune-scan"])
def test_a_command_of_a_missing_distribution_says_how_to_install_it(shell, monkeypatch, name):
    monkeypatch.setattr(metadata, "entry_points", lambda **_: ())
    assert re.search(rf"^  {name} ", shell("--help")[1], re.MULTILINE)
    code, out, err = shell(name, "anything", "--with", "an option")
    assert (code, out) == (2, "")
    assert f"combee {name} needs combee-dspy[all], which is not installed" in err
    # No index has it: a name that anybody could take there is no remedy.
    assert "from the root of a checkout: pip install . ./plugins/simulator" in err
    assert err.endswith(" ./plugins/bench\n")


def test_help_has_groups_in_whole_words(site, shell, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = shell("--help")[1]
    groups = re.findall(r"^(\w+):$", out, re.MULTILINE)
    assert groups == ["Options", "Start", "Inspect", "Prove", "Ship", "Extend"]
    assert "..." not in out.partition("Start:")[2]
    assert max(map(len, out.splitlines())) <= 80
    extended = out.partition("Extend:")[2]
    assert re.search(r"^  greet +From their_group\.$", extended, re.MULTILINE)
    assert out.count("  runs ") == 1, "a plugin's command of our name is not listed"


@pytest.mark.parametrize("name", typer.main.get_command(app).commands)
def test_a_help_page_shows_no_markup(shell, name):
    page = shell(name, "--help")[1]
    assert "\\b" not in page
    assert "[[" not in page


def test_help_loads_neither_dspy_nor_plugins(site):
    code = (
        "import sys, combee_dspy\n"
        "from combee_dspy.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "names = ('dspy', 'mlflow', 'their_group', 'combee_bench', 'combee_strategist')\n"
        "print([name for name in names if name in sys.modules])\n"
    )
    done = subprocess.run(  # noqa: S603 - this interpreter and the code above
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(site)},
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_no_command_that_reads_a_journal_loads_dspy(recorded, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(recorded, folder)
    code = (
        "import sys\n"
        "from combee_dspy.cli import main\n"
        "for words in (['runs'], ['show'], ['show', 'best'], ['report'], ['candidates']):\n"
        f"    try: main([words[0], {str(folder)!r}, *words[1:]])\n"
        "    except SystemExit as ended: assert not ended.code, words\n"
        "print('dspy' in sys.modules)\n"
    )
    done = subprocess.run(  # noqa: S603 - this interpreter and the code above
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"


def test_a_known_error_is_one_line_without_keys(capsys):
    error = LMUnreachableError("task", "m", "401\nfor sk-abcdefghijklmnop1234\x1b[2J")
    assert _group.say(error) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert line.startswith("error: the task LM 'm' did not answer")
    assert "sk-abc" not in line
    assert "\x1b" not in line


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (LocalModelError("no wheel"), 2),
        (DataSourceError("b", "s", "gone", "Look."), 2),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("of sk-abcdefghijklmnop1234"), 1),
    ],
)
def test_an_error_ends_with_its_code_and_a_fault_with_its_traceback(
    shell, monkeypatch, error, code
):
    def fail(*_):
        raise error

    monkeypatch.setattr(tracking, "overview", fail)
    exit_code, _, err = shell("show", "runs/today")
    assert exit_code == code
    assert "sk-abc" not in err
    assert ("Traceback" in err) == (code == 1)
    assert code == 1 or err.count("\n") == 1


def test_debug_shows_the_traceback_of_a_known_error(shell):
    code, _, err = shell("--debug", "rollouts", "nowhere")
    assert code == 2
    assert "Traceback" in err


def test_the_version_is_shown(shell):
    assert shell("--version") == (0, f"combee_dspy {__version__}\n", "")


def test_benchmarks_are_listed_and_read(shell):
    code, out, _ = shell("benchmarks", "--json")
    here = {row["benchmark"]: row["here"][:3] for row in json.loads(out)}
    assert code == 0
    assert (here["formula-mini"], here["finer"]) == ("yes", "no:")
    code, out, _ = shell("benchmarks", "formula-mini", "--param", "train=12")
    assert code == 0
    assert "12 rows, digest" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--param", "train=3"], "NAME is missing"),
        (["formula-mini", "--param", "train"], "is not name=value"),
        (["formula-mini", "--param", "tain=3"], "tain"),
        (["formula"], "no path"),
    ],
)
def test_a_benchmark_that_cannot_be_read_is_one_line(shell, arguments, words):
    code, _, err = shell("benchmarks", *arguments)
    assert code == 2
    assert words in err
