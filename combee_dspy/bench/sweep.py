"""Batch size × aggregator: what one epoch teaches when every update is kept.

    combee bench sweep
    combee bench sweep --model openai/… --sizes 3,10

One epoch over the training examples, cut into minibatches of one size. For each
minibatch the program runs, its trajectories become reflections, the aggregator
under test reduces them, and its lessons are inserted; the next minibatch runs
with the new instruction. No child is refused and no parent is chosen, so that
what differs between two rows is the aggregator and the size, and nothing else.
The held-out score is that of the last instruction.

On the simulated service the planted lessons are known: ``kept`` counts those in
the last instruction, out of those that the epoch's failures could teach. It is
run under two of the service's laws, and on request under a third. No
aggregator reads these laws. On any other endpoint ``kept`` is not known, and
the rest is the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

import dspy
import numpy as np

from combee_dspy.aggregators import Aggregator
from combee_dspy.benchmarks import Benchmark, load_benchmark
from combee_dspy.costs import Ledger, LedgerRecorder
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.hashing import row_hash
from combee_dspy.lms import CapacityModel, LMPort, SimulatedConfig, SimulatedService, SimulatedTask
from combee_dspy.operators import Insert, OperatorInput
from combee_dspy.records import Edit, Lessons, Reflection, Rollout
from combee_dspy.reducer_core import propose_component
from combee_dspy.reflections import estimate_tokens
from combee_dspy.registry import resolve
from combee_dspy.rollouts import ExecutorSession, Threads, run_rollout
from combee_dspy.strategies import StrategyContext
from combee_dspy.streams import derive, derive_seed

__all__ = ["LAWS", "SweepOptions", "SweepRow", "run_sweep", "summary", "table"]

LAWS: Mapping[str, CapacityModel] = {
    "attention": CapacityModel.attention(),
    "writing": CapacityModel.writing(),
    "reading": CapacityModel.reading(),
}
"""The simulated service's laws: at most 12 items attended a call; at most 12 lessons written a call; and, only where
it is asked for, items of about 5,000 tokens attended a call, which is as many raw records but many more short lines."""

AGGREGATORS = ("single-call", "top-k", "summarize", "parallel-scan", "union")

_VARIANTS = 5


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """What is measured.

    Attributes:
        aggregators: Names, each with its constructor's defaults.
        sizes: Examples a minibatch.
        laws: Names out of :data:`LAWS`; ignored on another endpoint. ``reading`` is not among them by default.
        seeds: Each draws its own rows, order and answers.
        examples: Training examples, which make one epoch.
        heldout: Held-out examples, read once at the end of each run.
        workers: Calls in flight.
        benchmark: A benchmark's name.
        params: Its parameters, without sizes and seed.
        model: ``None`` for the simulated service, ``"embedded"``, or a model's name for ``dspy.LM``.
        lm_kwargs: Further arguments of ``dspy.LM``.
    """

    aggregators: tuple[str, ...] = AGGREGATORS
    sizes: tuple[int, ...] = (3, 10, 40, 120, 240)
    laws: tuple[str, ...] = ("attention", "writing")
    seeds: tuple[int, ...] = tuple(range(10))
    examples: int = 240
    heldout: int = 60
    workers: int = 16
    benchmark: str = "formula-mini"
    params: Mapping[str, Any] = field(default_factory=lambda: {"task": "compute"})
    model: str | None = None
    lm_kwargs: Mapping[str, Any] = field(default_factory=dict)


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
        simulated: Whether no language model was involved.
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
    simulated: bool

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return asdict(self)


def run_sweep(options: SweepOptions) -> Iterator[SweepRow]:
    """Run every combination; rows come one at a time.

    Raises:
        ArgumentValueError: A law or an aggregator is unknown, or a size is below 1.
    """
    for law in options.laws if options.model is None else ():
        if law not in LAWS:
            raise ArgumentValueError("laws", law, "is no law", f"Laws: {', '.join(LAWS)}.")
    for size in options.sizes:
        if not 1 <= size <= options.examples:
            raise ArgumentValueError("sizes", size, "is no size of a minibatch", f"Give 1 to {options.examples}.")
    aggregators = {name: resolve("aggregator", name) for name in options.aggregators}
    return _rows(options, aggregators)


def _rows(options: SweepOptions, aggregators: Mapping[str, Any]) -> Iterator[SweepRow]:
    laws = options.laws if options.model is None else (options.model,)
    for law in laws:
        for seed in options.seeds:
            with _endpoint(options, law, seed) as (benchmark, lm, task, session):
                baseline = _heldout(benchmark, "", session)
                for name, aggregator in aggregators.items():
                    for size in options.sizes:
                        run = _Epoch(options, benchmark, aggregator, size, seed, session, lm)
                        yield run.row(name, law, task, baseline)


@contextmanager
def _endpoint(
    options: SweepOptions, law: str, seed: int
) -> Iterator[tuple[Benchmark, dspy.LM, SimulatedTask | None, ExecutorSession]]:
    with ExitStack() as stack:
        sizes = {"train": options.examples, "validation": 1, "heldout": options.heldout, "seed": seed}
        benchmark = load_benchmark(options.benchmark, **{**options.params, **sizes})
        task: SimulatedTask | None = None
        adapter: Any = None
        if options.model is None:
            task = _planted(benchmark, seed)
            config = SimulatedConfig(seed=seed, capacity=LAWS[law], time_scale=0)
            lm = stack.enter_context(SimulatedService(config, task)).lm(cache=False)
        elif options.model == "embedded":
            from combee_dspy.lms import ConstrainedJSONAdapter, embedded_lm

            lm, adapter = embedded_lm(slots=options.workers, **options.lm_kwargs), ConstrainedJSONAdapter()
        else:
            lm = dspy.LM(options.model, **options.lm_kwargs)
        session = Threads().start(options.workers)
        stack.callback(session.close)
        stack.enter_context(dspy.context(lm=lm, **({} if adapter is None else {"adapter": adapter})))
        yield benchmark, lm, task, session


def _planted(benchmark: Benchmark, seed: int) -> SimulatedTask:
    """Plant five lessons per formula, each needed by a fifth of its questions, so that there are many to lose."""
    rows = [row for split in benchmark.splits for row in split.examples]
    question, answer = next(iter(benchmark.signature.input_fields)), next(iter(benchmark.signature.output_fields))

    def key_of(row: Mapping[str, Any]) -> str:
        variant = derive(seed, "variant", str(row[question])).randrange(_VARIANTS)
        return f"{row.get('formula', answer)}.{variant}"

    return SimulatedTask.from_examples(rows, question, answer, key_of=key_of, seed=seed)


class _Epoch:
    """One epoch of one aggregator at one size."""

    def __init__(
        self,
        options: SweepOptions,
        benchmark: Benchmark,
        aggregator: Aggregator,
        size: int,
        seed: int,
        session: ExecutorSession,
        lm: dspy.LM,
    ) -> None:
        self.options = options
        self.benchmark = benchmark
        self.aggregator = aggregator
        self.size = size
        self.seed = seed
        self.session = session
        self.port = LMPort(session, {"proposer": lm})
        self.failed: list[dspy.Example] = []

    def row(self, name: str, law: str, task: SimulatedTask | None, baseline: float) -> SweepRow:
        ledger = Ledger()
        with LedgerRecorder(ledger).installed():
            text = self._learn()
        found = ledger.snapshot().by_role.get("proposer")
        kept, taught = _counted(task, text, self.failed)
        return SweepRow(
            aggregator=name,
            size=self.size,
            law=law,
            seed=self.seed,
            kept=kept,
            taught=taught,
            result_tokens=estimate_tokens(text),
            before=baseline,
            after=_heldout(self.benchmark, text, self.session),
            calls=found.calls if found is not None else 0,
            tokens=found.tokens if found is not None else 0,
            simulated=task is not None,
        )

    def _learn(self) -> str:
        rows = list(self.benchmark.train.examples)
        derive(self.seed, "sweep order").shuffle(rows)
        text = _instruction(self.benchmark)
        for number, start in enumerate(range(0, len(rows), self.size), start=1):
            text = self._update(text, rows[start : start + self.size], number)
        return text

    def _update(self, text: str, rows: Sequence[dspy.Example], iteration: int) -> str:
        program = _program(self.benchmark, text)
        name, predictor = next(iter(program.named_predictors()))
        rollouts = _run(program, rows, self.benchmark, self.session)
        self.failed += [one.example for one in rollouts if one.score < 1]
        context = StrategyContext(
            component=name,
            text=text,
            predict=self.port.predict,
            emit=lambda event: None,
            iteration=iteration,
            seed=derive_seed(self.seed, "sweep", self.aggregator.name, self.size),
        )
        given = OperatorInput(text, (), predictor.signature, Lessons(name), ())
        reflections = [_reflection(index, rollout) for index, rollout in enumerate(rollouts)]
        operator = Insert()
        edit = propose_component(self.aggregator, [operator], reflections, given, context)[0]
        return edit.instruction if isinstance(edit, Edit) and edit.instruction is not None else text


def _reflection(index: int, rollout: Rollout) -> Reflection:
    """Return GEPA's reflective record of a rollout of a program with one predictor."""
    inputs = {name: str(value) for name, value in rollout.example.inputs().items()}
    outputs: Any = "The answer did not parse."
    if rollout.prediction is not None and not rollout.error:
        outputs = {name: str(value) for name, value in rollout.prediction.items()}
    record = {"Inputs": inputs, "Generated Outputs": outputs, "Feedback": rollout.feedback or str(rollout.score)}
    return Reflection(index, record, rollout.example_id)


