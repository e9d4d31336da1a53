"""A run against a service that misbehaves ends as one against a service that does not."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_bench.surroundings import load_rows, quietly
from combee_dspy import Budget, Combee, Search, Validation
from combee_dspy.exceptions import InfrastructureError
from combee_dspy.journal import Reader, journal_file
from combee_dspy.lms import pooled
from combee_dspy.rollouts import _patient
from combee_simulator import SimulatedConfig, SimulatedService, benchmark_task
from combee_simulator.service import Running
from plugins.bench.tests.sizes import show, size
from plugins.bench.tests.spoiling import FAULTS, Spoiling

pytestmark = pytest.mark.slow
RATE = 0.3
SEED = 0
TRAIN = size("examples", 12)
WORKERS = size("workers", 4)
OF_THE_SERVICE = [name for name, fault in FAULTS.items() if fault.whose == "service"]
OF_THE_MODEL = [name for name, fault in FAULTS.items() if fault.whose == "model"]


@dataclass(frozen=True)
class Run:
    """What became of one compile.

    Attributes:
        requests: Requests that the server counted.
        spoiled: Those of them that did not get their right answer.
        texts: What was learned.
        heldout: Percent that the learned program answers rightly, at a service that behaves.
        failed: Rollouts that were scored as failed.
        errors: Attempts in the books that ended with an error.
    """

    requests: int
    spoiled: int
    texts: Any
    heldout: float
    failed: int
    errors: int


class World:
    """The rows, a service that behaves, and a server before it that spoils its answers."""

    def __init__(self, stack: ExitStack) -> None:
        sizes = {"validation": size("validation", 3), "heldout": size("heldout", 6)}
        self.rows = load_rows("formula-mini", {"task": "compute"}, train=TRAIN, **sizes)
        task = benchmark_task(self.rows, SEED, params={"task": "compute"})
        config = SimulatedConfig(seed=SEED, slots=WORKERS, time_scale=0.01)
        self.service = stack.enter_context(SimulatedService(config, task))
        at_once = SimulatedConfig(seed=SEED, time_scale=0.0)
        self.at_once = stack.enter_context(SimulatedService(at_once, task))
        self.spoiling = Spoiling(f"{self.service.api_base}/chat/completions", RATE, SEED)
        server = Running(self.spoiling, 0)
        stack.callback(server.stop)
        self.api_base = f"http://127.0.0.1:{server.port}/v1"

    def spoil(self, fault: str, away_from: int | None = None, away: float = 0.0) -> None:
        """Have the next run meet a fault."""
        self.spoiling.reset()
        self.spoiling.name, self.spoiling.fault = fault, FAULTS.get(fault)
        self.spoiling.away_from, self.spoiling.away = away_from, away

    def run(self, folder: Path, client: str = "dspy", patience: float = 60.0) -> Run:
        """Compile, and ask the learned program the held-out questions."""
        program = self.compile(folder, client, patience)
        with dspy.context(lm=self.at_once.lm()), quietly():
            heldout = dspy.Evaluate(
                devset=list(self.rows.heldout.examples),
                metric=self.rows.metric,
                num_threads=8,
                display_progress=False,
            )(program)
        with closing(Reader(journal_file(folder))) as reader:
            failed = "SELECT count(*) FROM effect WHERE kind = 'rollout' AND failed_in IS NOT NULL"
            counts = [reader.rows(sql)[0][0] for sql in (failed, "SELECT sum(errors) FROM usage")]
        requests, spoiled = self.spoiling.requests, self.spoiling.spoiled
        texts = program.combee_report.texts
        return Run(requests, spoiled, texts, heldout.score, counts[0], counts[1] or 0)

    def compile(self, folder: Path, client: str, patience: float) -> Any:
        settings: dict[str, Any] = {"api_base": self.api_base, "cache": False, "temperature": 0.0}
        settings |= {"timeout": size("timeout", 2), "api_key": "simulated"}
        plain = client == "dspy"
        lm = dspy.LM("openai/simulated", **settings) if plain else pooled("simulated", **settings)
        combee = Combee(
            self.rows.metric,
            reflection_lm=lm,
            budget=Budget(epochs=1),
            log_dir=folder,
            seed=SEED,
            tracker=(),
            reflection_minibatch_size=-(-TRAIN // 4),
            num_threads=WORKERS,
            validation=Validation(probe=False),
            search=Search(patience=patience),
            executor="asyncio" if client == "asyncio" else "threads",
        )
        train, validation = self.rows.train.examples, self.rows.validation.examples
        with dspy.context(lm=lm), quietly():
            return combee.compile(
                self.rows.program(), trainset=list(train), valset=list(validation)
            )


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with ExitStack() as stack:
        yield World(stack)


@pytest.fixture(scope="module")
def alone(world: World, tmp_path_factory: pytest.TempPathFactory) -> Run:
    world.spoil("none")
    return world.run(tmp_path_factory.mktemp("alone") / "run")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    if not size("pauses", 0):
        monkeypatch.setattr(_patient, "pause_after", lambda retry_after, count: 0.01)


def check_unharmed(name: str, run: Run, alone: Run) -> None:
    show((name, f"{run.requests / alone.requests:.2f} times", replace(run, texts=None)))
    assert (run.texts, run.failed) == (alone.texts, alone.failed)
    assert run.heldout == alone.heldout
    # No right answer is bought twice.
    assert run.requests - run.spoiled <= alone.requests


@pytest.mark.parametrize("fault", OF_THE_SERVICE)
def test_a_fault_of_the_service_changes_nothing(
    fault: str, world: World, alone: Run, tmp_path: Path
) -> None:
    world.spoil(fault)
    run = world.run(tmp_path)
    check_unharmed(fault, run, alone)
    if not FAULTS[fault].always:
        assert run.spoiled
        assert run.errors


@pytest.mark.parametrize("client", ["dspy", "pooled", "asyncio"])
@pytest.mark.parametrize("fault", ["message-null", "outage"])
def test_each_client_goes_through_the_same(
    client: str, fault: str, world: World, alone: Run, tmp_path: Path
) -> None:
    away = (alone.requests // 2, size("outage", 1)) if fault == "outage" else ()
    world.spoil(fault, *away)
    run = world.run(tmp_path, client)
    check_unharmed(f"{fault}, {client}", run, alone)
    assert run.spoiled


def test_a_service_that_is_gone_ends_the_run_and_the_same_lines_go_on(
    world: World, alone: Run, tmp_path: Path
) -> None:
    world.spoil("dead", alone.requests // 2, math.inf)
    with pytest.raises(InfrastructureError, match=r"waited|seconds have passed"):
        world.compile(tmp_path, "dspy", patience=0.2)
    world.spoiling.away_from = None
    check_unharmed("dead", world.run(tmp_path), alone)


@pytest.mark.parametrize("fault", OF_THE_MODEL)
def test_what_a_model_may_answer_is_scored(
    fault: str, world: World, alone: Run, tmp_path: Path
) -> None:
    world.spoil(fault)
    if fault == "50-mb" and size("timeout", 2) < 30:
        pytest.skip("a megabyte needs its time: COMBEE_SIZES=timeout=30")
    run = world.run(tmp_path)
    show((fault, replace(run, texts=None)))
    assert run.spoiled or fault == "long-prompts"
    if fault in ("empty-text", "refusal", "another-language"):
        assert run.failed > alone.failed
