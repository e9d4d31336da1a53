"""Measure the threshold of an embedder.

    python -m combee_dspy.diversity.calibrate [EMBEDDER] [--params JSON] [--lessons FILE] [--seeds 0-4] [--compare]

EMBEDDER is a name that ``combee plugins`` lists (default: char-ngrams). FILE
holds one lesson a line, for a threshold that fits one task. ``--compare`` sets
the measure that is used beside the simpler ones that it replaced.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from combee_dspy import registry
from combee_dspy.diversity._base import Embedder
from combee_dspy.diversity._calibration import Calibrated, calibrate_threshold
from combee_dspy.diversity._compared import compared
from combee_dspy.diversity._corpus import LESSONS
from combee_dspy.exceptions import ArgumentError, CombeeError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for and print a table. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m combee_dspy.diversity.calibrate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("embedder", nargs="?", default="char-ngrams", help="a name that `combee plugins` lists")
    parser.add_argument("--params", default="{}", help="the embedder's parameters as a JSON object")
    parser.add_argument("--lessons", type=Path, help="a file with one lesson a line")
    parser.add_argument("--seeds", type=_seeds, default=_seeds("0"), help="a seed, or first-last")
    parser.add_argument("--compare", action="store_true", help="compare measures of similarity")
    asked = parser.parse_args(arguments)
    try:
        embedder = cast("Embedder", registry.build("embedder", asked.embedder, _params(asked.params)))
        lessons = asked.lessons.read_text(encoding="utf-8").splitlines() if asked.lessons else LESSONS
        if asked.compare:
            sys.stdout.write(compared(embedder, lessons, seed=asked.seeds[0]) + "\n")
            return 0
        for seed in asked.seeds:
            sys.stdout.write(_shown(calibrate_threshold(embedder, seed=seed, lessons=lessons), seed) + "\n")
    except (CombeeError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2 if isinstance(error, ArgumentError) else 1
    return 0


def _shown(found: Calibrated, seed: int) -> str:
    lines = [
        f"seed {seed}: threshold {found.threshold:.3f}",
        f"  refuses {found.false_refusals:.1%} of {found.distinct} new candidates",
        f"  refuses {found.caught:.1%} of {found.near} reworded ones",
        f"  a reworded one is found more similar than a new one with probability {found.separation:.3f}",
        *(f"    {share:6.1%} of: {kind}" for kind, share in found.refused_by_kind),
    ]
    return "\n".join(lines)


def _params(text: str) -> dict[str, object]:
    try:
        params = json.loads(text)
    except ValueError as error:
        params = error
    if not isinstance(params, dict):
        raise ArgumentError("--params", text, "is no JSON object", 'Write \'{"model": "…"}\'.')
    return params


def _seeds(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


if __name__ == "__main__":
    sys.exit(main())
