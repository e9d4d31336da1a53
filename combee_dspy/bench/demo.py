"""The demo over several seeds, beside its peers at the same budget.

    python -m combee_dspy.bench.demo --seeds 2-11 --methods combee,gepa,insert --json FILE

Rows, held-out split, model and budget in rollouts are the demo's own; each seed
draws its own rows. One JSON line a run goes to FILE as soon as it is known, so a
run that was broken off goes on where it stopped. The table is printed at the end.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import dspy

from combee_dspy.benchmarks import Benchmark
from combee_dspy.combee import Combee
from combee_dspy.costs import Ledger, LedgerRecorder
from combee_dspy.demo import DemoOptions, DemoPlan, arranged
from combee_dspy.evaluation import paired_difference
from combee_dspy.operators import Insert
from combee_dspy.rollouts import Threads, run_rollout
from combee_dspy.streams import derive_seed

__all__ = ["METHODS", "main", "run_one", "table"]


def _combee(plan: DemoPlan, benchmark: Benchmark, lm: dspy.LM, seed: int, **changes: Any) -> Any:
    given = {"operators": plan.operators(), **plan.arguments, **changes}
    return Combee(
        benchmark.metric,
        max_metric_calls=plan.rollouts,
        reflection_lm=lm,
        num_threads=plan.threads,
        seed=seed,
        progress=False,
        **given,
    )


def _insert(plan: DemoPlan, benchmark: Benchmark, lm: dspy.LM, seed: int) -> Any:
    return _combee(plan, benchmark, lm, seed, operators=[Insert()])


def _gepa(plan: DemoPlan, benchmark: Benchmark, lm: dspy.LM, seed: int) -> Any:
    return dspy.GEPA(
        benchmark.metric, max_metric_calls=plan.rollouts, reflection_lm=lm, num_threads=plan.threads, seed=seed
    )


METHODS: Mapping[str, Callable[[DemoPlan, Benchmark, dspy.LM, int], Any]] = {
    "combee": _combee,
    "gepa": _gepa,
    "insert": _insert,
}
"""Method name to what makes the optimizer: the demo, serial ``dspy.GEPA``, and Combee with ``insert`` alone."""


def run_one(method: str, seed: int) -> dict[str, Any]:
    """Run one method on one seed with the embedded model.

    Args:
        method: A name out of :data:`METHODS`.
        seed: Seed of the rows and of the method.

    Returns:
        Plain JSON data: held-out scores before and after with their interval,
        seconds of the search, LM calls and tokens of the search.
    """
    ledger = Ledger()
    with arranged(DemoOptions(seed=seed, mlflow=False)) as (benchmark, plan, lm):
        student = benchmark.program()
        started = time.monotonic()
        with LedgerRecorder(ledger).installed():
            program = METHODS[method](plan, benchmark, lm, seed).compile(
                student, trainset=list(benchmark.train.examples), valset=list(benchmark.validation.examples)
            )
        seconds = time.monotonic() - started
        before, after = (_scores(which, benchmark, plan) for which in (student, program))
    found = paired_difference(before, after, seed=derive_seed(seed, "demo table"))
    total = ledger.snapshot().total
    return {
        "method": method,
        "seed": seed,
        "before": found.before,
        "after": found.after,
        "low": found.low,
        "high": found.high,
        "size": found.size,
        "seconds": seconds,
        "calls": total.calls,
        "tokens": total.tokens,
        "demonstrations": sum(len(predictor.demos) for predictor in program.predictors()),
        "instruction_changed": any(
            old.signature.instructions != new.signature.instructions
            for old, new in zip(student.predictors(), program.predictors(), strict=True)
        ),
    }


def _scores(program: dspy.Module, benchmark: Benchmark, plan: DemoPlan) -> list[float]:
    """Score the held-out rows, failures included, as a run does."""
    session = Threads().start(plan.threads)
    try:
        pending = [
            session.submit(run_rollout, program, row, "", benchmark.metric, 0.0) for row in benchmark.heldout.examples
        ]
        return [rollout.result().score for rollout in pending]
    finally:
        session.close()


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a Markdown table of runs, methods in the order of their first run."""
    kept = sorted(rows, key=lambda row: (list(METHODS).index(row["method"]), row["seed"]))
    lines = ["| method | seed | held-out before → after | difference | 95 % interval | search, s | tokens |"]
    lines.append("| --- | ---: | --- | ---: | --- | ---: | ---: |")
    for row in kept:
        shown = f"{row['before']:.2f} → {row['after']:.2f}"
        interval = f"{row['low']:+.2f} to {row['high']:+.2f}"
        change = f"{row['after'] - row['before']:+.2f}"
        lines.append(
            f"| {row['method']} | {row['seed']} | {shown} | {change} | {interval} "
            f"| {row['seconds']:.0f} | {row['tokens']:,} |"
        )
    return "\n".join(lines)


def _seeds(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line asks for and print the table."""
    parser = argparse.ArgumentParser(prog="python -m combee_dspy.bench.demo", description=__doc__)
    parser.add_argument("--seeds", type=_seeds, default=_seeds("2-11"), help="a seed, or first-last")
    parser.add_argument("--methods", default=",".join(METHODS), help=f"out of {', '.join(METHODS)}")
    parser.add_argument("--json", type=Path, default=Path("demo-table.jsonl"), help="where each run is noted")
    asked = parser.parse_args(arguments)
    rows = [json.loads(line) for line in asked.json.read_text().splitlines()] if asked.json.exists() else []
    known = {(row["method"], row["seed"]) for row in rows}
    for seed in asked.seeds:
        for method in asked.methods.split(","):
            if (method, seed) in known:
                continue
            row = run_one(method, seed)
            rows.append(row)
            with asked.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            sys.stderr.write(f"{json.dumps(row)}\n")
    sys.stdout.write(table(rows) + "\n")


if __name__ == "__main__":
    main()
