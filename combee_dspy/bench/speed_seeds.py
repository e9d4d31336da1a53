"""Several files of ``combee bench speed --json``, one per timed seed, as one table.

    for seed in 0 1 2; do combee bench speed --seed $seed --json speed-$seed.json; done
    python -m combee_dspy.bench.speed_seeds speed-*.json

How fast a method is on a seed hangs on how many of its children are kept and on its slowest calls. Repeats of a
seed share both where the service repeats itself, so the median over seeds says more than the median over repeats.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from combee_dspy.bench.compare import Comparison
from combee_dspy.bench.speed_methods import METHODS
from combee_dspy.bench.speed_quality import compare_over_seeds
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.streams import derive_seed

__all__ = ["MethodOnSeed", "SeedFile", "compared", "main", "read_seed", "table"]

# What may differ between files of one table: the timed seed, and those on which held-out was compared beside it.
_OWN = ("seed", "seeds")
_SAME = ("label", "service", "source", "versions")


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
        measured: What was measured, and by what: must be the same in all files.
        methods: By name, the reference first.
    """

    seed: int
    measured: Mapping[str, Any]
    methods: Mapping[str, MethodOnSeed]


def read_seed(path: Path) -> SeedFile:
    """Return what a file of ``combee bench speed --json`` holds.

    Raises:
        ArgumentValueError: It cannot be read, is no such file, or its run was cut off.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        options, results = record["options"], {one["method"]: one for one in record["results"]}
        names = options["methods"]
        if type(names) is not list or not names or len(results) != len(record["results"]) or set(results) - {*names}:
            raise ValueError("the methods are not those of its options")
        missing = _missing(options, results)
        if missing is not None:
            raise ArgumentValueError("files", str(path), f"was cut off: {missing}", "Measure that seed again.")
        measured = {name: options[name] for name in options if name not in _OWN}
        measured |= {name: record[name] for name in _SAME}
        # What else ran on it differs from one run to the next.
        measured["machine"] = {name: said for name, said in record["machine"].items() if name != "load_average"}
        methods = {name: _method(results[name], record["runs"], options) for name in names}
        return SeedFile(_whole(options["seed"]), measured, methods)
    except ArgumentValueError:
        raise
    except (ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError) as error:
        problem = f"is no file of combee bench speed --json ({type(error).__name__}: {error})"
        raise ArgumentValueError("files", str(path), problem, "Name what such a run wrote.") from error


def _missing(options: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return what of a run is not in its file, which is written after each of its parts."""
    for name in options["methods"]:
        fewer = METHODS[name].peer and options["peer_repeats"] is not None
        due = _whole(options["peer_repeats" if fewer else "repeats"])
        timed = len(results[name]["seconds_of"]) if name in results else 0
        if timed != due:
            return f"{timed} of {due} timed runs of {name}"
    return None


def _method(result: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> MethodOnSeed:
    name, median = result["method"], result["median"]
    # A seed's repeats make the same calls; held-out of other seeds stands in their own files.
    (timed,) = (run for run in runs if run["method"] == name and run["repeat"] == 0)
    seconds = statistics.median(_number(one) for one in result["seconds_of"])
    digits = timed["after"]
    after = tuple(_number(int(one) if type(digits) is str else one) for one in digits)
    if seconds <= 0 or timed["seed"] != options["seed"] or len(after) != options["heldout"]:
        raise ValueError(f"{name}: {seconds:g} s on seed {timed['seed']} with {len(after)} held-out scores")
    if not all(0 <= score <= 1 for score in after):
        raise ValueError(f"{name}: a held-out score outside [0, 1]")
    return MethodOnSeed(
        seconds=seconds,
        efficiency=None if median["efficiency"] is None else _number(median["efficiency"]),
        speculative=None if median["speculative"] is None else _whole(median["speculative"]),
        tokens={str(kind): _whole(count) for kind, count in median["tokens"].items()},
        after=after,
    )


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{value!r} where a number is due")
    return float(value)


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} where a whole number is due")
    return value


