"""The group of commands: errors, help, the version, and commands that other distributions bring."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from importlib import metadata

import pytest

from combee_dspy import __version__, demo
from combee_dspy.cli import _group
from combee_dspy.exceptions import DataSourceError, LMUnreachableError, LocalModelError


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Distributions on the path: two that work, one that breaks, one that is no command, one that
    takes a name.
    """
    folder = tmp_path / "site"
    folder.mkdir()

    def add(name, command, code):
        (folder / f"{name}.py").write_text(textwrap.dedent(code))
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[combee_dspy.commands]\n{command} = {name}:app\n")

    group = """
        import typer
        app = typer.Typer(help="Greets.")

        @app.callback()
        def group(): pass

        @app.command()
        def hello(name: str): print(f"hello {name}")
    """
    add("their_group", "greet", group)
    add("their_function", "plain", "def app(count: int = 2): print('count', count)")
    add("their_broken", "broken", "raise RuntimeError('made wrong')")
    add("their_number", "number", "app = 7")
    add("their_thief", "runs", "def app(): print('not the real one')")
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_a_plugins_command_runs(site, shell):
    assert shell("greet", "hello", "Nora") == (0, "hello Nora\n", "")
    assert shell("plain", "--count", "3") == (0, "count 3\n", "")


def test_a_broken_one_says_whose_it_is_and_breaks_nothing_else(site, shell):
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
    entries = json.loads(shell("plugins", "--json")[1])
    by_name = {
        (entry["name"], entry["distribution"]): entry["problem"]
        for entry in entries
        if entry["kind"] == "command"
    }
    assert by_name["greet", "their_group"] is None
    assert by_name["broken", "their_broken"] == "RuntimeError: made wrong"
    assert (
        by_name["runs", "their_thief"] == "the name is already taken by distribution 'combee-dspy'"
    )


@pytest.mark.parametrize(
    "name", ["bench", "canary", "compare", "diagnose", "plan", "publish", "tune-scan", "verify"]
)
def test_a_command_of_a_distribution_that_is_not_there_says_how_it_is_installed(
    shell, monkeypatch, name
):
    monkeypatch.setattr(metadata, "entry_points", lambda **_: ())
    assert re.search(rf"^  {name} ", shell("--help")[1], re.MULTILINE)
    code, out, err = shell(name, "anything", "--with", "an option")
    assert (code, out) == (2, "")
    assert f"combee {name} is not installed" in err
    assert "pip install 'combee-dspy[all]'" in err


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


def test_a_known_error_is_one_line_without_keys(capsys):
    error = LMUnreachableError("task", "m", "401\nfor sk-abcdefghijklmnop1234\x1b[2J")
    assert _group.say(error) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert line.startswith("error: the task LM 'm' did not answer")
    assert "sk-abc" not in line
    assert "\x1b" not in line


def test_a_fault_shows_its_traceback_without_keys(shell, monkeypatch):
    def fail(**_):
        raise ZeroDivisionError("of sk-abcdefghijklmnop1234")

    monkeypatch.setattr(demo, "run_demo", lambda options: fail())
    code, _, err = shell("demo")
    assert code == 1
    assert "Traceback" in err
    assert "ZeroDivisionError" in err
    assert "sk-abc" not in err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (LocalModelError("no wheel"), 2),
        (DataSourceError("b", "s", "gone", "Look."), 2),
        (KeyboardInterrupt(), 130),
    ],
)
def test_an_error_ends_with_its_code(shell, monkeypatch, error, code):
    def fail(_):
        raise error

    monkeypatch.setattr(demo, "run_demo", fail)
    got, _, err = shell("demo")
    assert got == code
    assert err.count("\n") == 1


def test_debug_shows_the_traceback_of_a_known_error(shell):
    code, _, err = shell("--debug", "rollouts", "nowhere")
    assert code == 2
    assert "Traceback" in err
    assert "Traceback" not in shell("rollouts", "nowhere")[2]


@pytest.mark.parametrize(
    "arguments", [["demo", "--seed", "-1"], ["demo", "--nothing"], ["dance"], ["run", "a", "b"]]
)
def test_wrong_usage_is_bad_input(shell, arguments):
    assert shell(*arguments)[0] == 2


def test_the_version_is_shown(shell):
    assert shell("--version") == (0, f"combee_dspy {__version__}\n", "")


def test_every_command_of_ours_has_help(shell):
    for name in (
        "demo",
        "run",
        "runs",
        "show",
        "report",
        "rollouts",
        "candidates",
        "benchmarks",
        "plugins",
        "track",
    ):
        code, out, _ = shell(name, "--help")
        assert code == 0
        assert "noqa" not in out


def test_the_demo_gets_what_was_asked(shell, monkeypatch):
    asked = []
    monkeypatch.setattr(demo, "run_demo", asked.append)
    assert shell("demo")[0] == 0
    given = (
        "--lm openai/m --api-base http://h/v1 --api-key-env K --benchmark formula --seed 4 --tokens"
        " 5 --mlflow"
    )
    assert shell("demo", *given.split(), "--dollars", "0.5")[0] == 0
    assert asked == [
        demo.DemoOptions(),
        demo.DemoOptions(
            lm="openai/m",
            api_base="http://h/v1",
            api_key_env="K",
            benchmark="formula",
            seed=4,
            tokens=5,
            dollars=0.5,
            mlflow=True,
        ),
    ]
    code, _, err = shell("demo", "--api-base", "http://h/v1")
    assert (code, "--lm" in err) == (2, True)


def test_benchmarks_are_listed_and_read(shell):
    code, out, _ = shell("benchmarks", "--json")
    listed = {load["benchmark"]: load for load in json.loads(out)}
    assert code == 0
    assert listed["formula-mini"]["here"].startswith("yes")
    assert listed["finer"]["here"].startswith("no")
    code, out, _ = shell("benchmarks", "formula-mini", "--param", "train=12")
    assert code == 0
    assert "12 rows, digest" in out
    for arguments, words in (
        (["--param", "train=3"], "NAME is missing"),
        (["formula-mini", "--param", "train"], "is not name=value"),
        (["formula-mini", "--param", "tain=3"], "tain"),
        (["formula"], "no path"),
    ):
        code, _, err = shell("benchmarks", *arguments)
        assert (code, words in err) == (2, True), err


@pytest.mark.parametrize("more", [[], ["--lm", "openai/m"]])
def test_a_model_file_that_is_missing_or_in_doubt_is_named(shell, more):
    code, _, err = shell("demo", "--model-file", "none.gguf", *more)
    assert code == 2
    assert "--model-file" in err
