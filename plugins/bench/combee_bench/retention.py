"""How many planted lessons come back from an aggregator, by how many reflections it reads.

Each reflection says one invented fact in words of its own, so what was kept is read off, not
judged. This is context overload itself: no score has to rise for it, and a small model can show it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import dspy
from rich.console import Group
from rich.table import Table

from combee_bench.asking import asker, there
from combee_bench.endpoints import model_lm
from combee_bench.mixed import ServedTally, Statement, serve, state, tally
from combee_bench.options import RetentionOptions
from combee_bench.overload import LAWS
from combee_bench.planted import INSTRUCTION, PlantedFact, plant, planted_in, planted_task
from combee_bench.surroundings import LABEL, quietly
from combee_bench.tables import by_rows
from combee_bench.tuning.laws import Sample, fit_law, pooled
from combee_dspy import registry
from combee_dspy.artifacts import Instruction
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.lms import ConstrainedJSONAdapter
from combee_dspy.records import Lessons
from combee_dspy.strategies import StrategyContext
from combee_dspy.streams import derive_seed
from combee_simulator import SimulatedConfig, SimulatedService

__all__ = ["RetentionRow", "line", "run", "summary", "table"]


@dataclass(frozen=True, slots=True)
class RetentionRow:
    """One aggregation.

    Attributes:
        aggregator: Its name.
        reflections: n, each with one fact that no other has; facts where they are ``mixed``.
        seed: Of the facts, and of the aggregator's own draws.
        by_level: Facts that are left after each level of calls, level 1 first.
        retained: Facts in the result; where they are ``mixed``, those right in what is served.
        reads: Of each call that reads reflections, how many facts it was given and how many its
            answer holds.
        failed: Calls without a usable answer.
        calls: LM calls.
        prompt_tokens: Tokens read.
        completion_tokens: Tokens written.
        seconds: Wall seconds.
        text: What was written, a lesson a line; what is served, where facts are ``mixed``.
        served: What the served lines hold, where facts are ``mixed``.
    """

    aggregator: str
    reflections: int
    seed: int
    by_level: tuple[int, ...]
    retained: int
    reads: tuple[tuple[int, int], ...]
    failed: int
    calls: int
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    text: str
    served: ServedTally | None = None


def run(options: RetentionOptions) -> Iterator[RetentionRow]:
    """Aggregate, seed by seed, so that an end before the last leaves whole seeds behind.

    Raises:
        UnknownStrategyError: An aggregator is not installed.
        ArgumentValueError: A key is not set, or no aggregator has a fan-in.
    """
    aggregators = [registry.find("aggregator", name) for name in options.aggregators]
    if options.fan_in and not any(hasattr(aggregator, "fan_in") for aggregator in aggregators):
        names = ",".join(options.aggregators)
        raise ArgumentValueError(
            "fan_in", options.fan_in, f"is no setting of {names}", "Leave it out."
        )
    return (
        _row(options, name, size, seed)
        for seed in options.seeds
        for size in options.sizes
        for name in options.aggregators
    )


def _row(options: RetentionOptions, name: str, size: int, seed: int) -> RetentionRow:
    facts = plant(size, derive_seed(seed, "bench retention", size))
    statements = state(facts, seed) if options.mixed else tuple(map(Statement, facts))
    stated = [statement.fact for statement in statements]
    with _model(options, stated, seed) as (lm, adapter), quietly():
        row, lessons = asyncio.run(_aggregated(options, name, statements, seed, lm, adapter))
    if not options.mixed:
        return row
    served = serve(lessons)
    tallied = tally(facts, statements, served)
    text = "\n".join(line.text for line in served)
    return replace(row, reflections=size, retained=tallied.right, text=text, served=tallied)


@contextmanager
def _model(
    options: RetentionOptions, facts: Sequence[PlantedFact], seed: int
) -> Iterator[tuple[dspy.LM, Any]]:
    if options.lm is None:
        config = SimulatedConfig(seed=seed, time_scale=0.0, capacity=LAWS[options.law])
        with SimulatedService(config, planted_task(facts)) as service:
            yield service.lm(), dspy.JSONAdapter()
        return
    # Room for every fact, or its two copies, in one list.
    room = ConstrainedJSONAdapter(max_items=max(64, 2 * len(facts)))
    if options.lm == "embedded":
        lm, _ = model_lm("embedded", **options.settings())
        yield lm, room
        return
    lm, _ = model_lm(options.lm, temperature=options.temperature, **options.settings())
    yield lm, room if options.constrained else dspy.JSONAdapter()


async def _aggregated(
    options: RetentionOptions,
    name: str,
    statements: Sequence[Statement],
    seed: int,
    lm: dspy.LM,
    adapter: Any,
) -> tuple[RetentionRow, Lessons]:
    chosen = (
        {"fan_in": options.fan_in}
        if options.fan_in and hasattr(registry.find("aggregator", name), "fan_in")
        else {}
    )
    aggregator: Any = registry.build("aggregator", name, chosen)
    facts = [statement.fact for statement in statements]
    reflections = [statement.record(index) for index, statement in enumerate(statements)]
    async with asker(lm, options.slots, adapter) as ask:
        context = StrategyContext("code", INSTRUCTION, ask, lambda event: None, seed=seed)
        since = time.monotonic()
        learn = (
            partial(Instruction().learn, aggregator=aggregator)
            if options.mixed
            else aggregator.aggregate
        )
        lessons = await learn(there(reflections), context=context)
        seconds, total = time.monotonic() - since, ask.costs().total
    final = [lesson.text for lesson in lessons.lessons] + (lessons.rewrite or "").splitlines()
    row = RetentionRow(
        name,
        len(facts),
        seed,
        _by_level(facts, lessons),
        len(planted_in(facts, final)),
        _reads(facts, lessons),
        sum(node.failed is not None for node in lessons.nodes),
        total.calls,
        total.prompt_tokens,
        total.completion_tokens,
        seconds,
        "\n".join(final),
    )
    return row, lessons


def _lines(lessons: Sequence[str]) -> list[str]:
    return [line for text in lessons for line in text.splitlines()]


def _by_level(facts: Sequence[PlantedFact], lessons: Lessons) -> tuple[int, ...]:
    levels = sorted({node.level for node in lessons.nodes})
    texts = [
        [text for node in lessons.nodes if node.level == level for text in node.lessons]
        for level in levels
    ]
    return tuple(len(planted_in(facts, _lines(lessons))) for lessons in texts)


def _reads(facts: Sequence[PlantedFact], lessons: Lessons) -> tuple[tuple[int, int], ...]:
    reads = []
    for node in lessons.nodes:
        if node.level == 1 and node.failed is None:
            read = list(dict.fromkeys(facts[index] for index in node.sources))
            reads.append((len(read), len(planted_in(read, _lines(node.lessons)))))
    return tuple(reads)


def line(options: RetentionOptions, row: RetentionRow) -> str:
    """Say what one aggregation kept."""
    failed = f", {row.failed} calls failed" if row.failed else ""
    outcome = (
        f"seed {row.seed}, {row.aggregator}, {row.reflections}: {row.retained} kept in"
        f" {row.seconds:.0f} s{failed}"
    )
    if row.served is None:
        return outcome
    ends = ", ".join(f"{count} {end}" for end, count in row.served.decided.items())
    cited, correct = row.served.citations
    return (
        f"{outcome}; contradictions {ends}; {row.served.doubled} lines doubled, {row.served.other}"
        f" without a fact; {correct} of {cited} citations right"
    )


def _samples(rows: Sequence[RetentionRow]) -> list[Sample]:
    return [Sample(items, 1, retained) for row in rows for items, retained in row.reads]


def _calls(samples: Sequence[Sample], items: int) -> tuple[str, str, str]:
    """Return the calls that read so many, those of them that kept all, and those that kept none."""
    retained = [sample.retained for sample in samples if sample.items == items]
    return str(len(retained)), str(retained.count(items)), str(retained.count(0))


def summary(options: RetentionOptions, rows: Sequence[RetentionRow]) -> dict[str, Any]:
    """Return what is kept by aggregator and size, and the law of one call, as plain JSON data."""
    samples = _samples(rows)
    law = fit_law(samples).law if len({sample.items for sample in samples}) > 1 else None
    return {
        "kept": {
            name: {
                size: _share(rows, name, size) for size in options.sizes if _some(rows, name, size)
            }
            for name in options.aggregators
        },
        "law": (
            None
            if law is None
            else {"rate": law.rate, "reads": str(law.reads), "writes": str(law.writes)}
        ),
    }


def _some(rows: Sequence[RetentionRow], name: str, size: int) -> list[RetentionRow]:
    return [row for row in rows if (row.aggregator, row.reflections) == (name, size)]


def _share(rows: Sequence[RetentionRow], name: str, size: int) -> float:
    own = _some(rows, name, size)
    return sum(row.retained for row in own) / (size * len(own))


def _title(options: RetentionOptions) -> str:
    if options.lm is None:
        name = f"{LABEL}, law {options.law}"
    else:
        name = Path(options.file.partition(",")[0]).name if options.file else options.lm
    return f"{name}, {options.fan_in} reflections a call" if options.fan_in else name


def table(options: RetentionOptions, rows: Sequence[RetentionRow]) -> Group:
    """Return what came back by aggregator and size, and what one call keeps beside its law."""
    lines = []
    for name in options.aggregators:
        for size in options.sizes:
            if not (own := _some(rows, name, size)):
                continue
            shares = [row.retained / size for row in own]
            levels = [sum(column) for column in zip(*(row.by_level for row in own), strict=False)]
            lines.append(
                (
                    name,
                    str(size),
                    str(len(own)),
                    f"{_share(rows, name, size):.0%}",
                    f"{min(shares):.0%} to {max(shares):.0%}",
                    " ".join(f"{count / (size * len(own)):.0%}" for count in levels),
                    *(
                        f"{sum(getattr(row, what) for row in own) / len(own):,.0f}"
                        for what in ("calls", "prompt_tokens", "completion_tokens", "seconds")
                    ),
                    str(sum(row.failed for row in own)),
                )
            )
    named = (
        "<aggregator,reflections,seeds,kept,by seed,<left after each level,calls,tokens"
        " read,written,seconds,failed"
    )
    parts: list[Table] = [
        by_rows(f"Planted lessons that come back: {_title(options)}", named.split(","), lines)
    ]
    if options.mixed:
        parts.append(_served_table(options, rows))
    samples = _samples(rows)
    if len({sample.items for sample in samples}) > 1:
        fit = fit_law(samples)
        lines = [
            (
                str(items),
                *_calls(samples, items),
                f"{count}/{total}",
                f"{count / total:.2f} [{low:.2f}, {high:.2f}]",
                "{:.2f} [{:.2f}, {:.2f}]".format(fit.law.q(items), *fit.interval(items)),
            )
            for (items, _), (count, total, low, high) in sorted(pooled(samples).items())
        ]
        law = (
            f"fitted: rate {fit.law.rate:.2f}, at most {min(fit.law.reads, fit.law.writes):.1f}"
            " lessons a call"
        )
        # A model may keep all or nothing of what a call reads, which no share shows.
        heads = ("reflections", "calls", "kept all", "kept none", "facts", "share, 95 %", "fitted")
        parts.append(by_rows("One call that reads", heads, lines, (law,)))
    return Group(*parts)


_SERVED_HEADS = (
    "<aggregator",
    "facts",
    "right",
    "contradictions right",
    "wrong",
    "both",
    "neither",
    "lines doubled",
    "without a fact",
    "citations",
    "right",
)


def _served_table(options: RetentionOptions, rows: Sequence[RetentionRow]) -> Table:
    """Return what a book would serve of each aggregator's lessons, all seeds of a size together."""
    lines = []
    for name in options.aggregators:
        for size in options.sizes:
            tallies = [row.served for row in _some(rows, name, size) if row.served is not None]
            if tallies:
                decided = {
                    end: sum(tallied.decided[end] for tallied in tallies)
                    for end in tallies[0].decided
                }
                counts = (
                    *decided.values(),
                    sum(tallied.doubled for tallied in tallies),
                    sum(tallied.other for tallied in tallies),
                    *map(sum, zip(*(tallied.citations for tallied in tallies), strict=True)),
                )
                right = f"{sum(tallied.right for tallied in tallies)} of {size * len(tallies)}"
                lines.append((name, str(size), right, *map(str, counts)))
    return by_rows("What a book serves of them", _SERVED_HEADS, lines)
