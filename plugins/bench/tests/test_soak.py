"""A process holds no more after many rollouts and many compiles: memory, handles, threads."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_bench.surroundings import load_rows, quietly
from combee_dspy import Budget, Combee, Search, Validation
from combee_dspy.journal import Reader, journal_file
from combee_simulator import FailureRates, SimulatedConfig, SimulatedService, benchmark_task

SAMPLES = 10
SOURCE: tuple[str, dict[str, Any]] = ("formula-mini", {"task": "compute"})
SIZES = {"train": 240, "validation": 60, "heldout": 1}


@dataclass(frozen=True, slots=True)
class Sample:
    """What the process held at a moment of a run, or after a compile."""

    part: str
    done: int
    mib: float
    handles: int
    threads: int
    journal_mib: float


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_compiles_leave_no_handles_and_no_threads_behind() -> None:
    from plugins.bench.tests.sizes import show, size

    rows = load_rows(*SOURCE, **SIZES)
    options = {
        "rollouts": size("rollouts", 2_000),
        "compiles": size("compiles", 3),
        "workers": size("workers", 32),
        "seed": size("seed", 0),
    }
    rate = size("percent", 10) / 400
    config = SimulatedConfig(
        seed=options["seed"],
        slots=options["workers"],
        time_scale=0.0005,
        failures=FailureRates(server_error=rate, rate_limited=rate, malformed=rate, truncated=rate),
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    samples = []
    with SimulatedService(
        config, benchmark_task(rows, options["seed"], params=SOURCE[1])
    ) as service:
        arguments = json.dumps({**options, "api_base": service.api_base})
        process = subprocess.Popen(  # noqa: S603 - this file
            [sys.executable, __file__, arguments], env=environ, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for line in process.stdout:
            samples.append(Sample(**json.loads(line)))
            show(samples[-1])
        assert process.wait() == 0
    compiles = [sample for sample in samples if sample.part == "compiles"]
    assert len(compiles) == options["compiles"]
    assert {"one run"} < {sample.part for sample in samples}
    assert compiles[-1].handles <= compiles[1].handles
    assert compiles[-1].threads <= compiles[1].threads


def soak(options: dict[str, Any]) -> None:
    """Do all of it, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        run_once(options, Path(folder, "one"))
        for number in range(1, options["compiles"] + 1):
            place = Path(folder, str(number))
            compile_once(options, place, 2 * SIZES["validation"] + 80)
            gc.collect()
            write_row("compiles", number, place)


def run_once(options: dict[str, Any], place: Path) -> None:
    over = threading.Event()

    def watch() -> None:
        samples = 0
        while not over.wait(0.5):
            if not (place / "journal.sqlite").exists():
                continue
            with Reader(journal_file(place)) as reader:
                done = reader.rows("SELECT count(*) FROM effect WHERE kind = 'rollout'")[0][0]
            if done >= (samples + 1) * options["rollouts"] / SAMPLES:
                samples = int(done * SAMPLES / options["rollouts"])
                write_row("one run", done, place)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        compile_once(options, place, options["rollouts"])
    finally:
        over.set()
        thread.join()


def compile_once(options: dict[str, Any], place: Path, rollouts: int) -> None:
    rows = load_rows(*SOURCE, **SIZES)
    lm = dspy.LM(
        "openai/simulated",
        api_base=options["api_base"],
        api_key="simulated",
        cache=False,
        temperature=0.0,
    )
    combee = Combee(
        rows.metric,
        reflection_lm=lm,
        budget=Budget(rollouts=rollouts),
        reflection_minibatch_size=40,
        tracker=(),
        num_threads=options["workers"],
        seed=options["seed"],
        log_dir=place,
        validation=Validation(probe=False),
        search=Search(keep="trunk", staleness=1),
        cache=False,
        skip_perfect_score=False,
    )
    with dspy.context(lm=lm), quietly():
        combee.compile(
            rows.program(),
            trainset=list(rows.train.examples),
            valset=list(rows.validation.examples),
        )


def write_row(part: str, done: int, place: Path) -> None:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    journal = sum(
        file.stat().st_size for file in place.glob("journal.sqlite*") if file.suffix != ".reserve"
    )
    row = Sample(
        part,
        done,
        round(int(status["VmRSS"].split()[0]) / 1024, 1),
        len(list(Path("/proc/self/fd").iterdir())),
        threading.active_count(),
        round(journal / 2**20, 2),
    )
    sys.__stdout__.write(f"{json.dumps(asdict(row))}\n")  # type: ignore[union-attr]  # a pipe
    sys.__stdout__.flush()  # type: ignore[union-attr]


if __name__ == "__main__":
    soak(json.loads(sys.argv[1]))
