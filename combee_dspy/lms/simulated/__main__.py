"""Run the simulated service in a process of its own: ``python -m combee_dspy.lms.simulated``."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from combee_dspy.exceptions import CombeeError, DataSourceError
from combee_dspy.lms.simulated.capacity import CapacityModel
from combee_dspy.lms.simulated.config import SimulatedConfig
from combee_dspy.lms.simulated.formula import formula_task
from combee_dspy.lms.simulated.knowledge import SimulatedTask
from combee_dspy.lms.simulated.server import SimulatedService

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until interrupted or terminated, and print the counters at the end.

    Args:
        argv: Command line without the program's name; ``sys.argv`` if None.

    Returns:
        Exit code: 0 after an interrupt, 1 where the service could not start.
    """
    arguments = _parser().parse_args(argv)
    try:
        capacity = CapacityModel(arguments.attended_items or None, arguments.written_lessons or None)
        config = SimulatedConfig(
            seed=arguments.seed,
            port=arguments.port,
            slots=arguments.slots,
            time_scale=arguments.time_scale,
            capacity=capacity,
        )
        service = SimulatedService(config, _task(arguments.formula)).start()
    except CombeeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"simulated service: api_base={service.api_base} api_key=simulated model=openai/simulated\n")
    sys.stdout.flush()
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    ended.wait()
    service.stop()
    sys.stdout.write(json.dumps(service.stats().to_dict()) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m combee_dspy.lms.simulated", description=main.__doc__)
    parser.add_argument("--port", type=int, default=0, help="TCP port on 127.0.0.1; 0 chooses a free one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slots", type=int, default=64, help="calls served at once")
    parser.add_argument("--time-scale", type=float, default=1.0, help="wall seconds per simulated second; 0: no wait")
    parser.add_argument("--attended-items", type=int, default=12, help="items read in one writing call; 0: no limit")
    parser.add_argument("--written-lessons", type=int, default=0, help="lessons written in one call; 0: no limit")
    parser.add_argument("--formula", type=Path, nargs="*", default=[], help="JSONL files with rows of Formula")
    return parser


def _task(paths: Sequence[Path]) -> SimulatedTask | None:
    rows: list[dict[str, object]] = []
    for path in paths:
        try:
            rows.extend(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
        except (OSError, ValueError) as error:
            remedy = "Give JSONL files whose rows have context and target."
            raise DataSourceError("formula", str(path), str(error), remedy) from error
    return formula_task(rows) if rows else None


if __name__ == "__main__":
    sys.exit(main())
