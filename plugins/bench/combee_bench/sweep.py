"""Batch size × aggregator: what one epoch teaches when every update is kept.

One epoch over the training examples, cut into minibatches of one size. For each
minibatch the program runs, its trajectories become reflections, the aggregator
under test reduces them, and its lessons are inserted; the next minibatch runs
with the new instruction. No child is refused and no parent is chosen, so that
what differs between two rows is the aggregator and the size, and nothing else.
The held-out score is that of the last instruction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import dspy
import numpy as np
from rich.table import Table

from combee_bench.asking import Asker, asker, there
from combee_bench.endpoints import Endpoint, model_endpoint, simulated_endpoint
from combee_bench.options import SweepOptions
from combee_bench.statistics import Interval, crossed_interval
from combee_bench.surroundings import LABEL, quietly
from combee_bench.tables import by_rows
from combee_dspy import registry
from combee_dspy.benchmarks import LoadedBenchmark, load_benchmark
from combee_dspy.hashing import row_hash
from combee_dspy.operators import Insert, OperatorInput
from combee_dspy.records import Edit, Reflection, Rollout
from combee_dspy.reflections import estimate_tokens
from combee_dspy.rollouts import RolloutJob
from combee_dspy.strategies import StrategyContext
from combee_dspy.streams import derive, derive_seed
from combee_simulator import CapacityModel, SimulatedConfig, SimulatedTask

__all__ = ["LAWS", "SweepRow", "line", "run", "summary", "table"]

LAWS: Mapping[str, CapacityModel] = {
    "attention": CapacityModel.attention(),
    "writing": CapacityModel.writing(),
    "reading": CapacityModel.reading(),
    "collapse": CapacityModel.collapse(),
    "dilution": CapacityModel.diluted(),
    "platitudes": CapacityModel.platitudes(),
    "unlimited": CapacityModel.unlimited(),
}
"""At most 12 items attended a call; at most 12 lessons written a call; items of about 5,000 tokens
attended a call, which is as many records of Formula but many more short lines; a call of more than
24 records keeps 8 % of them, by which the paper's result holds; a call of N items keeps N^(-0.55)
of them, by which it fails; no limit, by which no aggregator is needed.
"""

_VARIANTS = 5


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One epoch.

    Attributes:
        aggregator: Its name.
        size: Examples a minibatch.
        law: The service's law, or the model's name.
        seed: The seed.
        kept: Planted lessons in the last instruction; ``None`` where none are planted.
        taught: Planted lessons that the epoch's failures could teach.
        result_tokens: Estimated tokens of the last instruction.
        before: Mean held-out score of the seed instruction.
        after: Of the last one.
        calls: The proposer's LM calls.
        tokens: Their prompt and completion tokens.
    """

    aggregator: str
    size: int
    law: str
    seed: int
    kept: int | None
    taught: int | None
    result_tokens: int
    before: float
    after: float
    calls: int
    tokens: int


def run(options: SweepOptions) -> Iterator[SweepRow]:
    """Run every combination; rows come one at a time.

    Raises:
        UnknownStrategyError: An aggregator is not installed.
    """
    aggregators = {name: registry.build("aggregator", name) for name in options.aggregators}
    return _rows(options, aggregators)


def _rows(options: SweepOptions, aggregators: Mapping[str, Any]) -> Iterator[SweepRow]:
    for law in options.laws if options.lm is None else (options.lm,):
        for seed in options.seeds:
            sizes = {"train": options.examples, "validation": 1, "heldout": options.heldout}
            rows = load_benchmark("formula-mini", task=options.task, seed=seed, **sizes)
            task = _planted(rows, seed) if options.lm is None else None
            before: float | None = None
            with (
                _endpoint(options, law, seed, task) as endpoint,
                dspy.context(**endpoint.settings()),
            ):
                for aggregator in aggregators.values():
                    for size in options.sizes:
                        with quietly():
                            epoch = _Epoch(rows, aggregator, size, seed)
                            row = asyncio.run(
                                epoch.row(law, task, endpoint, options.workers, before)
                            )
                        before = row.before
                        yield row


