"""One scan, call by call: which reflections each read, what it wrote, and which it lost."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy
from rich.table import Table

from combee_bench.options import ScanOptions
from combee_bench.overload import LAWS
from combee_bench.surroundings import load_rows, quietly
from combee_bench.tables import by_rows
from combee_dspy import Budget, Combee, Search
from combee_dspy.events import ScanEnded
from combee_dspy.journal import Reader, RunHistory, journal_file
from combee_dspy.tracking import write_report
from combee_simulator import SimulatedConfig, SimulatedService, benchmark_task

__all__ = ["NodeRow", "line", "run", "table"]

_PARAMS: dict[str, Any] = {"task": "compute", "formulas": 12}


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One call of a scan.

    Attributes:
        level: 1 reads reflections, those above merge.
        node: Its number in the level.
        read: Reflections below it, by index.
        kept: Those of them whose lesson is in the result.
        lost: Those of them whose lesson was lost in this very call.
        lessons: Lessons that it wrote.
        report: The run's page.
    """

    level: int
    node: int
    read: tuple[int, ...]
    kept: tuple[int, ...]
    lost: tuple[int, ...]
    lessons: int
    report: str


def run(options: ScanOptions) -> Iterator[NodeRow]:
    """Compile one update and read its scan from the journal."""
    folder = Path(options.log_dir or tempfile.mkdtemp(prefix="combee-scan-"))
    rows = load_rows("formula-mini", _PARAMS, train=options.reflections, validation=24, heldout=24)
    config = SimulatedConfig(seed=options.seed, time_scale=0.0, capacity=LAWS[options.law])
    with (
        SimulatedService(config, benchmark_task(rows, options.seed, params=_PARAMS)) as service,
        quietly(),
    ):
        combee = Combee(
            rows.metric,
            aggregator=options.aggregator,
            reflection_minibatch_size=options.reflections,
            reflection_lm=service.lm(),
            search=Search(keep="pareto"),
            budget=Budget(updates=1),
            num_threads=service.config.slots,
            seed=options.seed,
            tracker=(),
            log_dir=folder,
        )
        with dspy.context(lm=service.lm()):
            combee.compile(
                rows.program(),
                trainset=list(rows.train.examples),
                valset=list(rows.validation.examples),
                heldout=list(rows.heldout.examples),
            )
    page = str(write_report(folder, folder / "report.html"))
    with closing(Reader(journal_file(folder))) as reader:
        scan = next(RunHistory(reader).entries(ScanEnded)).event
    fates = {reflection.index: reflection for reflection in scan.retained}
    for node in sorted(scan.nodes, key=lambda node: (node.level, node.node)):
        read = tuple(sorted({index for index in node.sources if index in fates}))
        covered = tuple(index for index in read if fates[index].covered)
        place = (node.level, node.node)
        lost = tuple(index for index in read if fates[index].lost_at == place)
        yield NodeRow(*place, read, covered, lost, len(node.lessons), page)


def line(options: ScanOptions, row: NodeRow) -> str:
    """Say what a call was given and made of it."""
    return (
        f"level {row.level}, call {row.node + 1}: {len(row.read)} reflections, {row.lessons}"
        " lessons"
    )


def table(options: ScanOptions, rows: Sequence[NodeRow]) -> Table:
    """Return the scan, a call a line: a filled square is a lesson that is in the result."""
    cells = [
        (
            str(row.level),
            str(row.node + 1),
            "".join(
                "■" if index in row.kept else "×" if index in row.lost else "□"
                for index in row.read
            ),
            str(len(row.read)),
            str(row.lessons),
            str(len(row.lost)),
        )
        for row in rows
    ]
    notes = (
        (
            f"{options.reflections} reflections, read by {options.aggregator}; the law of one call"
            f" is {options.law}."
        ),
        "■ its lesson is in the result   × lost in this call   □ lost elsewhere",
        "Simulated service: no language model answered.",
        f"The run's page: {rows[0].report}",
    )
    return by_rows(
        "One scan",
        ("level", "call", "<reflections below it", "read", "lessons", "lost"),
        cells,
        notes,
    )
