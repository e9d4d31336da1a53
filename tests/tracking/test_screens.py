"""What people see beside the report, in headless Chromium: the terminal's tables, MLflow's pages,
the site.

Pictures go to COMBEE_SHOTS where it names a folder.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import dspy
import pytest
from rich.console import Console
from rich.text import Text

from combee_dspy import Budget, Combee, load_benchmark
from combee_dspy.tracking import MLflowTracker
from combee_simulator import SimulatedConfig, SimulatedService, benchmark_task
from tests.slow import slow_but
from tests.tracking.browser import CHROMIUM, LAPTOP, PHONE, SECONDS, browser

pytestmark = [pytest.mark.chromium, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]
SITE = Path(__file__).parents[2] / os.environ.get("COMBEE_SITE", "")
# Each command's output ends with a NUL.
COMBEE = """
import json, sys
from combee_dspy.cli import main
for words in json.loads(sys.argv[1]):
    try:
        main(words)
    except SystemExit as stop:
        assert not stop.code, words
    print(end="\\0", flush=True)
"""
# Commands, and what each has to write.
COMMANDS = {
    "runs {parent}": "simulated",
    "candidates {run}": "insert",
    "rollouts {run} --limit 12": "validation",
    "show {run}": time.strftime("%Y-"),
    "plugins": "aggregator",
}
PAGES = (
    *("index", "quickstart", "gallery", "reading_the_report", "results", "results/speed"),
    *("api/index", "api/combee_dspy", "cli"),
)
# How light the ground of each block of code is, from 0 to 255.
CODE_LIGHTS = """[...document.querySelectorAll("div.highlight")].map(block => {
  const [red, green, blue] = getComputedStyle(block).backgroundColor.match(/\\d+/g).map(Number);
  return (red + green + blue) / 3;
})"""


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("COMBEE_SHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def learned(folder: Path, **options: Any) -> Path:
    """Compile a program against the simulated service; returns the run's folder."""
    sizes = {"train": 30, "validation": 12, "heldout": 20}
    rows = load_benchmark("formula-mini", task="compute", formulas=6, **sizes)
    task = benchmark_task(rows, 0, params={"task": "compute", "formulas": 6})
    splits = {"trainset": rows.train, "valset": rows.validation, "heldout": rows.heldout}
    with (
        SimulatedService(SimulatedConfig(time_scale=0.0), task) as service,
        dspy.context(lm=service.lm()),
    ):
        settings = {"budget": Budget(rollouts=120), "num_threads": 8, "log_dir": folder / "run"}
        combee = Combee(rows.metric, reflection_lm=service.lm(), **settings, **options)
        examples = {name: list(split.examples) for name, split in splits.items()}
        combee.compile(rows.program(), **examples)
    return folder / "run"


def typed(commands: Sequence[Sequence[str]], columns: int) -> list[str]:
    """Return what commands write to a terminal of some width, colours and all. They run in one
    process, which imports DSPy once.
    """
    ours, theirs = pty.openpty()
    env = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm-256color"}
    command = [sys.executable, "-c", COMBEE, json.dumps(commands)]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, env=env) as process:  # noqa: S603 - ours
        os.close(theirs)
        guard = threading.Timer(120, process.kill)
        guard.start()
        output = b""
        with suppress(OSError):  # a terminal whose other end is closed
            while part := os.read(ours, 65_536):
                output += part
        os.close(ours)
        assert process.wait() == 0, output
        guard.cancel()
    return output.decode().replace("\r", "").split("\0")[:-1]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learned(tmp_path_factory.mktemp("terminal"), tracker=())


