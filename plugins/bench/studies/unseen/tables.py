"""The table of a file of runs: means, paired differences, and runs below the untouched program."""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from pathlib import Path
from statistics import fmean, stdev

import typer
from scipy.stats import t

_METHODS = ("untouched", "gepa", "combee")
_Runs = dict[tuple[str, int], dict[str, dict[int, dict[str, float]]]]
"""By task and budget, by method, by seed."""


def interval(differences: list[float]) -> str:
    """Return a mean difference with its 95 % interval over seeds or tasks, by Student's t."""
    mean, count = fmean(differences), len(differences)
    if count < 2:
        return f"{mean:+.3f}"
    half = float(t.ppf(0.975, count - 1)) * stdev(differences) / math.sqrt(count)
    return f"{mean:+.3f} ({mean - half:+.3f} to {mean + half:+.3f})"


def main() -> None:
    """Print a row for each task and budget."""
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", type=Path)
    chosen = parser.parse_args()
    runs: _Runs = defaultdict(lambda: defaultdict(dict))
    for line in chosen.runs.read_text().splitlines():
        row = json.loads(line)
        runs[row["task"], row["budget"]][row["method"]][row["seed"]] = row
    typer.echo(
        "| task | budget | untouched | GEPA | Combee | Combee less GEPA, 95 % | below untouched:"
        " GEPA, Combee | prompt tokens: GEPA, Combee | seconds: GEPA, Combee |"
    )
    typer.echo("| --- | ---: | ---: | ---: | ---: | --- | --- | --- | --- |")
    over: defaultdict[int, list[float]] = defaultdict(list)
    for (task, budget), methods in runs.items():
        seeds = sorted(set.intersection(*(set(methods[method]) for method in _METHODS)))
        if not seeds:
            continue
        score = {
            method: [methods[method][seed]["heldout"] for seed in seeds] for method in _METHODS
        }
        pair = ("gepa", "combee")
        below = ", ".join(
            str(sum(a < b for a, b in zip(score[m], score["untouched"], strict=True))) for m in pair
        )
        means = " | ".join(f"{fmean(score[m]):.3f}" for m in ("untouched", *pair))
        cost = [
            ", ".join(f"{fmean(methods[m][seed][key] for seed in seeds):.0f}" for m in pair)
            for key in ("prompt_tokens", "seconds")
        ]
        gaps = [a - b for a, b in zip(score["combee"], score["gepa"], strict=True)]
        over[budget].append(fmean(gaps))
        typer.echo(
            f"| {task} | {budget} | {means} | {interval(gaps)} | {below} of {len(seeds)} |"
            f" {cost[0]} | {cost[1]} |"
        )
    for budget, differences in over.items():
        typer.echo(f"\n{len(differences)} tasks, {budget} rollouts: {interval(differences)}")


if __name__ == "__main__":
    main()
