"""Batch size × aggregator: what one epoch teaches when every update is kept.

One epoch over the training examples, cut into minibatches of one size. For each
minibatch the program runs, its trajectories become reflections, the aggregator
under test reduces them, and its lessons are inserted; the next minibatch runs
with the new instruction. No child is refused and no parent is chosen, so that
what differs between two rows is the aggregator and the size, and nothing else.
The held-out score is that of the last instruction.

On the simulated service the planted lessons are known, and how much one call takes in is a law. All
laws but platitudes are assumed, and the law decides who wins: so the table decides nothing. Which
aggregator is best for a model is measured with --lm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, get_args

import dspy
import numpy as np

from combee_bench.asking import Asker, asker, there
from combee_bench.endpoints import Endpoint, model_endpoint, simulated_endpoint
from combee_bench.options import Count, Names, Numbers, OverloadLaw, ServiceOptions, Sizes
from combee_bench.overload import LAWS
from combee_bench.statistics import Interval, crossed_interval
from combee_bench.surroundings import quietly
from combee_dspy import registry
from combee_dspy.benchmarks import LoadedBenchmark, load_benchmark
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.hashing import row_hash
from combee_dspy.operators import Insert, OperatorInput
from combee_dspy.records import Edit, Reflection, Rollout
from combee_dspy.reflections import estimate_tokens
from combee_dspy.rollouts import RolloutJob
from combee_dspy.strategies import StrategyContext, parameters
from combee_dspy.streams import derive, derive_seed
from combee_simulator import SimulatedConfig, SimulatedTask

_VARIANTS = 5


@parameters
class SweepOptions(ServiceOptions):
    """Batch size × aggregator: what one epoch teaches when every update is kept.

    Args:
        aggregators: Names, by comma, each with its constructor's defaults.
        sizes: Examples a minibatch, by comma.
        laws: Laws of the simulated service, by comma: attention, writing, reading, collapse,
            dilution, platitudes, unlimited.
        seeds: Seeds, such as 0-9: each draws its own rows, order and answers.
        examples: Training examples: one epoch.
        heldout: Held-out examples, read at the end of each run.
        task: Task of formula-mini: compute or route.
        workers: Calls in flight.
    """

    aggregators: Names = ("single-call", "top-k", "summarize", "parallel-scan", "union")
    sizes: Sizes = (3, 10, 40, 120, 240)
    laws: tuple[OverloadLaw, ...] = get_args(OverloadLaw)
    seeds: Numbers = tuple(range(10))
    examples: Count = 240
    heldout: Count = 60
    task: str = "compute"
    workers: Count = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        if max(self.sizes) > self.examples:
            raise ArgumentValueError(
                "sizes", self.sizes, "holds more than one epoch", f"Give 1 to {self.examples}."
            )


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One epoch.

    Attributes:
        aggregator: Its name.
        size: Examples a minibatch.
        law: The service's law, or the model's name.
        seed: The seed.
        retained: Planted lessons in the last instruction; ``None`` where none are planted.
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
    retained: int | None
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
    """Plant five lessons per formula, each needed by a fifth of its questions."""
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
        """Learn for one epoch, and read the held-out set; the student's too where it is new."""
        async with asker(endpoint.reflection_lm, workers, endpoint.adapter) as ask:
            heldout = self.rows.heldout.examples
            text = str(next(iter(self.rows.program().predictors())).signature.instructions)
            if before is None:
                before = fmean(rollout.score for rollout in await self._run(text, heldout, ask))
            examples = list(self.rows.train.examples)
            derive(self.seed, "sweep order").shuffle(examples)
            for update, start in enumerate(range(0, len(examples), self.size)):
                text = await self._updated(text, examples[start : start + self.size], update, ask)
            after = fmean(rollout.score for rollout in await self._run(text, heldout, ask))
            spent = ask.costs().total
        retained, taught = _count(task, text, self.failed)
        return SweepRow(
            aggregator=self.aggregator.name,
            size=self.size,
            law=law,
            seed=self.seed,
            retained=retained,
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
        context = StrategyContext(name, text, ask, lambda event: None, update=update, seed=seed)
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


def _count(
    task: SimulatedTask | None, text: str, failed: Sequence[dspy.Example]
) -> tuple[int | None, int | None]:
    if task is None:
        return None, None
    questions_failed = {" ".join(str(value) for value in row.inputs().values()) for row in failed}
    taught = {
        question.key
        for question in task.questions
        if any(question.text in text for text in questions_failed)
    }
    return sum(f"[{key}]" in text for key in taught), len(taught)


def summary(options: SweepOptions, rows: Sequence[SweepRow]) -> list[dict[str, Any]]:
    """Return means over the seeds with 95 % intervals, by law, size and aggregator."""
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
                [
                    row.retained / row.taught
                    for row in group
                    if row.retained is not None and row.taught
                ]
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