@contextmanager
def _endpoint(
    options: SweepOptions, law: str, seed: int, task: SimulatedTask | None
) -> Iterator[Endpoint]:
    if task is None:
        where: dict[str, Any] = {"api_base": options.api_base, "api_key_env": options.api_key_env}
        yield model_endpoint(law, slots=options.workers, **where)
        return
    config = SimulatedConfig(seed=seed, capacity=LAWS[law], time_scale=0)
    with simulated_endpoint(config, task) as endpoint:
        yield endpoint


def _planted(rows: LoadedBenchmark, seed: int) -> SimulatedTask:
    """Plant five lessons per formula, each needed by a fifth of its questions, so that there are
    many to lose.
    """
    examples = [row for split in rows.splits for row in split.examples]
    question, answer = (
        next(iter(rows.signature.input_fields)),
        next(iter(rows.signature.output_fields)),
    )

    def key_of(row: Mapping[str, Any]) -> str:
        variant = derive(seed, "variant", str(row[question])).randrange(_VARIANTS)
        return f"{row.get('formula', answer)}.{variant}"

    return SimulatedTask.from_examples(examples, question, answer, key_of=key_of, seed=seed)


@dataclass(slots=True)
class _Epoch:
    """One epoch of one aggregator at one size."""

    rows: LoadedBenchmark
    aggregator: Any
    size: int
    seed: int
    failed: list[dspy.Example] = field(default_factory=list)

    async def row(
        self,
        law: str,
        task: SimulatedTask | None,
        endpoint: Endpoint,
        workers: int,
        before: float | None,
    ) -> SweepRow:
        """Learn for one epoch, and read the held-out set; the student's score where it is not
        known.
        """
        async with asker(endpoint.reflection_lm, workers, endpoint.adapter) as ask:
            heldout = self.rows.heldout.examples
            text = str(next(iter(self.rows.program().predictors())).signature.instructions)
            if before is None:
                before = fmean(one.score for one in await self._run(text, heldout, ask))
            examples = list(self.rows.train.examples)
            derive(self.seed, "sweep order").shuffle(examples)
            for update, start in enumerate(range(0, len(examples), self.size)):
                text = await self._updated(text, examples[start : start + self.size], update, ask)
            after = fmean(one.score for one in await self._run(text, heldout, ask))
            spent = ask.costs().total
        kept, taught = _counted(task, text, self.failed)
        return SweepRow(
            aggregator=self.aggregator.name,
            size=self.size,
            law=law,
            seed=self.seed,
            kept=kept,
            taught=taught,
            result_tokens=estimate_tokens(text),
            before=before,
            after=after,
            calls=spent.calls,
            tokens=spent.tokens,
        )

    async def _updated(
        self, text: str, examples: Sequence[dspy.Example], update: int, ask: Asker
    ) -> str:
        name, predictor = next(iter(self.rows.program().named_predictors()))
        rollouts = await self._run(text, examples, ask)
        pairs = list(zip(examples, rollouts, strict=True))
        self.failed += [example for example, rollout in pairs if rollout.score < 1]
        seed = derive_seed(self.seed, "sweep", self.aggregator.name, self.size)
        context = StrategyContext(
            name, text, ask, lambda kind, **data: None, update=update, seed=seed
        )
        reflections = there(_reflection(index, *pair) for index, pair in enumerate(pairs))
        lessons = await self.aggregator.aggregate(reflections, context)
        edit = await Insert().apply(OperatorInput(text, (), predictor.signature, lessons), context)
        return edit.instruction if isinstance(edit, Edit) and edit.instruction is not None else text

    async def _run(self, text: str, examples: Sequence[dspy.Example], ask: Asker) -> list[Rollout]:
        program = self.rows.program()
        predictor = next(iter(program.predictors()))
        predictor.signature = predictor.signature.with_instructions(text)
        jobs = [
            RolloutJob(program, example, row_hash(example), self.rows.metric)
            for example in examples
        ]
        return await asyncio.gather(*(ask.slots.rollout(job, (0,)) for job in jobs))


