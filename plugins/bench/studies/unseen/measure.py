"""Runs a method on a task at a budget, and scores the program on clean held-out rows."""

from __future__ import annotations

import argparse
import json
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import dspy
import typer

from combee_dspy import Combee
from studies.unseen.answering import Answerer
from studies.unseen.reading import Reader
from studies.unseen.scoring import judge
from studies.unseen.service import Scripted
from studies.unseen.tasks import TASKS


def run(
    name: str, method: str, budget: int, seed: int, loses: float = 0.03, settles: float = 0.0
) -> dict[str, Any]:
    """Compile a task's program by a method, and return what came of it."""
    task = TASKS[name]
    task_lm = Scripted("task", Answerer(task))
    reader = Scripted("reader", Reader(task, seed, loses, settles))
    splits = {split: task.rows(split, seed) for split in ("train", "validation", "heldout")}
    row: dict[str, Any] = {"task": name, "method": method, "budget": budget, "seed": seed}
    with dspy.context(lm=task_lm, disable_history=True), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        program = task.program()
        started = time.monotonic()
        if method != "untouched":
            kind = {"gepa": dspy.GEPA, "combee": Combee}[method]
            optimizer = kind(task.metric, max_metric_calls=budget, reflection_lm=reader, seed=seed)
            try:
                program = optimizer.compile(
                    program, trainset=splits["train"], valset=splits["validation"]
                )
            except Exception as error:  # noqa: BLE001 - a crash is a result
                row["error"] = f"{type(error).__name__}: {error}"
                row["trace"] = traceback.format_exc()
        row["seconds"] = time.monotonic() - started
        row |= {
            "task_calls": task_lm.calls,
            "task_tokens": task_lm.tokens,
            "reader_calls": reader.calls,
            "reader_tokens": reader.tokens,
        }
        texts = {key: part.signature.instructions for key, part in program.named_predictors()}
        row["texts"] = texts
        row["prompt_tokens"] = sum(len(text) // 4 for text in texts.values())
        scores = []
        for example in splits["heldout"]:
            try:
                scores.append(judge(example, program(**example.inputs())))
            except Exception:  # noqa: BLE001 - a program that fails is wrong
                scores.append(0.0)
        row["heldout"] = sum(scores) / len(scores)
        report = getattr(program, "combee_report", None)
        if report is not None:
            row["report"] = str(report)
    return row


def main() -> None:
    """Run all that was asked for, a line of JSON a run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--methods", default="untouched,gepa,combee")
    parser.add_argument("--budgets", default="300")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--loses", type=float, default=0.03)
    parser.add_argument("--settles", type=float, default=0.0)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    for budget in chosen.budgets.split(","):
        for name in chosen.tasks.split(","):
            for seed in chosen.seeds.split(","):
                for method in chosen.methods.split(","):
                    loses, settles = chosen.loses, chosen.settles
                    row = run(name, method, int(budget), int(seed), loses, settles)
                    with chosen.out.open("a") as lines:
                        lines.write(json.dumps(row, ensure_ascii=False) + "\n")
                    result = f"{row['heldout']:.3f}, {row['seconds']:.1f} s"
                    typer.echo(
                        f"{name} {seed} {method} {budget}: {result} {row.get('error', '')[:90]}"
                    )


if __name__ == "__main__":
    main()
