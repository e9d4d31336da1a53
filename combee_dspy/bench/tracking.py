"""What keeping the books costs, and whether they are right: ``python -m combee_dspy.bench.tracking``.

Three measurements on the simulated service. No language model is involved.

``cost`` runs the same rollouts with everything on (ledger, journal, events,
shipper, at most 20 traces) and with everything off, in turn, in one process,
at the service's own latencies, and compares wall-clock. CPU is read per part,
from each part's own thread or calls: the difference of two whole runs would
drown in the client's several ms a call. Some thirteen minutes. At ``--time-scale
0`` the service answers at once: all cores are full then, and everything costs more.

``agree`` counts rollouts with errors, retries and cache hits four times: by
the ledger, the journal, MLflow's table and the service. Some two minutes.

``kill`` kills a writing process and stops the server at random moments, and
counts after a replay. Some seventy seconds for each time, most of them the
minute in which the server is gone.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from combee_dspy.bench.record import LABEL
from combee_dspy.bench.tracking_agree import agree
from combee_dspy.bench.tracking_cost import measure

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print JSON, and return 0 where what was measured is as it should be."""
    parser = argparse.ArgumentParser(prog="python -m combee_dspy.bench.tracking", description=__doc__)
    commands = parser.add_subparsers(dest="command")
    cost = commands.add_parser("cost", help="CPU a rollout and wall-clock, with the books and without")
    cost.add_argument("--rollouts", type=int, default=10_000, help="of each of the paired runs")
    cost.add_argument("--pairs", type=int, default=3)
    cost.add_argument("--time-scale", type=float, default=1.0, help="wall seconds for a simulated one")
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
    found = measure(options.rollouts, options.pairs, time_scale=options.time_scale, say=_saying())
    return asdict(found), found.holds


def _saying() -> Callable[[str], None]:
    begun = time.monotonic()

    def say(line: str) -> None:
        sys.stderr.write(f"{time.monotonic() - begun:6.1f} s  {line}\n")
        sys.stderr.flush()

    return say


def _agree(options: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    with tempfile.TemporaryDirectory() as temporary:
        store = f"sqlite:///{temporary}/mlflow.db"
        say = _saying()
        say(f"{options.rollouts:,} rollouts with errors, retries and cache hits begin")
        found = agree(options.rollouts, Path(temporary, "journal"), threads=options.threads, tracking_uri=store)
    return {**asdict(found), "holds": found.holds}, found.holds


def _kill(options: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    from combee_dspy.bench.tracking_kill import Server, strike

    runs = []
    say = _saying()
    say("an MLflow server starts")
    with tempfile.TemporaryDirectory() as temporary, Server() as server:
        say("it answers")
        for one in strike(options.times, Path(temporary), server, gone=options.gone, seed=options.seed):
            runs.append(one)
            say(f"{len(runs)} of {options.times}: {one}")
    exact = sum(one.exact for one in runs)
    return {"runs": [asdict(one) for one in runs], "exact": exact, "times": len(runs)}, exact == len(runs)


_COMMANDS = {"cost": _cost, "agree": _agree, "kill": _kill}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