def _reflection(index: int, example: dspy.Example, rollout: Rollout) -> Reflection:
    """Return GEPA's reflective record of a rollout of a program with one predictor."""
    inputs = {name: str(value) for name, value in example.inputs().items()}
    outputs: Any = "The answer did not parse."
    if rollout.prediction is not None:
        outputs = {name: str(value) for name, value in rollout.prediction.items()}
    record = {
        "Inputs": inputs,
        "Generated Outputs": outputs,
        "Feedback": rollout.feedback or str(rollout.score),
    }
    return Reflection(index, record, rollout.example_id)


def _counted(
    task: SimulatedTask | None, text: str, failed: Sequence[dspy.Example]
) -> tuple[int | None, int | None]:
    if task is None:
        return None, None
    asked = {" ".join(str(value) for value in row.inputs().values()) for row in failed}
    taught = {
        question.key for question in task.questions if any(question.text in one for one in asked)
    }
    return sum(f"[{key}]" in text for key in taught), len(taught)


def summary(options: SweepOptions, rows: Sequence[SweepRow]) -> list[dict[str, Any]]:
    """Return one record per law, size and aggregator: means over the seeds with 95 % bootstrap
    intervals.
    """
    cells: dict[tuple[str, int, str], list[SweepRow]] = {}
    for row in rows:
        cells.setdefault((row.law, row.size, row.aggregator), []).append(row)
    return [
        {
            "law": law,
            "size": size,
            "aggregator": name,
            "seeds": len(group),
            "kept": _interval(
                [row.kept / row.taught for row in group if row.kept is not None and row.taught]
            ),
            "heldout": _interval([row.after for row in group]),
            "before": fmean(row.before for row in group),
            "result_tokens": fmean(row.result_tokens for row in group),
            "calls": fmean(row.calls for row in group),
            "tokens": fmean(row.tokens for row in group),
        }
        for (law, size, name), group in cells.items()
    ]


def _interval(values: Sequence[float]) -> Interval | None:
    return crossed_interval(np.array([values], dtype=float), 0) if values else None


def line(options: SweepOptions, row: SweepRow) -> str:
    """Return what is said of one row when it is there."""
    kept = "" if row.kept is None else f", {row.kept} of {row.taught} lessons kept"
    return (
        f"{row.law}, seed {row.seed}, {row.aggregator}, {row.size}: held-out {row.after:.2f}{kept}"
    )


def table(options: SweepOptions, rows: Sequence[SweepRow]) -> Table:
    """Return the means, with a mark where parallel-scan or union is below another aggregator."""
    cells = summary(options, rows)
    title = f"One epoch of {options.examples} examples, every update kept: {options.lm or LABEL}"
    heads = "<law,batch,<aggregator,lessons kept,held-out,result tokens,LM calls,LM tokens,<"
    shown = []
    for cell in cells:
        rivals = [one for one in cells if (one["law"], one["size"]) == (cell["law"], cell["size"])]
        figures = (f"{cell[name]:,.0f}" for name in ("result_tokens", "calls", "tokens"))
        kept, place = str(cell["kept"] or ""), (cell["law"], str(cell["size"]), cell["aggregator"])
        shown.append((*place, kept, str(cell["heldout"]), *figures, _loses(cell, rivals)))
    undecided = "No model answered: this table decides nothing."
    notes = [] if options.lm else [f"All laws but platitudes are assumed. {undecided}"]
    return by_rows(title, heads.split(","), shown, notes)


def _loses(cell: Mapping[str, Any], rivals: Sequence[Mapping[str, Any]]) -> str:
    """Say where one of ours is below the best of the others on held-out, their intervals apart or
    not.
    """
    ours = ("parallel-scan", "union")
    others = [one for one in rivals if one["aggregator"] not in ours]
    if cell["aggregator"] not in ours or not others:
        return ""
    best = max(others, key=lambda one: float(one["heldout"].mean))
    if best["heldout"].mean <= cell["heldout"].mean:
        return ""
    clear = best["heldout"].low > cell["heldout"].high
    return f"{'loses to' if clear else 'below, intervals overlap:'} {best['aggregator']}"