def _instruction(benchmark: Benchmark) -> str:
    return str(next(iter(benchmark.program().predictors())).signature.instructions)


def _program(benchmark: Benchmark, text: str) -> dspy.Module:
    program = benchmark.program()
    if text:
        predictor = next(iter(program.predictors()))
        predictor.signature = predictor.signature.with_instructions(text)
    return program


def _run(
    program: dspy.Module, rows: Sequence[dspy.Example], benchmark: Benchmark, session: ExecutorSession
) -> list[Rollout]:
    pending = [session.submit(run_rollout, program, row, row_hash(row), benchmark.metric, 0.0) for row in rows]
    return [one.result() for one in pending]


def _heldout(benchmark: Benchmark, text: str, session: ExecutorSession) -> float:
    rollouts = _run(_program(benchmark, text), list(benchmark.heldout.examples), benchmark, session)
    return fmean(one.score for one in rollouts)


def _counted(task: SimulatedTask | None, text: str, failed: Sequence[dspy.Example]) -> tuple[int | None, int | None]:
    if task is None:
        return None, None
    asked = {" ".join(str(value) for value in row.inputs().values()) for row in failed}
    taught = {question.key for question in task.questions if any(question.text in one for one in asked)}
    return sum(f"[{key}]" in text for key in taught), len(taught)


