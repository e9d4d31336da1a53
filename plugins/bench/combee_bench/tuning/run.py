"""``combee tune-scan``: which copies and fan-in keep most of a scan on this model."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group
from rich.text import Text

from combee_bench.asking import asker
from combee_bench.endpoints import model_lm
from combee_bench.options import TuneScanOptions
from combee_bench.planted import PlantedFact, plant, planted_task
from combee_bench.surroundings import LABEL, quietly
from combee_bench.tables import by_rows
from combee_bench.tuning.laws import CallLaws, Fit, Sample, fit_law, pooled
from combee_bench.tuning.probe import Probe, probe
from combee_bench.tuning.survival import ScanPlan, Survival, plan_scan, predicted_survival
from combee_dspy.exceptions import ServiceError
from combee_simulator import SimulatedConfig, SimulatedService

__all__ = ["Choice", "TunedScan", "best_of", "choices", "line", "run", "summary", "table"]

# The prompts of both kinds of call with their schemas, and one lesson: what parallel-scan itself
# reckons with.
_PROMPT_TOKENS = 1_000
_LESSON_TOKENS = 40
# Survival that is not worth paying for.
_TOLERANCE = 0.01
# What merging must lose before another aggregator is worth naming.
_WORTH = 0.05


@dataclass(frozen=True, slots=True)
class Choice:
    """One setting of a scan and what is expected of it.

    Attributes:
        copies: p.
        fan_in: The most reflections one call may take.
        levels: LM calls per level.
        calls: LM calls.
        tokens: Estimated tokens of all calls, prompts and answers.
        predicted: Expected survival.
        affordable: Whether it respects the budget of calls.
    """

    copies: int
    fan_in: int
    levels: tuple[int, ...]
    calls: int
    tokens: int
    predicted: Survival
    affordable: bool


@dataclass(frozen=True, slots=True)
class TunedScan:
    """What was measured, and the settings that were compared.

    Attributes:
        probe: What the calls kept.
        laws: The laws fitted to that.
        choices: All settings; the smaller p first, then the smaller fan-in.
        best: The one to take; ``None`` where none is affordable.
    """

    probe: Probe
    laws: CallLaws
    choices: tuple[Choice, ...]
    best: Choice | None


def run(options: TuneScanOptions) -> Iterator[TunedScan]:
    """Measure and compare. One row.

    Raises:
        ServiceError: No call of one kind was answered.
    """
    facts = plant(4 * max(options.sizes), options.seed)
    with _model(options, facts) as (lm, adapter), quietly():
        probe = asyncio.run(_probed(options, facts, lm, adapter))
    if not probe.reads or not probe.merges:
        last = probe.failed[-1] if probe.failed else "no call of one kind was asked for"
        raise ServiceError(f"nothing was measured, {len(probe.failed)} calls failed: {last}")
    laws = CallLaws(
        fit_law(probe.reads, seed=options.seed), fit_law(probe.merges, seed=options.seed)
    )
    compared = choices(laws, options)
    yield TunedScan(probe, laws, compared, best_of(compared))


@contextmanager
def _model(options: TuneScanOptions, facts: Sequence[PlantedFact]) -> Iterator[tuple[Any, Any]]:
    if options.lm is None:
        config = SimulatedConfig(seed=options.seed, time_scale=0.0)
        with SimulatedService(config, planted_task(facts)) as service:
            yield service.lm(), None
        return
    where = {"api_base": options.api_base, "api_key_env": options.api_key_env}
    lm, adapter = model_lm(options.lm, slots=options.threads, **where)
    if adapter is not None:
        from combee_dspy.lms import ConstrainedJSONAdapter

        # A list that is cut short would be taken for the model's limit.
        adapter = ConstrainedJSONAdapter(max_items=max(64, 2 * len(facts)))
    yield lm, adapter


async def _probed(
    options: TuneScanOptions, facts: Sequence[PlantedFact], lm: Any, adapter: Any
) -> Probe:
    async with asker(lm, options.threads, adapter) as ask:
        return await probe(ask, facts, options.sizes, options.calls, options.seed)


def choices(laws: CallLaws, options: TuneScanOptions) -> tuple[Choice, ...]:
    """Return the settings of ``parallel-scan`` with the survival that they lead one to expect."""
    choices = []
    for p in sorted(set(options.copies)):
        for fan_in in sorted(set(options.fan_in)):
            plan = plan_scan(options.reflections, p, fan_in, seed=options.seed)
            predicted = predicted_survival(laws, plan)
            calls = sum(plan.calls)
            choices.append(
                Choice(
                    copies=p,
                    fan_in=fan_in,
                    levels=plan.calls,
                    calls=calls,
                    tokens=_tokens(plan, predicted, options.reflection_tokens),
                    predicted=predicted,
                    affordable=options.max_calls is None or calls <= options.max_calls,
                )
            )
    return tuple(choices)


def best_of(compared: Sequence[Choice]) -> Choice | None:
    """Return the cheapest (fewest calls, then tokens) of those near the best survival."""
    affordable = [choice for choice in compared if choice.affordable]
    if not affordable:
        return None
    highest = max(choice.predicted.survival for choice in affordable)
    good = [choice for choice in affordable if choice.predicted.survival >= highest - _TOLERANCE]
    return min(good, key=lambda choice: (choice.calls, choice.tokens, choice.copies, choice.fan_in))


def _tokens(plan: ScanPlan, predicted: Survival, reflection_tokens: int) -> int:
    entries = sum(map(len, plan.shards))
    written = sum(predicted.lines)
    # Every line of a level but the root's is read once by the level above.
    read = written - predicted.lines[-1]
    return round(
        sum(plan.calls) * _PROMPT_TOKENS
        + entries * reflection_tokens
        + (written + read) * _LESSON_TOKENS
    )


def summary(options: TuneScanOptions, rows: Sequence[TunedScan]) -> dict[str, Any]:
    """Return what was measured by size, the laws, and the best setting, as plain JSON data."""
    (tuned,) = rows
    return {
        "measured": [
            {
                "call": kind,
                "items": m,
                "copies": x,
                "kept": retained,
                "total": total,
                "low": low,
                "high": high,
            }
            for kind, samples in (("read", tuned.probe.reads), ("merge", tuned.probe.merges))
            for (m, x), (retained, total, low, high) in pooled(samples).items()
        ],
        "laws": {
            # JSON has no infinity: a limit that was not found is null.
            kind: {
                name: value if math.isfinite(value) else None
                for name, value in asdict(fit.law).items()
            }
            for kind, fit in (("read", tuned.laws.reads), ("merge", tuned.laws.merges))
        },
        "best": None if tuned.best is None else asdict(tuned.best),
    }


def line(options: TuneScanOptions, row: TunedScan) -> str:
    """Return what is said when the measurement is over."""
    return (
        f"{len(row.probe.reads) + len(row.probe.merges)} calls measured, {len(row.probe.failed)}"
        " failed"
    )


def table(options: TuneScanOptions, rows: Sequence[TunedScan]) -> Group:
    """Return what one call keeps, what is expected of each setting, and which to take."""
    (tuned,) = rows
    kinds: tuple[tuple[str, tuple[Sample, ...], Fit], ...] = (
        ("read", tuned.probe.reads, tuned.laws.reads),
        ("merge", tuned.probe.merges, tuned.laws.merges),
    )
    measured, notes = [], []
    for kind, samples, fit in kinds:
        for (items, copies), (retained, total, low, high) in pooled(samples).items():
            own = f"{retained / total:.3f} [{low:.3f}, {high:.3f}]"
            fitted = "{:.3f} [{:.3f}, {:.3f}]".format(
                fit.law.q(items, copies), *fit.interval(items, copies)
            )
            measured.append((kind, str(items), str(copies), f"{retained}/{total}", own, fitted))
    failed = tuned.probe.failed
    if failed:
        notes.append(
            f"{len(failed)} calls failed and are no sample, the last with: {failed[-1]}"[:500]
        )
    expected = [
        (
            str(choice.copies),
            str(choice.fan_in),
            "+".join(map(str, choice.levels)),
            f"{choice.tokens:,}",
            f"{fate.survival:.3f} [{fate.low:.3f}, {fate.high:.3f}]",
            f"{fate.level_one:.3f}",
            "best" if choice is tuned.best else "" if choice.affordable else "too many calls",
        )
        for choice in tuned.choices
        for fate in [choice.predicted]
    ]
    heads = ["<call", "items m", "copies", "kept", "q(m), 95 % interval", "fitted, 95 % interval"]
    scans = ["p", "fan-in", "calls", "tokens", "survival, 95 % interval", "after level 1", ""]
    first = by_rows(f"What one call keeps: {options.lm or LABEL}", heads, measured)
    second = by_rows(
        f"Predicted survival of a lesson, {options.reflections} reflections", scans, expected
    )
    # The text comes from a service: no markup of the console's may act in it.
    return Group(first, *map(Text, notes), second, *map(Text, _advice(tuned.best)))


def _advice(best: Choice | None) -> list[str]:
    if best is None:
        return ["No setting respects --max-calls."]
    fate = best.predicted
    expected = f"{fate.survival:.1%} of the lessons expected ({fate.low:.1%} to {fate.high:.1%})"
    cost = f"{best.calls} calls, about {best.tokens:,} tokens a scan"
    advice = [f"Take copies={best.copies}, fan_in={best.fan_in}: {expected}, {cost}."]
    if fate.level_one > fate.survival + _WORTH:
        left = (
            f"After level 1 {fate.level_one:.1%} are expected to be left: merging loses the rest."
        )
        advice.append(f"{left} The union aggregator joins without a call.")
    return advice
