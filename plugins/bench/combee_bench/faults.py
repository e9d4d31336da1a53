"""Does a run against a service that misbehaves end as one against a service that does not, and at
what cost?
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy
from rich.table import Table

from combee_bench.options import FaultsOptions
from combee_bench.spoiling import FAULTS, Spoiling
from combee_bench.surroundings import LABEL, load_rows, quietly
from combee_bench.tables import by_rows
from combee_dspy import Budget, Combee, Search, Validation
from combee_dspy.exceptions import ArgumentValueError, InfrastructureError
from combee_dspy.journal import Reader, journal_file
from combee_dspy.lms import pooled
from combee_simulator import SimulatedConfig, SimulatedService, benchmark_task
from combee_simulator.service import Running

__all__ = ["FaultsRow", "line", "passed", "run", "table"]

_AWAY = ("outage", "dead")
# A dead service is given up after so many seconds, and back when the run is started again.
_PATIENCE = 3.0


@dataclass(frozen=True, slots=True)
class FaultsRow:
    """One run.

    Attributes:
        fault: What the service did; ``none`` for the run left alone.
        whose: Whose fault it is: the ``service``'s, or what a ``model`` may answer.
        ended: ``as usual``, or the error; for the dead service that error, after which the run went
            on.
        requests: Requests that the server counted.
        spoiled: Those of them that did not get their right answer.
        ratio: Requests by those of the run left alone.
        same_program: Whether the learned texts are those of the run left alone.
        heldout: Held-out score of the learned program at a service that behaves, in percent.
        failed: Rollouts that were scored as failed.
        again: Attempts in the books that ended with an error.
        seconds: Wall seconds, with both parts where it went on.
    """

    fault: str
    whose: str
    ended: str
    requests: int
    spoiled: int
    ratio: float
    same_program: bool
    heldout: float
    failed: int
    again: int
    seconds: float


def run(options: FaultsOptions) -> Iterator[FaultsRow]:
    """Compile once against a service that behaves, then once for each fault.

    Raises:
        ArgumentValueError: There is no such fault.
    """
    known = (*FAULTS, *_AWAY)
    for name in options.faults or ():
        if name not in known:
            raise ArgumentValueError(
                "faults", name, "is no fault", f"Give one of {'; '.join(known)}."
            )
    sizes = {
        "train": options.examples,
        "validation": options.validation,
        "heldout": options.heldout,
    }
    rows = load_rows("formula-mini", {"task": "compute"}, **sizes)
    task = benchmark_task(rows, options.seed, params={"task": "compute"})
    config = SimulatedConfig(
        seed=options.seed, slots=options.workers, time_scale=options.time_scale
    )
    with ExitStack() as stack:
        service = stack.enter_context(SimulatedService(config, task))
        at_once = stack.enter_context(
            SimulatedService(SimulatedConfig(seed=options.seed, time_scale=0.0), task)
        )
        spoiling = Spoiling(f"{service.api_base}/chat/completions", options.rate, options.seed)
        server = Running(spoiling, 0)
        stack.callback(server.stop)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bench = _Bench(options, rows, spoiling, f"http://127.0.0.1:{server.port}/v1", at_once)
        alone = bench.row("none", folder / "alone", None)
        yield alone
        for number, name in enumerate(options.faults or known):
            yield bench.row(name, folder / str(number), alone)


@dataclass(slots=True)
class _Bench:
    options: FaultsOptions
    rows: Any
    spoiling: Spoiling
    api_base: str
    at_once: SimulatedService
    texts: Any = None

    def row(self, name: str, folder: Path, alone: FaultsRow | None) -> FaultsRow:
        spoiling, ended = self.spoiling, "as usual"
        spoiling.reset()
        spoiling.name, spoiling.fault = name, FAULTS.get(name)
        spoiling.away_from = alone.requests // 2 if alone is not None and name in _AWAY else None
        spoiling.away = math.inf if name == "dead" else self.options.outage
        began = time.monotonic()
        try:
            program = self._compiled(
                folder, _PATIENCE if name == "dead" else self.options.outage + 60.0
            )
        except InfrastructureError as error:
            ended = str(error)
            if name != "dead":
                asked = spoiling.requests, spoiling.spoiled
                return FaultsRow(
                    name,
                    "service",
                    ended,
                    *asked,
                    math.nan,
                    False,
                    math.nan,
                    *_scored(folder),
                    math.nan,
                )
            spoiling.away_from = None
            program = self._compiled(folder, _PATIENCE)
        seconds, report = time.monotonic() - began, program.combee_report
        if alone is None:
            self.texts = report.texts
        with dspy.context(lm=self.at_once.lm()), quietly():
            found = dspy.Evaluate(
                devset=list(self.rows.heldout.examples),
                metric=self.rows.metric,
                num_threads=8,
                display_progress=False,
            )(program)
        requests = spoiling.requests
        ratio = requests / (requests if alone is None else alone.requests)
        whose = "service" if spoiling.fault is None else spoiling.fault.whose
        return FaultsRow(
            name,
            whose,
            ended,
            requests,
            spoiling.spoiled,
            ratio,
            report.texts == self.texts,
            found.score,
            *_scored(folder),
            seconds,
        )

    def _compiled(self, folder: Path, patience: float) -> Any:
        options, rows = self.options, self.rows
        settings: dict[str, Any] = {"api_base": self.api_base, "cache": False, "temperature": 0.0}
        settings |= {"timeout": options.timeout, "api_key": "simulated"}
        lm = (
            dspy.LM("openai/simulated", **settings)
            if options.client == "dspy"
            else pooled("simulated", **settings)
        )
        combee = Combee(
            rows.metric,
            reflection_lm=lm,
            budget=Budget(epochs=1),
            log_dir=folder,
            seed=options.seed,
            tracker=(),
            reflection_minibatch_size=-(-options.examples // 4),
            num_threads=options.workers,
            validation=Validation(probe=False),
            search=Search(patience=patience),
            executor="asyncio" if options.client == "asyncio" else "threads",
        )
        with dspy.context(lm=lm), quietly():
            return combee.compile(
                rows.program(),
                trainset=list(rows.train.examples),
                valset=list(rows.validation.examples),
            )


def _scored(folder: Path) -> tuple[int, int]:
    """Return how many rollouts in a journal were scored as failed, and how many attempts ended with
    an error.
    """
    with closing(Reader(journal_file(folder))) as reader:
        failed = reader.rows(
            "SELECT count(*) FROM effect WHERE kind = 'rollout' AND failed_in IS NOT NULL"
        )[0][0]
        errors = reader.rows("SELECT sum(errors) FROM usage")[0][0]
    return int(failed), int(errors or 0)


def line(options: FaultsOptions, row: FaultsRow) -> str:
    """Return one run in a line."""
    return (
        f"{row.fault}: {row.ended}, {row.ratio:.2f} times the requests, the same program:"
        f" {row.same_program}"
    )


def passed(options: FaultsOptions, rows: Sequence[FaultsRow]) -> bool:
    """Return whether faults of the service were scored nowhere, changed nothing, and had no right
    answer bought twice.

    How many requests were spoiled is chance, so that no ratio is asked for.
    """
    return all(
        row.same_program
        and row.failed == rows[0].failed
        and row.requests - row.spoiled <= rows[0].requests
        and (row.ended == "as usual") == (row.fault != "dead")
        for row in rows
        if row.whose == "service"
    )


def table(options: FaultsOptions, rows: Sequence[FaultsRow]) -> Table:
    """Return the runs as a table."""
    heads = (
        "<fault",
        "<whose",
        "requests",
        "spoiled",
        "× alone",
        "same program",
        "held-out, %",
        "alone",
        "scored failed",
        "attempts failed",
        "seconds",
        "<ended",
    )
    cells = [
        (
            row.fault,
            row.whose,
            str(row.requests),
            str(row.spoiled),
            f"{row.ratio:.2f}",
            "yes" if row.same_program else "NO",
            f"{row.heldout:.1f}",
            f"{rows[0].heldout:.1f}",
            str(row.failed),
            str(row.again),
            f"{row.seconds:.1f}",
            row.ended,
        )
        for row in rows
    ]
    notes = (
        (
            f"{options.rate:.0%} of the requests are spoiled, so {1 / (1 - options.rate):.2f} times"
            " as many are expected."
        ),
        "whose: what a model may answer itself is scored; a fault of the service must not be.",
        "held-out: of the learned program, at a service that behaves.",
    )
    return by_rows(f"A service that misbehaves ({LABEL})", heads, cells, notes)
