"""What a run promises, each promise with the test that holds it and its figures."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from combee_bench.options import Rate
from combee_dspy.strategies import parameters

_TESTS = "plugins/bench/tests"


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise.

    Attributes:
        says: What is promised.
        test: The test that would fail.
        sizes: How much the test does in full, by the names of ``COMBEE_SIZES``.
        fixed: Sizes that no share makes smaller.
    """

    says: str
    test: str
    sizes: Mapping[str, int]
    fixed: Mapping[str, int]


PROMISES = {
    "kills": Promise(
        "killed anywhere: nothing lost, nothing bought twice",
        f"{_TESTS}/test_kills.py",
        {"kills": 13},
        {"examples": 40, "validation": 10, "workers": 8},
    ),
    "compare": Promise(
        "a comparison killed: whole journals, the same figures",
        f"{_TESTS}/test_compare_kills.py",
        {"kills": 10},
        {},
    ),
    "live": Promise(
        "servers and a learner killed: no request lost, no trace learned twice",
        f"{_TESTS}/test_live_kills.py",
        {"kills": 30},
        {},
    ),
    "faults": Promise(
        "30 % of 25 faults: the same program",
        f"{_TESTS}/test_faults.py",
        {"examples": 120, "validation": 30, "heldout": 60, "workers": 32},
        {},
    ),
    "budgets": Promise(
        "five budgets under faults and kills: no limit passed",
        f"{_TESTS}/test_limits.py",
        {"kills": 10},
        {"examples": 16},
    ),
    "answers": Promise(
        "hostile answers and files: errors by name, nothing that hangs",
        f"{_TESTS}/test_fuzz.py",
        {"outputs": 20_000, "files": 1_000, "texts": 1_000, "longest": 1_000_000},
        {},
    ),
    "damage": Promise(
        "a damaged journal is never taken for another",
        f"{_TESTS}/test_damage.py",
        {"times": 430},
        {"effects": 60},
    ),
    "soak": Promise(
        "memory and handles stay", f"{_TESTS}/test_soak.py", {"rollouts": 100_000}, {"compiles": 5}
    ),
    "attacks": Promise(
        "orders in training text", f"{_TESTS}/test_attacks.py", {"attacks": 100}, {}
    ),
    "keys": Promise(
        "keys of known forms are masked", "tests/security/test_secret_corpus.py", {}, {}
    ),
}


@parameters
class PromisesOptions:
    """Hold every promise of docs/results/reliability.md, and write its figures.

    Args:
        share: How much of it; what the slow tests do by themselves is a tenth.
        only: Some of the promises, by comma.
    """

    share: Rate = 1.0
    only: tuple[str, ...] = tuple(PROMISES)


@dataclass(frozen=True, slots=True)
class PromiseRow:
    """What became of a promise: how its test ended, in how many seconds, and what it showed."""

    name: str
    says: str
    command: str
    outcome: str
    seconds: float
    figures: tuple[str, ...]


def run(options: PromisesOptions) -> Iterator[PromiseRow]:
    """Run the test of each promise in a process of its own."""
    root = Path(__file__).parents[3]
    for name in options.only:
        promise = PROMISES[name]
        sizes = {key: max(1, round(full * options.share)) for key, full in promise.sizes.items()}
        written = " ".join(f"{key}={value}" for key, value in {**sizes, **promise.fixed}.items())
        command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider"]
        began = time.monotonic()
        ended = subprocess.run(  # noqa: S603 - ours
            [*command, promise.test],
            cwd=root,
            env={**os.environ, "COMBEE_SIZES": written},
            capture_output=True,
            text=True,
            check=False,
        )
        lines = ended.stdout.strip().splitlines() or [""]
        figures = tuple(line for line in lines if re.match(r"[|({]|\w+\(", line))
        seconds = time.monotonic() - began
        short = f'COMBEE_SIZES="{written}" pytest {promise.test}'
        yield PromiseRow(name, promise.says, short, lines[-1], seconds, figures)


def line(options: PromisesOptions, row: PromiseRow) -> str:
    """Return what is said of one promise when its test ends."""
    return "\n".join([f"{row.name}: {row.outcome}", *(f"  {text}" for text in row.figures)])


def table(options: PromisesOptions, rows: Sequence[PromiseRow]) -> str:
    """Return the table of docs/results/reliability.md."""
    cells = [("promise", "outcome", "seconds", "command"), ("---", "---", "---:", "---")]
    cells += [(row.says, row.outcome, f"{row.seconds:.0f}", f"`{row.command}`") for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)
