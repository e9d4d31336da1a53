"""Similar tasks one after the other, and the same tasks with ``compile_many``: seconds, slots in use, equal results.

    python -m combee_dspy.bench.many --json many.json
    python -m combee_dspy.bench.many --tasks 3 --rollouts 120 --time-scale 0.02

Every way compiles the same tasks with the same optimizer and seeds on one simulated service: no
language model is measured.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dspy

from combee_dspy import Budget, Combee, Task, compile_many
from combee_dspy.bench.quiet import quietly
from combee_dspy.bench.record import LABEL, environment
from combee_dspy.benchmarks import Benchmark, load_benchmark
from combee_dspy.events import Event, ScheduleDecided
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.lms import SimulatedConfig, SimulatedService, SimulatedTask
from combee_dspy.many import SHAPES
from combee_dspy.tracking import Hook

__all__ = ["ALONE", "ManyOptions", "ManyRow", "main", "run_many", "table"]

ALONE = "one Combee.compile after the other"
"""The way that the others are compared with."""


@dataclass(frozen=True, slots=True)
class ManyOptions:
    """What is measured.

    Attributes:
        tasks: How many tasks, each formula-mini with rows of its own.
        slots: Calls that the service serves at once, and workers.
        rollouts: Budget of each task.
        minibatch: Examples in a minibatch: fixed, since a planned size follows the clock.
        train: Rows to learn from, of each task.
        validation: Rows to compare candidates on.
        heldout: Rows for the final figure.
        time_scale: Wall seconds for one simulated second.
        at_once: Tasks that are active at once at most; ``None`` leaves it to the shape.
        seed: Seed of rows, service and searches.
    """

    tasks: int = 6
    slots: int = 64
    rollouts: int = 300
    minibatch: int = 16
    train: int = 48
    validation: int = 24
    heldout: int = 48
    time_scale: float = 0.1
    at_once: int | None = None
    seed: int = 0

    def validate(self) -> None:
        """Check the fields.

        Raises:
            ArgumentValueError: One is out of its range.
        """
        for name in ("tasks", "slots", "rollouts", "minibatch", "train", "validation", "heldout"):
            if getattr(self, name) < 1:
                raise ArgumentValueError(name, getattr(self, name), "is below 1", "Give at least 1.")
        if not self.time_scale > 0:
            raise ArgumentValueError("time_scale", self.time_scale, "is not positive", "Seconds are to be measured.")


@dataclass(frozen=True, slots=True)
class ManyRow:
    """One way to compile the tasks.

    Attributes:
        way: How.
        chosen: What was chosen and why, where it was; else empty.
        seconds: Simulated seconds for all tasks.
        utilisation: Share of the slots that was busy in them.
        calls: LM calls.
        tokens: Their tokens.
        validation: Mean of the tasks' best validation scores.
        heldout: Mean of their held-out scores after.
        equal: Tasks whose program and scores are those that they have alone.
        tasks: How many there are.
    """

    way: str
    chosen: str
    seconds: float
    utilisation: float
    calls: int
    tokens: int
    validation: float
    heldout: float
    equal: int
    tasks: int


class _Shape(Hook):
    def __init__(self) -> None:
        self.text = ""

    def handle(self, event: Event) -> None:
        if isinstance(event, ScheduleDecided) and event.decision == "shape":
            self.text = f"{event.values['shape']}: {event.values['reason']}"


def run_many(options: ManyOptions, ways: Sequence[str] = (*SHAPES, "auto")) -> tuple[ManyRow, ...]:
    """Compile the tasks in each way.

    Args:
        options: What is measured.
        ways: Shapes of ``compile_many``.

    Returns:
        A row for one after the other, then one for each shape.

    Raises:
        ArgumentValueError: An option is out of its range.
    """
    options.validate()
    benchmarks = [_benchmark(options, number) for number in range(options.tasks)]
    config = SimulatedConfig(seed=options.seed, slots=options.slots, time_scale=options.time_scale)
    with quietly(), SimulatedService(config, _knowledge(benchmarks, options.seed)) as service:
        lm = service.lm()
        tasks = [
            Task(
                f"task {number}",
                one.program(),
                list(one.train.examples),
                valset=list(one.validation.examples),
                heldout=list(one.heldout.examples),
                metric=one.metric,
                seed=options.seed + number,
            )
            for number, one in enumerate(benchmarks)
        ]

        def combee(task: Task) -> Combee:
            return Combee(
                task.metric or benchmarks[0].metric,
                reflection_lm=lm,
                reflection_minibatch_size=options.minibatch,
                budget=Budget(rollouts=options.rollouts),
                num_threads=options.slots,
                seed=task.seed,
                probe=False,
                progress=False,
            )

        def alone() -> list[Any]:
            return [
                combee(task).compile(
                    task.student,
                    trainset=list(task.trainset),
                    valset=list(task.valset or ()),
                    heldout=list(task.heldout or ()),
                )
                for task in tasks
            ]

        def together(shape: Any, hook: Hook) -> list[Any]:
            at_once = None if shape == "candidate-parallel" else options.at_once
            results = compile_many(tasks, combee=combee, shape=shape, at_once=at_once, hooks=[hook])
            for result in results:
                if result.error is not None:
                    raise result.error
            return [result.program for result in results]

        with dspy.context(lm=lm):
            # What is only done once, such as the first connections, is nobody's.
            combee(tasks[0]).compile(tasks[0].student, trainset=list(tasks[0].trainset)[:4])
            first, programs = _measured(service, options, ALONE, alone)
            rows = [first]
            for way in ways:
                hook = _Shape()
                row, _ = _measured(service, options, way, _bound(together, way, hook), programs, hook)
                rows.append(row)
    return tuple(rows)


def _bound(action: Callable[..., list[Any]], *arguments: Any) -> Callable[[], list[Any]]:
    return lambda: action(*arguments)


def _measured(
    service: SimulatedService,
    options: ManyOptions,
    way: str,
    action: Callable[[], list[Any]],
    alone: Sequence[Any] | None = None,
    hook: _Shape | None = None,
) -> tuple[ManyRow, list[Any]]:
    service.reset_stats()
    service.forget_attempts()
    begun = time.monotonic()
    programs = action()
    seconds = (time.monotonic() - begun) / options.time_scale
    stats = service.stats()
    tallies = stats.by_kind.values()
    reports = [program.combee_report for program in programs]
    pairs = zip(programs, programs if alone is None else alone, strict=True)
    row = ManyRow(
        way=way,
        chosen="" if hook is None or way != "auto" else hook.text,
        seconds=seconds,
        utilisation=stats.slot_busy_seconds / (seconds * options.slots),
        calls=sum(tally.calls for tally in tallies),
        tokens=sum(tally.prompt_tokens + tally.completion_tokens for tally in tallies),
        validation=sum(report.best_score for report in reports) / len(reports),
        heldout=sum(report.heldout.after for report in reports) / len(reports),
        equal=sum(_outcome(one) == _outcome(other) for one, other in pairs),
        tasks=len(programs),
    )
    return row, programs


def _outcome(program: Any) -> Any:
    report = program.combee_report
    return program.dump_state(), report.best_score, report.heldout


def _benchmark(options: ManyOptions, number: int) -> Benchmark:
    sizes = {"train": options.train, "validation": options.validation, "heldout": options.heldout}
    return load_benchmark("formula-mini", task="compute", formulas=8, seed=options.seed + number, **sizes)


def _knowledge(benchmarks: Iterable[Benchmark], seed: int) -> SimulatedTask:
    """Return what one model knows of all tasks."""
    questions = {
        question.text: question for one in benchmarks for question in SimulatedTask.from_benchmark(one, seed).questions
    }
    return SimulatedTask(tuple(questions.values()))


def table(rows: Sequence[ManyRow]) -> str:
    """Return a Markdown table."""
    lines = ["| way | simulated s | times faster | slots in use | calls | tokens | validation | held-out | equal |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    lines += [
        f"| {row.way} | {row.seconds:.1f} | {rows[0].seconds / row.seconds:.2f} | {row.utilisation:.0%} "
        f"| {row.calls:,} | {row.tokens:,} | {row.validation:.3f} | {row.heldout:.3f} | {row.equal} of {row.tasks} |"
        for row in rows
    ]
    lines += ["", *(f"auto chose {row.chosen}." for row in rows if row.chosen), LABEL]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line asks for and print the table."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    defaults = ManyOptions()
    parser = argparse.ArgumentParser(prog="python -m combee_dspy.bench.many", description=__doc__)
    for name in ("tasks", "slots", "rollouts", "minibatch", "train", "validation", "heldout", "seed"):
        parser.add_argument(f"--{name}", type=int, default=getattr(defaults, name))
    parser.add_argument("--at-once", type=int, help="tasks that are active at once at most")
    parser.add_argument("--time-scale", type=float, default=defaults.time_scale, help="wall seconds a simulated one")
    parser.add_argument("--ways", default=",".join((*SHAPES, "auto")), help="shapes, by comma")
    parser.add_argument("--json", type=Path, help="where to write the rows")
    asked = vars(parser.parse_args(given))
    file, ways = asked.pop("json"), asked.pop("ways").split(",")
    options = ManyOptions(**asked)
    rows = run_many(options, ways)
    if file is not None:
        machine, versions = environment()
        record = {
            "label": LABEL,
            "simulated": True,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": shlex.join(["python", "-m", "combee_dspy.bench.many", *given]),
            "machine": machine,
            "versions": versions,
            "options": asdict(options),
            "rows": [asdict(row) for row in rows],
        }
        file.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(table(rows) + "\n")


if __name__ == "__main__":
    main()
