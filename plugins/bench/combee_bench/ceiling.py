"""Floor and ceiling of a model: a benchmark without lessons, and with all written by hand."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError
from rich.table import Table
from scipy.stats import binomtest

from combee_bench.endpoints import Endpoint, model_lm
from combee_bench.options import CeilingOptions
from combee_bench.tables import by_rows
from combee_dspy.benchmarks import LoadedBenchmark, load_benchmark
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.files import read_plain
from combee_dspy.lms import ConstrainedJSONAdapter
from combee_dspy.streams import derive

__all__ = ["CeilingRow", "line", "run", "table"]


@dataclass(frozen=True, slots=True)
class CeilingRow:
    """One prompt on the held-out rows of one seed.

    Attributes:
        model: DSPy's name of the model.
        prompt: ``floor`` or ``ceiling``.
        seed: Of the benchmark.
        scores: Of each held-out row, in order. An answer that does not parse scores 0.
        answers: What was answered, in the same order; ``None`` where it did not parse.
        prompt_tokens: Tokens read, those that the service had in its cache included.
        completion_tokens: Tokens written.
        seconds: Wall seconds.
    """

    model: str
    prompt: str
    seed: int
    scores: tuple[float, ...]
    answers: tuple[str | None, ...]
    prompt_tokens: int
    completion_tokens: int
    seconds: float


def run(options: CeilingOptions) -> Iterator[CeilingRow]:
    """Ask the held-out rows of every seed twice.

    Raises:
        ArgumentValueError: There are no lessons written by hand, or no tolerant metric, or the key
            is not set.
        DataSourceError: The benchmark's rows cannot be read.
        OSError: The file of lessons cannot be read.
    """
    lm, _ = model_lm(options.lm, **options.settings())
    # As in ``bench real``: a ceiling asked in another way would be that of another study.
    adapter = ConstrainedJSONAdapter() if options.lm == "embedded" else None
    for seed in options.seeds:
        benchmark = _loaded(options, seed)
        instructions = benchmark.signature.instructions
        taught = "\n".join([instructions, *(f"- {lesson}" for lesson in benchmark.lessons)])
        for prompt, text in (("floor", instructions), ("ceiling", taught)):
            endpoint = Endpoint(lm, lm, lm, adapter=adapter)
            yield _row(endpoint, benchmark, options.slots, prompt, seed, text)


def _loaded(options: CeilingOptions, seed: int) -> LoadedBenchmark:
    own: dict[str, Any] = {} if options.rules is None else {"rules": options.rules}
    if options.choices:
        own["choices"] = True
    if options.path is None:
        benchmark = load_benchmark(options.benchmark, heldout=options.heldout, seed=seed, **own)
    else:
        benchmark = load_benchmark(options.benchmark, path=str(options.path), **own)
        rows = benchmark.heldout.examples
        if options.heldout > len(rows):
            raise ArgumentValueError(
                "heldout", options.heldout, f"is more than the {len(rows)} rows", "Give fewer."
            )
        drawn = derive(seed, "bench ceiling", options.benchmark).sample(rows, options.heldout)
        benchmark = replace(benchmark, heldout=replace(benchmark.heldout, examples=tuple(drawn)))
    if options.lessons is not None:
        lines = read_plain(options.lessons, follow=True).decode("utf-8").splitlines()
        benchmark = replace(benchmark, lessons=tuple(filter(None, map(str.strip, lines))))
    if not benchmark.lessons:
        raise ArgumentValueError(
            "benchmark",
            options.benchmark,
            "has no lessons written by hand",
            "Give house-rules, or lessons.",
        )
    if options.tolerant and benchmark.tolerant_metric is None:
        raise ArgumentValueError(
            "tolerant", True, f"is no metric of {options.benchmark}", "Leave it out."
        )
    return (
        replace(benchmark, metric=benchmark.tolerant_metric)
        if options.tolerant and benchmark.tolerant_metric
        else benchmark
    )


def _row(
    endpoint: Endpoint, benchmark: LoadedBenchmark, slots: int, prompt: str, seed: int, text: str
) -> CeilingRow:
    program, asked_for = benchmark.program(), next(iter(benchmark.signature.output_fields))
    for predictor in program.predictors():
        predictor.signature = predictor.signature.with_instructions(text)

    def answer(example: dspy.Example) -> tuple[float, str | None]:
        with dspy.context(**endpoint.settings()):
            try:
                prediction = program(**example.inputs())
            except AdapterParseError:
                return 0.0, None
        return benchmark.metric(example, prediction).score, str(prediction[asked_for])

    started = time.perf_counter()
    with endpoint.counting() as counted, ThreadPoolExecutor(slots) as pool:
        futures = [
            pool.submit(copy_context().run, answer, example)
            for example in benchmark.heldout.examples
        ]
        answers = [future.result() for future in futures]
    seconds = time.perf_counter() - started
    scores, texts = zip(*answers, strict=True)
    read = sum(tally.prompt_tokens for tally in counted.tallies.values())
    wrote = sum(tally.completion_tokens for tally in counted.tallies.values())
    return CeilingRow(
        str(endpoint.task_lm.model), prompt, seed, scores, texts, read, wrote, seconds
    )


def line(options: CeilingOptions, row: CeilingRow) -> str:
    """Return what is said when one row is there."""
    right = f"{sum(row.scores):g} of {len(row.scores)}"
    return f"{row.model}, seed {row.seed}, {row.prompt}: {right} in {row.seconds:.0f} s"


def table(options: CeilingOptions, rows: Sequence[CeilingRow]) -> Table:
    """Return floor and ceiling over all seeds, with Wilson's 95 % intervals."""
    lines = []
    for prompt in ("floor", "ceiling"):
        mine = [row for row in rows if row.prompt == prompt]
        scores = [score for row in mine for score in row.scores]
        if not scores:
            continue
        right, seconds = round(sum(scores)), sum(row.seconds for row in mine)
        interval = binomtest(right, len(scores)).proportion_ci(method="wilson")
        read, wrote = (
            sum(getattr(row, f"{side}_tokens") for row in mine) for side in ("prompt", "completion")
        )
        share = f"{right / len(scores):.0%} ({interval.low:.0%} to {interval.high:.0%})"
        by_seed = ", ".join(f"{sum(row.scores):g}" for row in mine)
        lines.append(
            (
                prompt,
                f"{right}/{len(scores)}",
                share,
                by_seed,
                f"{read:,}",
                f"{wrote:,}",
                f"{seconds:.0f}",
            )
        )
    heads = (
        "<prompt",
        "right",
        "share, 95 %",
        "by seed",
        "tokens read",
        "tokens written",
        "seconds",
    )
    models = " ".join(dict.fromkeys(row.model for row in rows))
    return by_rows(
        f"{models} on {options.benchmark}",
        heads,
        lines,
        [
            (
                "Floor: no lessons. Ceiling: all lessons, written by hand. Wilson intervals over"
                " all rows."
            ),
        ],
    )
