"""What a further draw of the finalists is worth, and whom it is worth drawing.

    python -m combee_dspy.bench.finals --json finals.json

No language model is involved: candidates of known quality are drawn from three worlds, chosen among by one draw of
the validation set, and chosen among again after a further draw of the best three and of fewer of them. A world says
how far the questions of a candidate of quality q are chance:

- ``even``: each question is right with probability q;
- ``own``: each candidate has its own easy and hard questions, Beta(q, 1 − q) each: many are nearly certain;
- ``shared``: the questions' difficulty is the same for all candidates, and only those at its edge are chance.

Gains and losses are in expected accuracy over all questions of such a world.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from combee_dspy.engine.finals import WITHIN_REACH, rivals
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.streams import derive

__all__ = ["MEANS", "SPREADS", "WORLDS", "FinalsRow", "main", "run_finals", "table"]

WORLDS = ("even", "own", "shared")
MEANS = (0.6, 0.9)
"""Mean quality of the candidates: away from the ceiling, and near it."""
SPREADS = (0.02, 0.05)
"""Standard deviations of their quality."""

_LEVELS = (0.0, 0.05, WITHIN_REACH)
_CANDIDATES, _FINALISTS = 5, 3
# How steep a question's chance falls where it is as hard as the candidate is good.
_STEEP = 6.0
# Hardness is uniform in [0, 1].
_HARDNESS = (np.arange(1_000) + 0.5) / 1_000


@dataclass(frozen=True, slots=True)
class FinalsRow:
    """One world, mean, spread and size of the validation set.

    Attributes:
        world: How far questions are chance.
        mean: Mean quality of the candidates.
        spread: Standard deviation of the candidates' quality.
        validation: Questions.
        lost: How much worse the best of one draw is than the best candidate, mean over trials.
        gains: What a further draw wins of that, by the p below which a candidate is left out.
        rollouts: What that draw costs, by the same.
        error: Standard error of the last gain minus the first.
        trials: Trials.
    """

    world: str
    mean: float
    spread: float
    validation: int
    lost: float
    gains: tuple[float, ...]
    rollouts: tuple[float, ...]
    error: float
    trials: int


def run_finals(sizes: Sequence[int] = (24, 60, 200), trials: int = 2_000, seed: int = 0) -> tuple[FinalsRow, ...]:
    """Draw candidates and choose among them.

    Args:
        sizes: Questions of the validation set, each at least 1.
        trials: Sets of candidates per row, at least 2.
        seed: Where they come from.

    Raises:
        ArgumentValueError: A number is out of range.
    """
    if not sizes or min(sizes) < 1:
        raise ArgumentValueError("sizes", sizes, "holds no size, or one below 1", "Give numbers of questions.")
    if trials < 2:
        raise ArgumentValueError("trials", trials, "is below 2", "An error needs several trials.")
    return tuple(
        _row(world, mean, spread, size, trials, seed)
        for size in sizes
        for mean in MEANS
        for world in WORLDS
        for spread in SPREADS
    )


def _row(world: str, mean: float, spread: float, size: int, trials: int, seed: int) -> FinalsRow:
    stream = derive(seed, "bench finals", world, str(mean), str(spread), size)
    random = np.random.default_rng(stream.getrandbits(64))
    lost = np.zeros(trials)
    gains = np.zeros((len(_LEVELS), trials))
    rollouts = np.zeros((len(_LEVELS), trials))
    for trial in range(trials):
        quality = np.clip(mean + spread * random.standard_normal(_CANDIDATES), 0.05, 0.98)
        chances = _chances(world, quality, size, random)
        accuracy = _accuracy(world, quality)
        first, second = (random.random((2, *chances.shape)) < chances).astype(float)
        order = np.argsort(-first.mean(axis=1), kind="stable")[:_FINALISTS]
        scores = first[order].tolist()
        lost[trial] = accuracy.max() - accuracy[order[0]]
        for number, level in enumerate(_LEVELS):
            places = rivals(scores, level)
            chosen = order[0]
            if len(places) > 1:
                drawn = order[places]
                chosen = drawn[np.argmax(first[drawn].sum(axis=1) + second[drawn].sum(axis=1))]
                rollouts[number, trial] = size * len(places)
            gains[number, trial] = accuracy[chosen] - accuracy[order[0]]
    error = float((gains[-1] - gains[0]).std(ddof=1) / math.sqrt(trials))
    return FinalsRow(
        world,
        mean,
        spread,
        size,
        float(lost.mean()),
        tuple(gains.mean(axis=1).tolist()),
        tuple(rollouts.mean(axis=1).tolist()),
        error,
        trials,
    )


def _chances(world: str, quality: NDArray[np.float64], size: int, random: np.random.Generator) -> NDArray[np.float64]:
    """Return the probability of each candidate, a row, to be right on each question."""
    each = quality[:, None]
    if world == "even":
        return np.repeat(each, size, axis=1)
    if world == "own":
        return random.beta(each, 1 - each, (len(quality), size))
    return _by_hardness(quality, random.random(size))


def _accuracy(world: str, quality: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each candidate's expected accuracy."""
    return _by_hardness(quality, _HARDNESS).mean(axis=1) if world == "shared" else quality


def _by_hardness(quality: NDArray[np.float64], hardness: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.clip((quality[:, None] - hardness[None, :]) * _STEEP + 0.5, 0.02, 0.98)


def table(rows: Iterable[FinalsRow]) -> str:
    """Return a Markdown table: by level, the points of accuracy that a further draw wins, and its rollouts."""
    said = ["all three" if not level else f"p ≥ {level:g}" for level in _LEVELS]
    head = " | ".join(f"{one}: won | rollouts" for one in said)
    lines = [f"| world | mean | spread | questions | lost by one draw | {head} | last minus first |"]
    lines.append(f"| --- | ---: | ---: | ---: | ---: |{' ---: | ---: |' * len(_LEVELS)} ---: |")
    for row in rows:
        cells = " | ".join(f"{gain:.2%} | {cost:,.0f}" for gain, cost in zip(row.gains, row.rollouts, strict=True))
        difference = f"{row.gains[-1] - row.gains[0]:+.2%} ± {1.96 * row.error:.2%}"
        place = f"{row.world} | {row.mean:g} | {row.spread:g} | {row.validation}"
        lines.append(f"| {place} | {row.lost:.2%} | {cells} | {difference} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line asks for and print the table."""
    parser = argparse.ArgumentParser(prog="python -m combee_dspy.bench.finals", description=__doc__)
    parser.add_argument("--sizes", default="24,60,200", help="questions of the validation set, by comma")
    parser.add_argument("--trials", type=int, default=2_000, help="sets of candidates per row")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where to write the rows")
    asked = parser.parse_args(arguments)
    rows = run_finals([int(size) for size in asked.sizes.split(",")], asked.trials, asked.seed)
    if asked.json is not None:
        record = {"seed": asked.seed, "levels": _LEVELS, "rows": [asdict(row) for row in rows]}
        asked.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(table(rows) + "\n")


if __name__ == "__main__":
    main()
