"""No limit of a budget is passed where a third of the requests fail and the run is killed as well.

``COMBEE_SIZES="kills=5 examples=60" python -m pytest -s plugins/bench/tests/test_limits.py``
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_bench.surroundings import load_rows, quietly
from combee_dspy import Budget, Combee, Costs, Price, Search, Validation
from combee_dspy.exceptions import CombeeError
from combee_dspy.journal import Reader, journal_file
from combee_dspy.rollouts import _patient
from combee_dspy.streams import derive
from combee_simulator import SimulatedConfig, SimulatedService, benchmark_task
from combee_simulator.service import Running
from plugins.bench.tests.killing import Processes
from plugins.bench.tests.sizes import show, size
from plugins.bench.tests.spoiling import FAULTS, Spoiling

pytestmark = pytest.mark.slow
SEED, RATE, TIMEOUT, PRICE = 0, 0.3, 2.0, 1.0
SOURCE: tuple[str, dict[str, Any]] = ("formula-mini", {"task": "compute"})
LIMITS: dict[str, float] = {
    "rollouts": 40,
    "calls": 60,
    "tokens": 60_000,
    "dollars": 0.06,
    "seconds": 20,
}


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with Processes(compile_once) as processes:
        yield processes


@pytest.mark.parametrize("kind", LIMITS)
def test_no_limit_is_passed_under_faults_and_kills(
    kind: str, processes: Processes, tmp_path: Path
) -> None:
    examples, workers = size("examples", 16), size("workers", 4)
    limit = LIMITS[kind] * max(1, examples // 16)
    sizes = {"train": examples, "validation": examples // 4, "heldout": 1}
    rows = load_rows(*SOURCE, **sizes)
    config = SimulatedConfig(seed=SEED, slots=workers, time_scale=0.01)
    with SimulatedService(config, benchmark_task(rows, SEED, params=SOURCE[1])) as service:
        spoiling = Spoiling(f"{service.api_base}/chat/completions", RATE, SEED)
        spoiling.name, spoiling.fault = "mixed", FAULTS["mixed"]
        server = Running(spoiling, 0)
        try:
            folder = tmp_path / "run"
            arguments = {
                "folder": str(folder),
                "api_base": f"http://127.0.0.1:{server.port}/v1",
                "budget": {kind: limit},
                "sizes": sizes,
                "workers": workers,
            }
            kills, stream = 0, derive(SEED, "limits", kind)
            for at in sorted(stream.sample(range(2, 30), size("kills", 1))):
                kills += processes.kill_at(arguments, at)
            ends = [processes.start(arguments).wait()]
            # What was held for calls in flight at the kill is free again, and is used.
            time.sleep(2 * TIMEOUT + 0.1)
            ends.append(processes.start(arguments).wait())
        finally:
            server.stop()
        used = {"calls": spoiling.requests, "tokens": spoiling.charged}
    with Reader(journal_file(folder), checked=True) as reader:
        sql = "SELECT count(*) FROM effect WHERE kind = 'rollout' AND purpose != 'heldout'"
        used["rollouts"] = reader.rows(sql)[0][0]
        # What the report of the last part says last.
        over = 0.0
        for (data,) in reader.rows("SELECT data FROM event WHERE kind = 'warning' ORDER BY id"):
            stated = re.search(r"may be passed by ([\d.e-]+)\.$", json.loads(data)["text"])
            over = over if stated is None else float(stated[1])
    used["dollars"] = used["tokens"] * PRICE / 1e6
    shown = used.get(kind, "ended in time")
    show(f"| {kind} | {kills} | {shown} of {limit:g} | {over:g} |")
    assert ends == [0, 0]
    if kind != "seconds":
        # What an attempt has cost whose answer was spoiled is in the service's books alone.
        assert used[kind] <= limit + over, used
    if kind in ("tokens", "dollars"):
        with Reader(journal_file(folder)) as reader:
            sql = "SELECT total(prompt_tokens + completion_tokens) FROM usage"
            booked = reader.rows(sql)[0][0]
        assert booked * (PRICE / 1e6 if kind == "dollars" else 1) <= limit
        assert booked * (PRICE / 1e6 if kind == "dollars" else 1) > limit / 3


def compile_once(arguments: dict[str, Any]) -> None:
    """Compile in a process of its own."""
    _patient.pause_after = lambda retry_after, count: 0.01
    rows = load_rows(*SOURCE, **arguments["sizes"])
    lm = dspy.LM(
        "openai/simulated",
        api_base=arguments["api_base"],
        api_key="simulated",
        cache=False,
        temperature=0.0,
        timeout=TIMEOUT,
        max_tokens=4_000,
    )
    combee = Combee(
        rows.metric,
        reflection_lm=lm,
        budget=Budget(**arguments["budget"]),
        costs=Costs(prices={"openai/simulated": Price(PRICE, PRICE)}),
        num_threads=arguments["workers"],
        reflection_minibatch_size=8,
        seed=SEED,
        log_dir=arguments["folder"],
        tracker=(),
        validation=Validation(probe=False),
        search=Search(patience=60),
    )
    with dspy.context(lm=lm), quietly():
        try:
            combee.compile(
                rows.program(),
                trainset=list(rows.train.examples),
                valset=list(rows.validation.examples),
            )
        except CombeeError as error:  # too little was left for the student's validation
            if "budget" not in str(error):
                raise
