"""The command that runs the plugins' own suites says what ran, what failed, and what this machine
lacks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PLUGINS = ("appworld", "ray", "sentence-transformers", "terminal-bench", "textgrad")


@pytest.fixture
def checkout(tmp_path):
    """A checkout with the command and no plugins yet."""
    (tmp_path / "tests" / "plugins").mkdir(parents=True)
    for name in ("run_suites.sh", "suite.sh"):
        shutil.copy(HERE / name, tmp_path / "tests" / "plugins")
    return tmp_path


def add(checkout, name, script):
    folder = checkout / "plugins" / name
    folder.mkdir(parents=True)
    (folder / "test.sh").write_text(f"set -euo pipefail\n{script}\n", encoding="utf-8")


def run(checkout, *names, **settings):
    bash = shutil.which("bash")
    command = [bash, str(checkout / "tests" / "plugins" / "run_suites.sh"), *names]
    settings = {"PATH": os.environ["PATH"], "HOME": str(checkout), **settings}
    done = subprocess.run(  # noqa: S603 - this repository's own script
        command,
        cwd=checkout,
        capture_output=True,
        text=True,
        env=settings,
        timeout=120,
        check=False,
    )
    summary = done.stdout.partition("Suites of the plugins:")[2]
    return (
        done.returncode,
        {line.split()[0]: line for line in summary.splitlines() if line.strip()},
        done,
    )


SUITE = "source tests/plugins/suite.sh\n"
LACKS = f"{SUITE}missing there is no such tool"


def test_what_ran_is_listed_with_its_count(checkout):
    add(checkout, "good", "echo '=== 7 passed in 0.1s ==='")
    code, lines, _ = run(checkout, "good")
    assert code == 0
    assert "passed" in lines["good"]
    assert "7 passed" in lines["good"]


def test_what_a_machine_lacks_is_a_failure_unless_it_may_be_skipped(checkout):
    add(checkout, "good", "true")
    add(checkout, "lacks", LACKS)
    code, lines, _ = run(checkout, "lacks", "good")
    assert code == 1
    assert "not run" in lines["lacks"]
    assert "there is no such tool" in lines["lacks"]
    assert "passed" in lines["good"], "the others run all the same"
    code, lines, done = run(checkout, "lacks", "good", MISSING="skip")
    assert code == 0
    assert "there is no such tool" in lines["lacks"]
    assert "1 could not run here: not tested, and no pass." in done.stdout


@pytest.mark.parametrize("script", ["exit 1", "exit 5", "false", "nonexistent-command"])
def test_a_failure_is_never_skipped(checkout, script):
    add(checkout, "bad", script)
    code, lines, _ = run(checkout, "bad", MISSING="skip")
    assert code == 1
    assert "FAILED" in lines["bad"]


ONCE = "[ ! -e seen ] || { echo '=== 3 passed in 0.1s ==='; exit 0; }; touch seen"
FAILS = "echo 'FAILED tests/test_a.py::test_b - no'; exit 1"


def test_a_failure_is_tried_again_on_demand_and_stays_visible(checkout):
    add(checkout, "shaky", f"{ONCE}; {FAILS}")
    code, lines, _ = run(checkout, "shaky")
    assert (code, "FAILED" in lines["shaky"]) == (1, True)
    (checkout / "seen").unlink()
    code, lines, _ = run(checkout, "shaky", AGAIN="yes")
    assert code == 0
    assert "UNSTABLE" in lines["shaky"]
    assert "tests/test_a.py::test_b" in lines["shaky"]


@pytest.mark.parametrize("again", ["exit 1", LACKS])
def test_what_does_not_pass_when_tried_again_has_failed(checkout, again):
    add(checkout, "bad", f"[ ! -e seen ] || {{ {again}; }}; touch seen; {FAILS}")
    code, lines, done = run(checkout, "bad", MISSING="skip", AGAIN="yes")
    assert (code, "FAILED" in lines["bad"]) == (1, True)
    assert done.stdout.count("== plugins/bad/test.sh") == 2


def test_tests_that_hang_are_stopped_and_have_failed(checkout):
    add(checkout, "hangs", "echo '-- tests of hangs'; sleep 60")
    code, lines, _ = run(checkout, "hangs", MISSING="skip", SUITE_SECONDS="1")
    assert code == 1
    assert "stopped after 1 s" in lines["hangs"]


@pytest.mark.parametrize(
    ("index", "code", "words"), [("true", 1, "FAILED"), ("false", 0, "does not answer")]
)
def test_what_cannot_be_built_is_a_failure_where_the_index_answers(checkout, index, code, words):
    script = (
        f"{SUITE}scratch=$(mktemp -d); sleep() {{ :; }}; index_answers() {{ {index}; }}; build 'its"
        " world' false"
    )
    add(checkout, "builds", script)
    exit_code, lines, done = run(checkout, "builds", MISSING="skip")
    assert exit_code == code
    assert words in lines["builds"]
    assert done.stdout.count("trying again") == 2


def test_every_plugin_with_an_environment_of_its_own_has_a_suite():
    assert sorted(path.parent.name for path in (ROOT / "plugins").glob("*/test.sh")) == list(
        PLUGINS
    )
    text = (HERE / "run_suites.sh").read_text(encoding="utf-8")
    (line,) = [
        line
        for line in text.splitlines()
        if line.strip().startswith("suites=(") and "appworld" in line
    ]
    assert sorted(line.strip().removeprefix("suites=(").removesuffix(")").split()) == list(PLUGINS)


@pytest.fixture
def integration(tmp_path):
    """What continuous integration runs, on a machine whose `make` notes what it is asked for."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    (tmp_path / ".pytest_cache" / "v" / "cache").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "chromium").touch(0o755)

    def integrate(make):
        tool = tmp_path / "bin" / "make"
        tool.write_text(f'#!/bin/bash\necho "$*" >>asked\n{make}\n', encoding="utf-8")
        tool.chmod(0o755)
        done = subprocess.run(  # noqa: S603 - this repository's own script
            [shutil.which("bash"), str(tmp_path / ".ci" / "run")],
            capture_output=True,
            text=True,
            env={"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
            timeout=60,
            check=False,
        )
        return done, (tmp_path / "asked").read_text(encoding="utf-8").splitlines()

    return integrate


PLUGINS_LAST = "test-plugins MISSING=skip AGAIN=yes"


def test_continuous_integration_runs_them_after_the_tests(integration):
    done, targets = integration("true")
    assert done.returncode == 0
    assert targets == ["test", "test-slow", "docs", PLUGINS_LAST]
    assert "UNSTABLE" not in done.stderr


def test_continuous_integration_names_what_passes_the_second_time(integration):
    note = """echo '{"tests/a.py::b": true}' >.pytest_cache/v/cache/lastfailed"""
    done, targets = integration(f'[ "$1" != test-slow ] || {{ {note}; exit 2; }}')
    assert done.returncode == 0
    assert targets == ["test", "test-slow", "test-again", "docs", PLUGINS_LAST]
    assert "UNSTABLE" in done.stderr
    assert '"tests/a.py::b"' in done.stderr


@pytest.mark.parametrize("step", ["docs", "test-again", "test-plugins"])
def test_continuous_integration_refuses_what_fails(integration, step):
    done, _ = integration(f'[ "$1" != test ] && [ "$1" != {step} ]')
    assert done.returncode != 0