@pytest.mark.parametrize("columns", slow_but((80,), [80, 100, 120]))
def test_tables_in_a_terminal(finished: Path, tmp_path: Path, shots: Path, columns: int) -> None:
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True)
    places = {"parent": finished.parent, "run": finished}
    words = [[word.format(**places) for word in command.split()] for command in COMMANDS]
    outputs = typed(words, columns)
    for (command, expected), output in zip(COMMANDS.items(), outputs, strict=True):
        text = Text.from_ansi(output)
        assert expected in text.plain
        # The terminal wraps the sentences of this one, so that they can be copied whole.
        if command != "show {run}":
            assert max(map(len, text.plain.splitlines())) <= columns, command
        title = f"$ combee {command.format(parent='runs', run='runs/run')}"
        console.print(Text(title, "bold"), text, sep="\n")
    page = tmp_path / "terminal.html"
    page.write_text(console.export_html(), encoding="utf-8")

    async def look() -> None:
        async with browser() as tab:
            await tab.open(page, LAPTOP)
            await tab.picture(shots / f"terminal-{columns}.png", whole=True)

    asyncio.run(look())


@contextmanager
def served(store: str, folder: Path) -> Iterator[str]:
    """Serve MLflow's pages of a store; yields their address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store]
    command += ["--port", str(port), "--workers", "1"]
    # Eight processes for jobs that no page needs.
    env = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    own = {"cwd": folder, "env": env, "start_new_session": True}
    output = folder / "server.txt"
    with output.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, **own)  # noqa: S603 - MLflow's
    try:
        until = time.monotonic() + SECONDS
        while not answers(port):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"MLflow's server does not start: {output.read_text()}")
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # its workers too; none has anything to save
        process.wait()


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


@pytest.mark.slow
@pytest.mark.usefixtures("patient_runs")
def test_mlflows_pages(tmp_path: Path, shots: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)  # MLflow keeps artifacts below the folder it is in
    store = f"sqlite:///{tmp_path / 'store.db'}"
    monkeypatch.setattr(mlflow.tracking._tracking_service.utils, "_tracking_uri", None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)  # traces go nowhere else
    learned(tmp_path, tracker=[MLflowTracker()])
    client = mlflow.MlflowClient(store)
    experiment = client.get_experiment_by_name("combee_dspy").experiment_id
    (run,) = client.search_runs([experiment])
    assert client.search_traces(locations=[experiment])
    of_experiment = f"/#/experiments/{experiment}"
    of_run = f"{of_experiment}/runs/{run.info.run_id}"
    text = "document.body.innerText.includes({!r})".format
    # What each page has to hold before its picture is taken.
    pages = {
        "experiment": (f"{of_experiment}/runs", text(run.info.run_name)),
        "run": (of_run, text("heldout")),
        "charts": (f"{of_run}/model-metrics", "document.querySelector('.js-plotly-plot svg')"),
        "traces": (f"{of_experiment}/traces", text("Simulated reasoning")),
        "report": (f"{of_run}/artifacts/report.html", "document.querySelector('iframe')"),
    }

    async def look(address: str) -> None:
        async with browser() as tab:
            for name, (page, there) in pages.items():
                await tab.open("about:blank", LAPTOP)  # or the page before would be there still
                await tab.open(address + page, LAPTOP)
                await tab.until(f"!!({there})")
                await asyncio.sleep(1)  # what is drawn after it is there
                await tab.picture(shots / f"mlflow-{name}.png")

    with served(store, tmp_path) as address:
        asyncio.run(look(address))


@pytest.mark.skipif(
    "COMBEE_SITE" not in os.environ, reason="make docs builds the site, then runs this"
)
@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_the_site(shots: Path, size: tuple[int, int]) -> None:
    async def look() -> None:
        async with browser() as tab:
            for page in PAGES:
                await tab.open(SITE / f"{page}.html", size)
                await tab.picture(shots / f"site-{re.sub(r'[^a-z_]', '-', page)}-{size[0]}.png")
                assert await tab.value("document.documentElement.scrollWidth") <= size[0], page
                for dark in (False, True):
                    await tab.open(SITE / f"{page}.html", size, dark=dark)
                    lights = await tab.value(CODE_LIGHTS)
                    assert all(light < 128 if dark else light > 128 for light in lights), page
            assert tab.messages == []

    asyncio.run(look())
