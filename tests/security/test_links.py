"""A folder that somebody sent: links, hard links and pipes in it neither change a file elsewhere
nor stop a command.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from combee_dspy.cli import main
from combee_dspy.exceptions import ArgumentValueError, DataSourceError, NotPlainFileError
from combee_dspy.journal import Reader
from combee_dspy.tracking._mlflow_store import make_store
from plugins.strategist.tests.searches import SPEC, Converged
from tests.artifacts.test_online import examples, serving
from tests.worlds import World

pytestmark = pytest.mark.skipif(
    os.name != "posix", reason="named pipes and links of a user are POSIX's"
)

SECRET = b"what the user wrote\n"
DATABASE = ("", "-wal", "-shm", "-journal", ".lock")
JOURNAL = [f"journal.sqlite{ending}" for ending in (*DATABASE, ".holder", ".reserve")]
KINDS = ("link", "dangling", "hard link", "pipe", "folder")
RUN = """
data:
  benchmark:
    name: formula-mini
    params: {task: compute, formulas: 4, train: 8, validation: 8, heldout: 4}
lms: {task: {model: simulated, time_scale: 0}}
budget: {rollouts: 20}
tracker: []
output: learned.json
"""


class Trap:
    """Something planted under a name that a command writes, and a file of the user's that it leads
    to.
    """

    def __init__(self, outside: Path) -> None:
        self.outside = outside
        self.victim = outside / "victim"
        self.victim.write_bytes(SECRET)

    def plant(self, path: Path, kind: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        match kind:
            case "link":
                path.symlink_to(self.victim)
            case "dangling":
                path.symlink_to(self.outside / "new")
            case "hard link":
                path.hardlink_to(self.victim)
            case "pipe":
                os.mkfifo(path)
            case "folder":
                path.mkdir()

    def assert_harmless(self) -> None:
        assert self.victim.read_bytes() == SECRET
        assert [file.name for file in self.outside.iterdir()] == ["victim"]


@pytest.fixture
def trap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trap]:
    """A trap; whatever waits for a pipe fails after some seconds, and does not hang the tests."""

    def give_up(*_: object) -> None:
        raise AssertionError("it waits for a pipe")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(60)
    trap = Trap(tmp_path_factory.mktemp("outside"))
    yield trap
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    trap.assert_harmless()


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log_dir of a run that has ended."""
    folder = tmp_path_factory.mktemp("serial")
    World.made().compile(max_metric_calls=60, log_dir=folder / "log")
    return folder / "log"


def outcome(command: Callable[[], object]) -> str:
    """Return what a refusal says; empty where the command went through."""
    try:
        command()
    except (ArgumentValueError, NotPlainFileError) as error:
        return str(error)
    return ""


