"""What the readers of the study kept, and how well laws of small cells predict the large ones.

From plugins/bench: ``python -m studies.real.readers studies/real/cells.jsonl``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from combee_bench.mixed import state
from combee_bench.planted import INSTRUCTION, PlantedFact, plant
from combee_bench.retention import RetentionRow
from combee_bench.tuning.kept import expected_share
from combee_bench.tuning.laws import CallLaw, Fit, Sample, fit_law
from combee_dspy.aggregators import ParallelScan, ReferenceScan, Union
from combee_dspy.reflections import feedback_text
from combee_dspy.strategies import StrategyContext
from combee_dspy.streams import derive_seed
from combee_dspy.testing import ScriptedAsk
from combee_simulator import CapacityModel
from studies.real import calls
from studies.real.tables import read_cells

__all__ = ["Predicted", "deal", "fit_small", "predict", "tables"]

_FITTED = (5, 10, 20)
_DRAWS = 40
_CODE = re.compile(r"Q\d{4}")
_DEALERS = {
    "union": Union(),
    "reference-scan": ReferenceScan(),
    "parallel-scan": ParallelScan(),
}


@dataclass(frozen=True, slots=True)
class Predicted:
    """The shares of the stated facts that calls of one size and aggregator keep, as means of cells.

    Attributes:
        cells: How many cells.
        calls: How many calls read.
        law: Of a call's facts, what it should keep by the law.
        call: Of a call's facts, what it kept.
        formula: Of all facts, what some call should keep by the law, were calls independent.
        independent: The same with what each call kept in the place of the law.
        kept: Of all facts, what some call kept.
        simulated: The same by the simulator's calls, which read c items or, by 1 − rate, nothing.
    """

    cells: int
    calls: int
    law: float
    call: float
    formula: float
    independent: float
    kept: float
    simulated: float


def deal(row: RetentionRow) -> list[set[PlantedFact]]:
    """Return the different facts that each call of a cell read, dealt again from its seed."""
    facts = plant(row.reflections, derive_seed(row.seed, "bench retention", row.reflections))
    statements = state(facts, row.seed)
    context = StrategyContext("code", INSTRUCTION, ScriptedAsk(), lambda event: None, seed=row.seed)
    shards = _DEALERS[row.aggregator].shards(len(statements), context)
    return [{statements[place].fact for place in shard} for shard in shards]


def fit_small(rows: Sequence[RetentionRow], name: str) -> Fit:
    """Fit rate × min(1, c / m) to the calls of an aggregator's cells of 5 to 20 facts."""
    own = (row for row in rows if row.aggregator == name and row.reflections in _FITTED)
    return fit_law([Sample(items, 1, kept) for row in own for items, kept in row.reads])


def predict(rows: Sequence[RetentionRow], name: str, size: int, fit: Fit) -> Predicted:
    """Return what a law says of cells, beside what they kept."""
    own = [row for row in rows if (row.aggregator, row.reflections) == (name, size)]
    reads = [read for row in own for read in row.reads]
    total = sum(items for items, _ in reads)
    dealt = [deal(row) for row in own]
    return Predicted(
        len(own),
        len(reads),
        sum(items * fit.law.q(items) for items, _ in reads) / total,
        sum(kept for _, kept in reads) / total,
        fmean(expected_share(shards, fit.law.q) for shards in dealt),
        fmean(map(_independent, own, dealt)),
        fmean(
            row.by_level[0] / len(set().union(*shards))
            for row, shards in zip(own, dealt, strict=True)
        ),
        fmean(
            _simulated(shards, fit.law, draw, row.seed)
            for row, shards in zip(own, dealt, strict=True)
            for draw in range(_DRAWS)
        ),
    )


def _simulated(shards: Sequence[set[PlantedFact]], law: CallLaw, *place: int) -> float:
    reader = CapacityModel(
        attended_items=max(1, round(min(law.reads, law.writes))), platitude_share=1.0 - law.rate
    )
    read = (
        reader.attend(sorted(shard, key=str), *place, number) for number, shard in enumerate(shards)
    )
    return len(set().union(*read)) / len(set().union(*shards))


def _independent(row: RetentionRow, shards: Sequence[set[PlantedFact]]) -> float:
    """Return what calls would keep together that each keep their share of facts by chance."""
    lost = dict.fromkeys(set().union(*shards), 1.0)
    for shard, (items, kept) in zip(shards, row.reads, strict=True):
        for fact in shard:
            lost[fact] *= 1.0 - kept / items
    return 1.0 - fmean(lost.values())


def _lines(rows: Sequence[RetentionRow]) -> tuple[int, int, int, int, int]:
    """Count served lines: all; with a code; of those word for word as told; with a wrong answer's
    code; without any code.
    """
    counts = [0] * 5
    for row in rows:
        facts = plant(row.reflections, derive_seed(row.seed, "bench retention", row.reflections))
        told = {
            feedback_text(statement.record(0)).partition(". ")[2].rstrip(".").casefold()
            for statement in state(facts, row.seed)
        }
        wrong = {fact.wrong for fact in facts}
        for line in filter(None, row.text.splitlines()):
            codes = set(_CODE.findall(line))
            verbatim = any(sentence in line.casefold() for sentence in told)
            found = (True, bool(codes), bool(codes) and verbatim, bool(codes & wrong), not codes)
            counts = [count + holds for count, holds in zip(counts, found, strict=True)]
    whole, coded, verbatim_lines, answers, empty = counts
    return whole, coded, verbatim_lines, answers, empty


def tables(rows: Sequence[RetentionRow]) -> Iterator[str]:
    """Yield the lines of the tables in Markdown."""
    yield "| reader | rate | facts a call | calls that keep: all, none, under a quarter |"
    yield "| --- | ---: | ---: | --- |"
    fits = {name: fit_small(rows, name) for name in _DEALERS}
    for name, fit in fits.items():
        law = fit.law
        own = (row for row in rows if row.aggregator == name and row.reflections in _FITTED)
        reads = [read for row in own for read in row.reads]
        whole = sum(items == kept for items, kept in reads)
        nothing = sum(not kept for _, kept in reads)
        few = sum(4 * kept < items for items, kept in reads)
        limit = min(law.reads, law.writes)
        ends = f"{whole}, {nothing}, {few} of {len(reads)}"
        yield f"| `{name}` | {law.rate:.2f} | {limit:.1f} | {ends} |"
    yield ""
    heads = "facts, reader, cells; calls, a call: law, kept, together: formula"
    heads += ", simulated, if calls were independent, kept"
    yield f"| {heads.replace(', ', ' | ')} |"
    yield "| ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for size in sorted({row.reflections for row in rows}):
        for name, fit in fits.items():
            line = predict(rows, name, size, fit)
            shares = (
                line.law,
                line.call,
                line.formula,
                line.simulated,
                line.independent,
                line.kept,
            )
            texts = " | ".join(f"{share:.2f}" for share in shares)
            yield f"| {size} | `{name}` | {line.cells}; {line.calls} | {texts} |"
    yield ""
    yield "| lines of | all | with a code | as told | with a wrong answer's code | without a code |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for name in fits:
        counts = _lines([row for row in rows if row.aggregator == name])
        yield f"| `{name}` | {' | '.join(map(str, counts))} |"
    yield ""
    yield from calls.tables(rows, list(fits))


if __name__ == "__main__":
    finished = read_cells(Path(sys.argv[1]))
    lines = tables([done.retained for done in finished if done.retained is not None])
    sys.stdout.write("\n".join(lines) + "\n")
