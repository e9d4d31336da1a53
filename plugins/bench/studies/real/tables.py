"""The tables of the study, drawn again from what its cells came to.

From plugins/bench: ``python -m studies.real.tables studies/real/cells.jsonl``.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean, stdev

from pydantic import TypeAdapter
from scipy.stats import t

from combee_bench.retention import RetentionRow
from combee_bench.statistics import Interval
from combee_dspy.files import read_plain
from studies.real.cells import Finished, Learning

__all__ = ["Difference", "compare", "over_tasks", "read_cells", "tables"]

_RECORDS = TypeAdapter(Finished)
Scores = Mapping[int, Learning]
_FIRST = ("floor", "gepa", "combee", "union")


@dataclass(frozen=True, slots=True)
class Difference:
    """Held-out of a method minus that of another, over tasks that both have.

    Attributes:
        interval: Student's 95 % interval of the mean over tasks: that of a mixed model with a
            random task, since each task has one run of each method.
        chance: Two-sided p of the mean, by all ways to swap the two within tasks.
        ahead: On how many tasks it is ahead.
        behind: On how many it is behind.
    """

    interval: Interval
    chance: float
    ahead: int
    behind: int

    def __str__(self) -> str:
        return (
            f"{self.interval.mean:+.3f} ({self.interval.low:+.3f} to {self.interval.high:+.3f}),"
            f" p {self.chance:.3f}, ahead {self.ahead}, behind {self.behind}"
        )


def over_tasks(differences: Sequence[float]) -> Difference:
    """Return what differences come to, one a task; two at least."""
    count, mean = len(differences), fmean(differences)
    apart = float(t.ppf(0.975, count - 1)) * stdev(differences) / math.sqrt(count)
    swapped = [
        abs(sum(sign * value for sign, value in zip(signs, differences, strict=True)))
        for signs in product((1, -1), repeat=count)
    ]
    most = abs(sum(differences)) - 1e-9
    return Difference(
        Interval(mean, mean - apart, mean + apart),
        fmean(value >= most for value in swapped),
        sum(value > 0 for value in differences),
        sum(value < 0 for value in differences),
    )


def compare(first: Scores, second: Scores) -> Difference | None:
    """Return the first minus the second over the tasks of both; ``None`` below two."""
    both = [number for number in first if number in second]
    if len(both) < 2:
        return None
    return over_tasks([_share(first[number]) - _share(second[number]) for number in both])


def read_cells(file: Path) -> list[Finished]:
    """Return the cells that a file holds; none where there is no file."""
    if not file.exists():
        return []
    return [_RECORDS.validate_json(text) for text in read_plain(file).splitlines()]


def tables(finished: Sequence[Finished]) -> str:
    """Return a page of tables in Markdown."""
    sections = [
        ("Six rules", _by_method(finished, 6, "sets")),
        ("Beside them, on the first eight sets", _beside(finished)),
        ("24 rules", _by_method(finished, 24, "wide")),
        ("40 rules", _by_method(finished, 40, "wide")),
        ("24 rules, by c60443a6", _by_method(finished, 24, "many")),
        ("24 rules, mended", _by_method(finished, 24, "many", "many-again")),
        ("Labels from filings", _by_method(finished, 4, "labels")),
        ("Labels from filings, mended", _by_method(finished, 4, "labels-mended")),
        ("The aggregator, and `dspy.GEPA` beside it", _by_method(finished, 6, "decide", "peers")),
        ("The aggregator: a fifth of the labels wrong", _by_method(finished, 6, "wrong")),
        ("`dspy.GEPA` beside code of 30 November", _by_method(finished, 6, "today")),
        ("`dspy.GEPA` beside readers that cite nothing", _by_method(finished, 6, "plain")),
        ("The mended scan", _by_method(finished, 6, "mended")),
        ("The mended scan: a fifth of the labels wrong", _by_method(finished, 6, "mended-wrong")),
    ]
    parts = []
    for title, methods in sections:
        if methods:
            parts += [f"## {title}", "", *_by_number(methods), "", *_compared(methods), ""]
    clean = _by_method(finished, 6, "sets", "parts", "decide")
    if difference := compare(clean.get("trunk", {}), clean.get("combee", {})):
        parts += [f"`trunk` minus `combee`, both runs with clean labels: {difference}", ""]
    if rows := [done.retained for done in finished if done.retained is not None]:
        parts += ["## Planted facts", "", *_retained(rows)]
    return "\n".join(parts)


def _beside(finished: Sequence[Finished]) -> dict[str, dict[int, Learning]]:
    """Return the further methods, with the runs of the first three on the same sets."""
    further = _by_method(finished, 6, "beside", "parts")
    numbers = {number for own in further.values() for number in own}
    first = {
        name: {number: run for number, run in own.items() if number in numbers}
        for name, own in _by_method(finished, 6, "sets").items()
    }
    return {**first, **further} if further else {}


def _share(learned: Learning) -> float:
    return sum(learned.scores) / len(learned.scores)


def _by_method(
    finished: Sequence[Finished], size: int, *parts: str
) -> dict[str, dict[int, Learning]]:
    methods: dict[str, dict[int, Learning]] = {name: {} for name in _FIRST}
    for done in sorted(finished, key=lambda done: (done.cell.number, done.cell.method)):
        if done.cell.size == size and done.cell.part in parts and done.learned is not None:
            methods.setdefault(done.cell.method, {})[done.cell.number] = done.learned
    return {name: own for name, own in methods.items() if own}


def _row(*texts: object) -> str:
    return f"| {' | '.join(map(str, texts))} |"


def _by_number(methods: Mapping[str, Scores]) -> Iterator[str]:
    yield _row("set", *methods)
    yield _row("---:", *("---:" for _ in methods))
    for number in sorted({number for own in methods.values() for number in own}):
        scores = (own.get(number) for own in methods.values())
        yield _row(number, *("" if own is None else f"{_share(own):.3f}" for own in scores))
    yield _row("mean", *(f"{_mean(own):.3f}" for own in methods.values()))


def _mean(own: Scores) -> float:
    return fmean(map(_share, own.values())) if own else math.nan


def _compared(methods: Mapping[str, Scores]) -> Iterator[str]:
    heads = "method,tasks,held-out,minus `gepa`,minus `combee`,rules in the prompt"
    heads += ",thousand tokens: task; reflection,prompt tokens a call,seconds"
    yield _row(*heads.split(","))
    yield _row("---", *["---:"] * heads.count(","))
    for name, own in methods.items():
        if not own:
            continue
        runs = list(own.values())
        task, reflect = (
            fmean(run.tokens.get(role, 0) for run in runs) / 1_000 for role in ("task", "reflect")
        )
        minus = (
            "" if name == other else compare(own, methods.get(other, {})) or ""
            for other in ("gepa", "combee")
        )
        yield _row(
            f"`{name}`",
            len(own),
            f"{_mean(own):.3f}",
            *minus,
            f"{fmean(run.kept for run in runs):.1f}",
            f"{task:.1f}; {reflect:.1f}",
            f"{fmean(run.prompt_tokens / max(run.calls, 1) for run in runs):.0f}",
            f"{fmean(run.seconds for run in runs):.0f}",
        )


def _retained(rows: Sequence[RetentionRow]) -> Iterator[str]:
    heads = "facts,aggregator,seeds,right,contradictions: right; wrong; both; neither,lines doubled"
    heads += ",without a fact,citations right,calls,tokens read,written,seconds"
    yield _row(*heads.split(","))
    yield _row(*["---:"] * (heads.count(",") + 1))
    for size, name in sorted({(row.reflections, row.aggregator) for row in rows}):
        own = [row for row in rows if (row.reflections, row.aggregator) == (size, name)]
        served = [row.served for row in own if row.served is not None]
        ends: Counter[str] = Counter()
        for tallied in served:
            ends.update(tallied.decided)
        cited, correct = (sum(tallied.citations[place] for tallied in served) for place in (0, 1))
        yield _row(
            size,
            f"`{name}`",
            len(own),
            f"{sum(row.retained for row in own)} of {size * len(own)}",
            "; ".join(str(ends[end]) for end in ("right", "wrong", "both", "neither")),
            sum(tallied.doubled for tallied in served),
            sum(tallied.other for tallied in served),
            f"{correct} of {cited}",
            *(
                f"{fmean(getattr(row, what) for row in own):,.0f}"
                for what in ("calls", "prompt_tokens", "completion_tokens", "seconds")
            ),
        )
    yield ""
    for name in ("parallel-scan", "union"):
        differences = [
            fmean((one.retained - other.retained) / one.reflections for one, other in pairs)
            for pairs in _paired(rows, "reference-scan", name)
        ]
        if len(differences) > 1:
            yield f"`reference-scan` minus `{name}`, share right: {over_tasks(differences)}"


def _paired(
    rows: Sequence[RetentionRow], first: str, second: str
) -> Iterator[list[tuple[RetentionRow, RetentionRow]]]:
    """Yield, for each seed, the pairs of cells of the same facts."""
    cells = {(row.aggregator, row.seed, row.reflections): row for row in rows}
    for seed in sorted({row.seed for row in rows}):
        pairs = [
            (row, cells[second, seed, size])
            for (name, own_seed, size), row in cells.items()
            if (name, own_seed) == (first, seed) and (second, seed, size) in cells
        ]
        if pairs:
            yield pairs


if __name__ == "__main__":
    sys.stdout.write(tables(read_cells(Path(sys.argv[1]))) + "\n")
