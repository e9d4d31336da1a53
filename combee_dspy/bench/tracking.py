"""What keeping the books costs, and whether they are right: ``python -m combee_dspy.bench.tracking``.

Three measurements on the simulated service. No language model is involved.

``cost`` runs the same rollouts with everything on (ledger, journal, events,
shipper, at most 20 traces) and with everything off, in turn, in one process,
at the service's own latencies, and compares wall-clock. CPU is read per part,
from each part's own thread or calls: the difference of two whole runs would
drown in the client's several ms a call.

``agree`` counts rollouts with errors, retries and cache hits four times: by
the ledger, the journal, MLflow's table and the service.

``kill`` kills a writing process and stops the server at random moments, and
counts after a replay.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import dspy

from combee_dspy.bench.record import LABEL
from combee_dspy.bench.tracking_agree import agree
from combee_dspy.bench.tracking_world import Books, BusTime, Shape, TimedJournal, judged, run_shape
from combee_dspy.costs import Ledger, LedgerRecorder, RolloutMeter, rollout_scope
from combee_dspy.lms.simulated import SimulatedConfig, SimulatedService
from combee_dspy.tracking import MLflowTracker

__all__ = ["Cost", "ledger_cpu", "main", "measure"]

_CALLS = 2_000


@dataclass(frozen=True, slots=True)
class Cost:
    """What the books cost.

    Attributes:
        rollouts: Rollouts of each of the runs.
        cpu_ms: CPU milliseconds a rollout, by part: ``ledger``, ``journal``, ``events``, ``shipper``.
        total_cpu_ms: Their sum.
        wall_on: Seconds of each run with everything on.
        wall_off: Seconds of the run with everything off right before or after it.
        overhead: Median over the pairs of on / off − 1.
        close_seconds: Seconds after the last rollout until all was in MLflow, by run.
    """

    rollouts: int
    cpu_ms: dict[str, float]
    total_cpu_ms: float
    wall_on: tuple[float, ...]
    wall_off: tuple[float, ...]
    overhead: float
    close_seconds: tuple[float, ...]


def ledger_cpu(calls: int = _CALLS) -> float:
    """Return CPU seconds that the ledger takes for one call: its DSPy callback, at the beginning and the end."""
    ledger, meter = Ledger(), RolloutMeter()
    lm = dspy.LM("openai/simulated", api_key="none")
    messages = [{"role": "system", "content": "x" * 800}, {"role": "user", "content": "y" * 400}]
    inputs = {"prompt": None, "messages": messages}
    usage = {"prompt_tokens": 300, "completion_tokens": 20}
    with LedgerRecorder(ledger).installed(), rollout_scope(meter):
        (listener,) = (one for one in dspy.settings.callbacks if type(one).__module__.startswith("combee_dspy"))
        begun = time.thread_time()
        for number in range(calls):
            listener.on_lm_start(str(number), lm, inputs)
            dspy.settings.usage_tracker.add_usage(lm.model, usage)
            listener.on_lm_end(str(number), None)
        return (time.thread_time() - begun) / calls


def measure(rollouts: int, pairs: int, *, time_scale: float = 1.0, slots: int = 64) -> Cost:
    """Measure what the books cost.

    Args:
        rollouts: Rollouts of each run, about.
        pairs: Runs with everything on, each beside one with everything off; the order alternates.
        time_scale: Wall seconds for one simulated second.
        slots: Calls served at once; rollouts in flight.
    """
    shape = Shape.of(rollouts, slots)
    on, off, parts, closes = [], [], [], []
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=True)
    with (
        tempfile.TemporaryDirectory() as temporary,
        SimulatedService(SimulatedConfig(slots=slots, time_scale=time_scale)) as service,
    ):
        lm = service.lm(cache=True)
        store = f"sqlite:///{temporary}/mlflow.db"
        # The store's first use sets it up, the client's first calls warm it: neither is what is measured.
        _on(Shape.of(100, slots), lm, Path(temporary, "warm"), store, "warm")
        for pair in range(pairs):
            for books in (True, False) if pair % 2 else (False, True):
                dspy.cache.reset_memory_cache()
                service.forget_attempts()
                if books:
                    done, cpu, close = _on(shape, lm, Path(temporary, f"run-{pair}"), store, f"pair {pair}")
                    on.append(done.wall)
                    parts.append(cpu)
                    closes.append(close)
                else:
                    off.append(run_shape(shape, lm, judged(lm), books=False, label=f"pair {pair}").wall)
    cpu_ms = {name: statistics.median(part[name] for part in parts) for name in parts[0]}
    return Cost(
        rollouts=shape.rollouts,
        cpu_ms=cpu_ms,
        total_cpu_ms=sum(cpu_ms.values()),
        wall_on=tuple(on),
        wall_off=tuple(off),
        overhead=statistics.median(one / other - 1 for one, other in zip(on, off, strict=True)),
        close_seconds=tuple(closes),
    )


def _on(shape: Shape, lm: dspy.LM, folder: Path, store: str, label: str) -> tuple[Books, dict[str, float], float]:
    journal, bus = TimedJournal(folder), BusTime()
    # Last in the list: the delivering thread has then done everything but this.
    begun = time.monotonic()
    tracker = MLflowTracker("books", store, spool=str(folder / "spool"))
    done = run_shape(shape, lm, judged(lm), journal=journal, tracker=tracker, hooks=(bus,), label=label)
    close = time.monotonic() - begun - done.wall
    if done.hook is None or not done.hook.shipper.complete:
        raise RuntimeError("the shipper did not finish")
    calls = done.totals.total.calls / shape.rollouts
    seconds = {"journal": journal.cpu_seconds, "events": bus.cpu_seconds, "shipper": done.hook.shipper.cpu_seconds}
    each = {name: value / shape.rollouts * 1000 for name, value in seconds.items()}
    return done, {"ledger": ledger_cpu() * calls * 1000, **each}, close


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print JSON, and return 0 where what was measured is as it should be."""
    parser = argparse.ArgumentParser(prog="python -m combee_dspy.bench.tracking", description=__doc__)
    commands = parser.add_subparsers(dest="command")
    cost = commands.add_parser("cost", help="CPU a rollout and wall-clock, with the books and without")
    cost.add_argument("--rollouts", type=int, default=2_000)
    cost.add_argument("--pairs", type=int, default=3)
    cost.add_argument("--time-scale", type=float, default=1.0)
    counted = commands.add_parser("agree", help="ledger, journal, table and service, counted against each other")
    counted.add_argument("--rollouts", type=int, default=10_000)
    counted.add_argument("--threads", type=int, default=64)
    struck = commands.add_parser("kill", help="a killed writer and a stopped server, replayed and counted")
    struck.add_argument("--times", type=int, default=20)
    struck.add_argument("--gone", type=float, default=60.0, help="seconds for which the server does not answer")
    struck.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments or ["cost"])
    logging.disable(logging.WARNING)
    # Standard output is the record's.
    os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    found, fine = _COMMANDS[options.command](options)
    sys.stdout.write(json.dumps({"label": LABEL, "command": options.command, **found}, indent=2) + "\n")
    return 0 if fine else 1


def _cost(options: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    found = measure(options.rollouts, options.pairs, time_scale=options.time_scale)
    return asdict(found), True


def _agree(options: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    with tempfile.TemporaryDirectory() as temporary:
        store = f"sqlite:///{temporary}/mlflow.db"
        found = agree(options.rollouts, Path(temporary, "journal"), threads=options.threads, tracking_uri=store)
    return {**asdict(found), "holds": found.holds}, found.holds


def _kill(options: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    from combee_dspy.bench.tracking_kill import Server, strike

    runs = []
    with tempfile.TemporaryDirectory() as temporary, Server() as server:
        for one in strike(options.times, Path(temporary), server, gone=options.gone, seed=options.seed):
            runs.append(one)
            sys.stderr.write(f"{one}\n")
    exact = sum(one.exact for one in runs)
    return {"runs": [asdict(one) for one in runs], "exact": exact, "times": len(runs)}, exact == len(runs)


_COMMANDS = {"cost": _cost, "agree": _agree, "kill": _kill}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