def compared(files: Sequence[SeedFile]) -> dict[str, Comparison]:
    """Return each method but the first beside the first, held-out paired by question and seed.

    ``times_faster`` is the median over seeds, and ``None`` where held-out is not shown to be no worse. The order
    of the files makes no difference.

    Args:
        files: One per seed.

    Raises:
        ArgumentValueError: There is none, two are of one seed, or they did not measure the same.
    """
    _check(files)
    # Whatever is drawn by position is drawn for the same seed.
    files = sorted(files, key=lambda one: one.seed)
    reference, *others = files[0].methods
    return {
        name: compare_over_seeds(
            reference,
            [one.methods[reference].after for one in files],
            [one.methods[name].after for one in files],
            # The median of ratios is no ratio of two seconds: it is given as one over 1.
            seconds=(statistics.median(_times(files, reference, name)), 1.0),
            seed=derive_seed(0, "bench", reference, name),
        )
        for name in others
    }


def _times(files: Sequence[SeedFile], reference: str, name: str) -> list[float]:
    return [one.methods[reference].seconds / one.methods[name].seconds for one in files]


def _check(files: Sequence[SeedFile]) -> None:
    if not files:
        raise ArgumentValueError("files", (), "names none", "Name one per seed.")
    seeds = [one.seed for one in files]
    if len(set(seeds)) < len(seeds):
        raise ArgumentValueError("files", seeds, "are of one seed twice", "Name one per seed.")
    first, *others = files
    unknown = object()
    for one in others:
        names = dict.fromkeys((*first.measured, *one.measured))
        differing = [n for n in names if first.measured.get(n, unknown) != one.measured.get(n, unknown)]
        if differing:
            problem = f"differ in {', '.join(differing)} between seeds {first.seed} and {one.seed}"
            raise ArgumentValueError("files", seeds, problem, "Measure the same on every seed.")


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
    titles = [
        *(str(one.seed) for one in ordered),
        "median",
        "least times faster",
        "efficiency",
        "guesses for nothing",
        "task tokens",
        "reflection tokens",
        "held-out",
        f"minus `{reference}`'s, 95 %",
    ]
    columns = [titles, *(_column(name, ordered, versus.get(name)) for name in (reference, *others))]
    head = ["seed", *(f"`{name}`" for name in (reference, *others))]
    rows = [head, ["---:"] * len(head), *zip(*columns, strict=True)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _column(name: str, files: Sequence[SeedFile], versus: Comparison | None) -> list[str]:
    """Return one method's cells; below those of single seeds, medians over seeds."""
    runs = [one.methods[name] for one in files]
    seconds = [run.seconds for run in runs]
    took = [*seconds, statistics.median(seconds)]
    said, least = [""] * len(took), "reference" if versus is None else "not comparable"
    if versus is not None and versus.times_faster is not None:
        times = _times(files, versus.reference, name)
        said, least = [f" ({value:.1f})" for value in (*times, versus.times_faster)], f"{min(times):.1f}"
    held = statistics.fmean(score for run in runs for score in run.after)
    return [
        *(f"{one:,.0f}{more}" if one >= 100 else f"{one:.1f}{more}" for one, more in zip(took, said, strict=True)),
        least,
        _median([run.efficiency for run in runs], "{:.2f}"),
        _median([run.speculative for run in runs], "{:g}"),
        _median([run.tokens.get("task") for run in runs], "{:,.0f}"),
        _median([run.tokens.get("reflect") for run in runs], "{:,.0f}"),
        f"{held:.3f}",
        "" if versus is None else f"{versus.difference:+.3f} ({versus.low:+.3f} to {versus.high:+.3f})",
    ]


def _median(values: Sequence[float | None], form: str) -> str:
    """Return the median, nothing where one of the values is not known."""
    known = [value for value in values if value is not None]
    return form.format(statistics.median(known)) if len(known) == len(values) else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what the files that the command line names come to.

    Returns:
        0, or 2 where they cannot be used.
    """
    parser = argparse.ArgumentParser(
        prog="python -m combee_dspy.bench.speed_seeds",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="+", type=Path, help="what combee bench speed --json wrote, one per seed")
    asked = parser.parse_args(arguments)
    try:
        files = [read_seed(path) for path in asked.files]
        shown = table(files)
    except ArgumentValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    measured = files[0].measured
    said = [str(measured[name]) for name in ("label", "service", "source") if measured[name]]
    scale = "" if measured.get("endpoint") else " at full scale"
    said.append(f"seconds{scale}, medians of a seed's runs, in brackets how many times faster")
    sys.stdout.write("; ".join(said) + f"\n\n{shown}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