def shell(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what ``combee`` says on standard error when it ends with exit code 2; empty where it
    went through.
    """
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    errors = capsys.readouterr().err
    assert caught.value.code in (0, 1, 2), errors
    assert "Traceback" not in errors
    return errors if caught.value.code == 2 else ""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", JOURNAL)
def test_a_run_refuses_what_lies_where_its_journal_belongs(trap, tmp_path, name, kind):
    trap.plant(tmp_path / name, kind)
    refusal = outcome(lambda: World.made().compile(max_metric_calls=40, log_dir=tmp_path))
    if kind == "hard link" and name.endswith((".holder", ".reserve")):
        assert refusal == ""  # a new file takes its place
        with Reader(tmp_path / "journal.sqlite") as reader:
            assert reader.rows("SELECT state FROM run")[0][0] == "finished"
    else:
        assert str(tmp_path / name) in refusal
        assert "Move it away" in refusal or "Copy the folder" in refusal


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ending", DATABASE)
def test_so_does_a_cache(trap, tmp_path, ending, kind):
    cache = tmp_path / "cache.sqlite"
    trap.plant(cache.with_name(cache.name + ending), kind)
    assert f"{cache}{ending}" in outcome(
        lambda: World.made().compile(max_metric_calls=40, cache=str(cache))
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_in_the_way_is_told_and_does_not_end_the_run(trap, tmp_path, caplog, kind):
    trap.plant(tmp_path / "report.html", kind)
    with caplog.at_level(logging.WARNING):
        program = World.made().compile(max_metric_calls=40, log_dir=tmp_path)
    assert program.combee_report.rollouts
    assert ("report.html" in caplog.text) == (kind != "hard link")


@pytest.mark.parametrize("kind", ["link", "pipe"])
@pytest.mark.parametrize("ending", ["", "-wal", "-shm"])
@pytest.mark.parametrize(
    "command", ["show", "runs", "report", "candidates", "rollouts", "diagnose"]
)
def test_a_reader_of_a_journal_neither_waits_nor_writes_beside_another(
    trap, tmp_path, capsys, finished, command, ending, kind
):
    shutil.copytree(finished, tmp_path / "log")
    path = tmp_path / "log" / f"journal.sqlite{ending}"
    trap.plant(path, kind)
    assert str(path) in shell(capsys, command, str(tmp_path / "log"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("report", "report.html"),
        ("diagnose", "diagnosis.json"),
        ("diagnose", "diagnosis.md"),
        ("diagnose", "diagnosis.html"),
    ],
)
def test_a_page_does_not_follow_a_link(trap, tmp_path, capsys, finished, command, name, kind):
    shutil.copytree(finished, tmp_path / "log")
    path = tmp_path / "log" / name
    trap.plant(path, kind)
    refusal = shell(capsys, command, str(tmp_path / "log"))
    assert (str(path) in refusal) == (kind != "hard link")


@pytest.fixture(scope="module")
def serial(tmp_path_factory) -> Path:
    return Converged(tmp_path_factory.mktemp("serial")).write("begin")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["plan.md", "plan.html", "plan.json"])
def test_a_plan_does_not_follow_a_link(trap, serial, tmp_path, capsys, name, kind):
    spec = SPEC | {"serial": {**SPEC["serial"], "run": str(serial)}}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    trap.plant(tmp_path / name, kind)
    refusal = shell(capsys, "plan", str(tmp_path / "spec.yaml"))
    assert (str(tmp_path / name) in refusal) == (kind != "hard link"), refusal


@pytest.mark.parametrize("kind", KINDS)
def test_what_combee_run_learned_does_not_follow_a_link(trap, tmp_path, capsys, monkeypatch, kind):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "run.yaml").write_text(RUN, encoding="utf-8")
    for name in (".learned.part.json", "learned.json"):
        trap.plant(tmp_path / name, kind)
    refusal = shell(capsys, "run", str(tmp_path / "run.yaml"))
    assert ("learned.json" in refusal) == (kind != "hard link"), refusal


@pytest.mark.parametrize("command", ["diagnose", "verify"])
def test_a_folder_that_a_command_names_is_no_link(trap, tmp_path, capsys, monkeypatch, command):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "run.yaml").write_text(
        RUN.replace("output: learned.json", "log_dir: log"), encoding="utf-8"
    )
    path = tmp_path / {"diagnose": "log-serial", "verify": "log-verify"}[command]
    path.symlink_to(trap.outside, target_is_directory=True)
    assert str(path) in shell(capsys, command, str(tmp_path / "run.yaml"))


@pytest.mark.parametrize("command", ["run", "plan", "diagnose", "verify"])
def test_no_command_waits_for_its_own_file(trap, tmp_path, capsys, command):
    trap.plant(tmp_path / "given.yaml", "pipe")
    assert str(tmp_path / "given.yaml") in shell(capsys, command, str(tmp_path / "given.yaml"))


def test_rows_in_a_pipe_are_not_waited_for(trap, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    trap.plant(tmp_path / "rows.jsonl", "pipe")
    data = (
        "data: {train: rows.jsonl, inputs: [question]}\nlms: {task: x/y}\nbudget: {rollouts: 9}\n"
    )
    (tmp_path / "run.yaml").write_text(
        f"{data}program: 'dspy:Predict'\nmetric: 'json:dumps'\n", encoding="utf-8"
    )
    assert "rows.jsonl" in shell(capsys, "run", str(tmp_path / "run.yaml"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["playbook.txt", "playbook.txt.tmp"])
def test_a_playbook_does_not_follow_a_link(trap, tmp_path, name, kind):
    trap.plant(tmp_path / name, kind)
    refusal = outcome(lambda: _serve(tmp_path / "playbook.txt"))
    assert (str(tmp_path / "playbook.txt") in refusal) == (name == "playbook.txt")


def _serve(path: Path) -> None:
    server = serving(path=path)
    server.predict(examples("lynx"))
    server.learn()


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "folder"])
def test_a_store_of_mlflow_is_no_link(trap, tmp_path, kind):
    trap.plant(tmp_path / "mlflow.db", kind)
    with pytest.raises(NotPlainFileError, match=r"mlflow\.db"):
        make_store(f"sqlite:///{tmp_path / 'mlflow.db'}")


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_receipts_do_not_follow_a_link(trap, tmp_path, monkeypatch, caplog, kind):
    monkeypatch.delenv("COMBEE_RECEIPTS")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").touch()
    trap.plant(tmp_path / "combee-heldout.jsonl", kind)
    with caplog.at_level(logging.WARNING):
        World.made().compile(max_metric_calls=40, heldout=12)
    assert str(tmp_path / "combee-heldout.jsonl") in caplog.text


def test_a_benchmark_does_not_wait_for_a_pipe(trap, tmp_path):
    from combee_dspy.benchmarks import load_benchmark

    for name in ("train", "validation", "test"):
        trap.plant(tmp_path / f"{name}.jsonl", "pipe")
    with pytest.raises((NotPlainFileError, DataSourceError), match=str(tmp_path)):
        load_benchmark("formula", path=str(tmp_path))
