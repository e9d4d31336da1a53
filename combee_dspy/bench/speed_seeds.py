"""Several files of ``combee bench speed --json``, one per timed seed, as one table.

    for seed in 0 1 2; do combee bench speed --seed $seed --json speed-$seed.json; done
    python -m combee_dspy.bench.speed_seeds speed-*.json

How fast a seed is hangs on how many of its children are kept and on its slowest calls. The median over seeds
says more than the median of one seed's repeats, which make the same calls again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from combee_dspy.bench.compare import Comparison
from combee_dspy.bench.speed_quality import compare_over_seeds
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.streams import derive_seed

__all__ = ["MethodOnSeed", "SeedFile", "compared", "main", "read_seed", "table"]

# Of what a file says it measured, what may differ from one file to the next.
_OWN = frozenset({"seed", "seeds"})


@dataclass(frozen=True, slots=True)
class MethodOnSeed:
    """One method on one seed.

    Attributes:
        seconds: Median seconds of its timed runs.
        efficiency: Its own schedule over the seconds of the median run; ``None`` where not known.
        speculative: Calls begun on a guess that were not needed; ``None`` where not counted.
        tokens: Prompt and completion tokens of the median run, by what was asked.
        after: Held-out score of the first timed run's result per example.
    """

    seconds: float
    efficiency: float | None
    speculative: int | None
    tokens: Mapping[str, int]
    after: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SeedFile:
    """What one file holds.

    Attributes:
        seed: The timed seed.
        measured: The other options.
        methods: By name, the reference first.
    """

    seed: int
    measured: Mapping[str, Any]
    methods: Mapping[str, MethodOnSeed]


def read_seed(path: Path) -> SeedFile:
    """Return what a file of ``combee bench speed --json`` holds.

    Raises:
        ArgumentValueError: It cannot be read, or is no such file.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        options, runs = record["options"], record["runs"]
        methods = {one["method"]: _method(one, runs) for one in record["results"]}
        measured = {name: value for name, value in options.items() if name not in _OWN}
        return SeedFile(int(options["seed"]), measured, methods)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
        problem = f"is no file of combee bench speed --json ({type(error).__name__}: {error})"
        raise ArgumentValueError("files", str(path), problem, "Name what such a run wrote.") from error


def _method(result: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> MethodOnSeed:
    median = result["median"]
    # Held-out of a seed's repeats is of the same calls; that of other seeds stands in their own files.
    timed = next(run for run in runs if run["method"] == result["method"] and run["repeat"] == 0)
    known, wasted = median["efficiency"], median["speculative"]
    return MethodOnSeed(
        seconds=float(result["seconds"]),
        efficiency=None if known is None else float(known),
        speculative=None if wasted is None else int(wasted),
        tokens={str(name): int(count) for name, count in median["tokens"].items()},
        after=tuple(float(score) for score in timed["after"]),
    )


def compared(files: Sequence[SeedFile]) -> dict[str, Comparison]:
    """Return each method but the first beside the first, held-out paired by question and seed.

    Its multiple is the median over seeds, and ``None`` where held-out is not shown to be no worse.

    Args:
        files: One per seed.

    Raises:
        ArgumentValueError: There is none, two are of one seed, or they did not measure the same.
    """
    reference, *others = _methods(files)
    found: dict[str, Comparison] = {}
    for name in others:
        rows = [(one.methods[reference], one.methods[name]) for one in files]
        found[name] = compare_over_seeds(
            reference,
            [row.after for row, _ in rows],
            [row.after for _, row in rows],
            seconds=(statistics.median(first.seconds / own.seconds for first, own in rows), 1.0),
            seed=derive_seed(0, "bench", reference, name),
        )
    return found


def _methods(files: Sequence[SeedFile]) -> tuple[str, ...]:
    if not files:
        raise ArgumentValueError("files", (), "names none", "Name one per seed.")
    seeds = [one.seed for one in files]
    if len(set(seeds)) < len(seeds):
        raise ArgumentValueError("files", seeds, "are of one seed twice", "Name one per seed.")
    first, *others = files
    for one in others:
        differing = [name for name in first.measured if one.measured.get(name) != first.measured[name]]
        differing += [] if tuple(one.methods) == tuple(first.methods) else ["methods"]
        if differing:
            problem = f"differ in {', '.join(differing)} between seeds {first.seed} and {one.seed}"
            raise ArgumentValueError("files", seeds, problem, "Measure the same on every seed.")
    return tuple(first.methods)


def table(files: Sequence[SeedFile]) -> str:
    """Return a Markdown table: seconds and how many times faster, seed by seed, then what all seeds come to.

    Args:
        files: One per seed.

    Raises:
        ArgumentValueError: As for :func:`compared`.
    """
    versus = compared(files)
    ordered = sorted(files, key=lambda one: one.seed)
    reference, *others = ordered[0].methods
    columns = [_column(name, ordered, versus.get(name)) for name in (reference, *others)]
    titles = [
        *(str(one.seed) for one in ordered),
        "median",
        "least times faster",
        "efficiency",
        "guesses for nothing",
        "task tokens",
        "reflection tokens",
        f"held-out, {len(ordered)} seeds",
        f"minus `{reference}`'s, 95 %",
    ]
    head = ["seed", *(f"`{name}`" for name in (reference, *others))]
    rows = [head, ["---:"] * len(head), *(list(row) for row in zip(titles, *columns, strict=True))]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _column(name: str, files: Sequence[SeedFile], versus: Comparison | None) -> list[str]:
    """Return one method's cells; of figures that are not of one seed, the medians."""
    runs = [one.methods[name] for one in files]
    seconds = [run.seconds for run in runs]
    faster: list[float] = []
    if versus is not None and versus.comparable:
        faster = [one.methods[versus.reference].seconds / one.methods[name].seconds for one in files]
    took = [*seconds, statistics.median(seconds)]
    times = [f" ({value:.1f})" for value in (*faster, statistics.median(faster))] if faster else [""] * len(took)
    held = statistics.fmean(score for run in runs for score in run.after)
    return [
        *(f"{one:,.0f}{more}" if one >= 100 else f"{one:.1f}{more}" for one, more in zip(took, times, strict=True)),
        f"{min(faster):.1f}" if faster else "reference" if versus is None else "not comparable",
        _median([run.efficiency for run in runs], "{:.2f}"),
        _median([run.speculative for run in runs], "{:g}"),
        _median([run.tokens.get("task") for run in runs], "{:,.0f}"),
        _median([run.tokens.get("reflect") for run in runs], "{:,.0f}"),
        f"{held:.3f}",
        "" if versus is None else f"{versus.difference:+.3f} ({versus.low:+.3f} to {versus.high:+.3f})",
    ]


def _median(values: Sequence[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    return form.format(statistics.median(known)) if known else ""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of the files that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m combee_dspy.bench.speed_seeds", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="what combee bench speed --json wrote, one per seed")
    asked = parser.parse_args(arguments)
    sys.stdout.write(table([read_seed(path) for path in asked.files]) + "\n")


if __name__ == "__main__":
    main()
