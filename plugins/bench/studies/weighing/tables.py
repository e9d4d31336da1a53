"""Tables of the results: means over seeds, and paired differences with 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from scipy import stats

Result = Mapping[str, Any]


def means_table(results: Sequence[Result]) -> str:
    """Return held-out means by task and budget, a column a method."""
    methods = _names(results, "method")
    lines = [
        _row("task", "rollouts", "seeds", "untouched", *methods),
        _row(*["---"] * 4, *["---:"] * len(methods)),
    ]
    for (task, budget), group in _groups(results):
        of_method = [[row["heldout"] for row in group if row["method"] == name] for name in methods]
        seeds = {row["seed"] for row in group}
        untouched = fmean({row["seed"]: row["untouched"] for row in group}.values())
        cells = [f"{fmean(scores):.1f}" if scores else "" for scores in of_method]
        lines.append(_row(task, f"{budget:,}", len(seeds), f"{untouched:.1f}", *cells))
    return "\n".join(lines)


def paired_table(results: Sequence[Result], base: str) -> str:
    """Return differences to ``base`` in points, paired by seed, with 95 % intervals."""
    methods = [name for name in _names(results, "method") if name != base]
    lines = [_row("task", "rollouts", *(f"{name} − {base}" for name in methods))]
    lines.append(_row("---", "---", *["---"] * len(methods)))
    for (task, budget), group in _groups(results):
        of_base = {row["seed"]: row["heldout"] for row in group if row["method"] == base}
        cells = []
        for name in methods:
            pairs = [
                row["heldout"] - of_base[row["seed"]]
                for row in group
                if row["method"] == name and row["seed"] in of_base
            ]
            cells.append(_interval(pairs))
        lines.append(_row(task, f"{budget:,}", *cells))
    return "\n".join(lines)


def details_table(results: Sequence[Result]) -> str:
    """Return, by task, budget and method, what the runs used and what stands in their prompts."""
    columns = {
        "rollouts used": "rollouts",
        "words": "prompt_words",
        "tokens": "prompt_tokens",
        "lines": "lines",
        "wrong": "wrong",
        "harmful": "harmful",
        "exceptions": "exceptions",
        "missing": "exceptions_wrongly_missing",
        "seconds": "seconds",
    }
    names = [*columns, "other calls", "other tokens", "below untouched", "by more than 2"]
    lines = [_row("task", "rollouts", "method", *names), _row(*["---"] * 3, *["---:"] * len(names))]
    for (task, budget), group in _groups(results):
        for method in _names(group, "method"):
            own = [row for row in group if row["method"] == method]
            cells = [f"{fmean(row[key] for row in own):,.1f}" for key in columns.values()]
            for kind in ("calls", "tokens"):
                spent = (
                    sum(count for role, count in row[kind].items() if role != "task") for row in own
                )
                cells.append(f"{fmean(spent):,.1f}")
            cells += [
                f"{sum(row[key] for row in own)} of {len(own)}" for key in ("below", "below_by_2")
            ]
            lines.append(_row(task, f"{budget:,}", method, *cells))
    return "\n".join(lines)


def _interval(values: Sequence[float]) -> str:
    if len(values) < 2:
        return ""
    mean = fmean(values)
    half = float(stats.t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return f"{mean:+.1f} ({mean - half:+.1f} to {mean + half:+.1f})"


def _names(results: Iterable[Result], key: str) -> list[str]:
    return list(dict.fromkeys(row[key] for row in results))


def _groups(results: Sequence[Result]) -> list[tuple[tuple[str, int], list[Result]]]:
    groups: dict[tuple[str, int], list[Result]] = {}
    for row in results:
        groups.setdefault((row["task"], row["budget"]), []).append(row)
    return sorted(groups.items(), key=lambda item: item[0][1])


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"
