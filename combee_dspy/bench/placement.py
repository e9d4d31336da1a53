"""Where the copies of a reflection land: distinct placement beside plain, against the closed form.

    python -m combee_dspy.bench.placement --json placement.json
    python -m combee_dspy.bench.placement --window 4

No language model is involved: this is arithmetic on the plans of a scan.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.shuffle import PLACEMENTS, plan_shards
from combee_dspy.streams import derive

__all__ = ["SIZES", "PlacementRow", "closed_form", "joint_p", "main", "run_placement", "table"]

SIZES = (9, 16, 25, 40, 64, 100, 240, 512, 1_000)
"""Reflections, from the least that makes three shards."""

_COPIES = 2


@dataclass(frozen=True, slots=True)
class PlacementRow:
    """One number of reflections under one placement.

    Attributes:
        n: Reflections, with two copies each.
        shards: ⌊√n⌋.
        placement: ``"distinct"`` or ``"plain"``.
        observed: Share of reflections whose copies lie in different shards, mean over trials.
        low: Lower end of its 95 % interval over trials; equal to ``observed`` where no trial differs.
        high: Upper end.
        error: Standard error of the mean over trials.
        least: The lowest share of any trial.
        expected: The closed form.
        trials: Plans drawn.
    """

    n: int
    shards: int
    placement: str
    observed: float
    low: float
    high: float
    error: float
    least: float
    expected: float
    trials: int

    @property
    def inside(self) -> bool:
        """Whether the closed form lies within the interval."""
        return self.low - 1e-12 <= self.expected <= self.high + 1e-12


def closed_form(n: int, shards: int, placement: str, window: int | None = None) -> float:
    """Return the expected share of reflections whose two copies lie in different shards.

    1 under distinct placement. Under plain placement a copy shares its shard
    of s entries with its twin with probability (s − 1) / (2n − 1); shards that
    differ in size by one entry weigh by their entries. With a window the same holds within each block
    of shards, and blocks weigh by their reflections.

    Args:
        n: Reflections.
        shards: Shards.
        placement: ``"distinct"`` or ``"plain"``.
        window: How many shards a copy may travel, or ``None``.
    """
    if placement == "distinct":
        return 1.0
    blocks = 1 if window is None else max(1, shards // window)
    bounds = [shards * block // blocks for block in range(blocks + 1)]
    parts = [(n * last // shards - n * first // shards, last - first) for first, last in pairwise(bounds)]
    return sum(members * _apart(members, homes) for members, homes in parts) / n


def _apart(n: int, shards: int) -> float:
    entries = _COPIES * n
    sizes = [entries * (number + 1) // shards - entries * number // shards for number in range(shards)]
    return 1.0 - sum(size * (size - 1) for size in sizes) / (entries * (entries - 1))


def run_placement(
    sizes: Sequence[int] = SIZES, trials: int = 400, seed: int = 0, window: int | None = None
) -> tuple[PlacementRow, ...]:
    """Draw plans and count.

    Args:
        sizes: Numbers of reflections, each at least 9: with two shards, distinct placement makes one copy.
        trials: Plans per size and placement, at least 2.
        seed: Where the plans come from.
        window: How many shards a copy may travel, at least 3, or ``None`` for no bound.

    Raises:
        ArgumentValueError: A number is out of range.
    """
    if not sizes or min(sizes) < SIZES[0]:
        raise ArgumentValueError("sizes", sizes, f"holds no size, or one below {SIZES[0]}", "Two copies need 3 shards.")
    if trials < 2:
        raise ArgumentValueError("trials", trials, "is below 2", "An interval needs several plans.")
    if window is not None and window < 3:
        raise ArgumentValueError("window", window, "is below 3", "Two copies need 3 shards within reach.")
    return tuple(_row(n, placement, trials, seed, window) for n in sizes for placement in PLACEMENTS)


def _row(n: int, placement: str, trials: int, seed: int, window: int | None) -> PlacementRow:
    shards = math.isqrt(n)
    shares = []
    for trial in range(trials):
        stream = derive(seed, "bench placement", n, placement, trial)
        plan = plan_shards(n, _COPIES, shards, stream, "plain" if placement == "plain" else "distinct", window)
        homes: dict[int, set[int]] = {}
        for number, shard in enumerate(plan):
            for index in shard:
                homes.setdefault(index, set()).add(number)
        shares.append(sum(len(found) == _COPIES for found in homes.values()) / n)
    mean = sum(shares) / trials
    error = math.sqrt(sum((share - mean) ** 2 for share in shares) / (trials - 1) / trials)
    half = 1.96 * error
    expected = closed_form(n, shards, placement, window)
    return PlacementRow(
        n=n,
        shards=shards,
        placement=placement,
        observed=mean,
        low=max(0.0, mean - half),
        high=min(1.0, mean + half),
        error=error,
        least=min(shares),
        expected=expected,
        trials=trials,
    )


def joint_p(rows: Iterable[PlacementRow]) -> float:
    """Return the probability of deviations from the closed form as large as these together, by chance alone.

    The sum of squared standard scores of the plain rows, by its chi-squared law.

    Args:
        rows: What was counted.
    """
    from scipy.stats import chi2

    scores = [(row.observed - row.expected) / row.error for row in rows if row.error > 0]
    return float(chi2.sf(sum(score**2 for score in scores), len(scores))) if scores else 1.0


def table(rows: Iterable[PlacementRow]) -> str:
    """Return a Markdown table, with one figure for all rows together under it."""
    rows = list(rows)
    lines = ["| n | shards | placement | copies apart | 95 % interval | worst plan | closed form | inside |"]
    lines.append("| ---: | ---: | --- | ---: | --- | ---: | ---: | --- |")
    lines += [
        f"| {row.n:,} | {row.shards} | {row.placement} | {row.observed:.4f} | {row.low:.4f} to {row.high:.4f} "
        f"| {row.least:.4f} | {row.expected:.4f} | {'yes' if row.inside else 'no'} |"
        for row in rows
    ]
    lines += ["", f"All rows together: p = {joint_p(rows):.2f} that chance alone strays as far from the closed form."]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line asks for and print the table."""
    parser = argparse.ArgumentParser(prog="python -m combee_dspy.bench.placement", description=__doc__)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="numbers of reflections, by comma")
    parser.add_argument("--trials", type=int, default=400, help="plans per size and placement")
    parser.add_argument("--window", type=int, help="how many shards a copy may travel; no bound by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where to write the rows")
    asked = parser.parse_args(arguments)
    rows = run_placement([int(size) for size in asked.sizes.split(",")], asked.trials, asked.seed, asked.window)
    if asked.json is not None:
        data = [{**asdict(row), "inside": row.inside} for row in rows]
        record = {"seed": asked.seed, "window": asked.window, "joint_p": joint_p(rows), "rows": data}
        asked.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(table(rows) + "\n")


if __name__ == "__main__":
    main()