def summary(rows: Sequence[SweepRow]) -> list[dict[str, Any]]:
    """Return one record per law, size and aggregator: means over the seeds with 95 % bootstrap intervals."""
    cells: dict[tuple[str, int, str], list[SweepRow]] = {}
    for row in rows:
        cells.setdefault((row.law, row.size, row.aggregator), []).append(row)
    found = []
    for (law, size, name), group in cells.items():
        kept = [row.kept / row.taught for row in group if row.kept is not None and row.taught]
        found.append(
            {
                "law": law,
                "size": size,
                "aggregator": name,
                "seeds": len(group),
                "kept": _interval(kept),
                "heldout": _interval([row.after for row in group]),
                "before": fmean(row.before for row in group),
                "result_tokens": fmean(row.result_tokens for row in group),
                "calls": fmean(row.calls for row in group),
                "tokens": fmean(row.tokens for row in group),
            }
        )
    return found


def _interval(values: Sequence[float]) -> list[float] | None:
    """Return mean, low and high of a percentile bootstrap over the seeds."""
    if not values:
        return None
    generator = np.random.default_rng(random.Random(len(values)).getrandbits(32))  # noqa: S311 - resampling only
    data = np.asarray(values, dtype=float)
    means = data[generator.integers(0, len(data), size=(4_000, len(data)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return [float(data.mean()), float(low), float(high)]


def table(rows: Sequence[SweepRow]) -> str:
    """Return a Markdown table, with a mark where parallel-scan or union is below another aggregator."""
    cells = summary(rows)
    lines = [
        "| law | batch | aggregator | lessons kept | held-out | result tokens | LM calls | LM tokens | |",
        "| --- | ---: | --- | --- | --- | ---: | ---: | ---: | --- |",
    ]
    for cell in cells:
        rivals = [one for one in cells if (one["law"], one["size"]) == (cell["law"], cell["size"])]
        lines.append(
            f"| {cell['law']} | {cell['size']} | {cell['aggregator']} | {_shown(cell['kept'])} "
            f"| {_shown(cell['heldout'])} | {cell['result_tokens']:,.0f} | {cell['calls']:,.0f} "
            f"| {cell['tokens']:,.0f} | {_loses(cell, rivals)} |"
        )
    return "\n".join(lines)


def _shown(interval: Sequence[float] | None) -> str:
    return "–" if interval is None else f"{interval[0]:.2f} [{interval[1]:.2f}, {interval[2]:.2f}]"


def _loses(cell: Mapping[str, Any], rivals: Sequence[Mapping[str, Any]]) -> str:
    """Say where one of ours is below the best of the others on held-out, their intervals apart or not."""
    if cell["aggregator"] not in ("parallel-scan", "union"):
        return ""
    others = [one for one in rivals if one["aggregator"] not in ("parallel-scan", "union")]
    if not others:
        return ""
    best = max(others, key=lambda one: float(one["heldout"][0]))
    if best["heldout"][0] <= cell["heldout"][0]:
        return ""
    clear = best["heldout"][1] > cell["heldout"][2]
    return f"{'loses to' if clear else 'below, intervals overlap:'} {best['aggregator']}"
