"""Predicted against observed survival of planted lessons, on the simulated service.

    python -m combee_dspy.bench.survival --json survival.json

Per capacity law of the service: what one call keeps is measured with a probe,
the survival of whole scans is predicted from that alone, then scans are run.
The probe and the scans share no fact and no service seed. No language model is
involved, and the family of laws that is fitted contains two of the service's
three: an agreement checks the estimate and the arithmetic, and says nothing
about a language model. ``combee tune-scan --lm …`` measures one.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import dspy

from combee_dspy.aggregators import ParallelScan, plan_scan
from combee_dspy.bench.record import LABEL
from combee_dspy.events import Event
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.lms import CapacityModel, LMPort, SimulatedConfig, SimulatedQuestion, SimulatedService, SimulatedTask
from combee_dspy.records import Lessons
from combee_dspy.retention import (
    INSTRUCTION,
    PlantedFact,
    RetentionLaws,
    fit_retention,
    measure_retention,
    plant,
    planted_in,
    planted_record,
    predicted_survival,
    probe_facts,
    probe_retention,
    survival_range,
)
from combee_dspy.rollouts import Threads
from combee_dspy.strategies import PredictFn, StrategyContext
from combee_dspy.streams import derive, derive_seed

__all__ = ["CONFIGS", "LAWS", "SurvivalOptions", "SurvivalRow", "main", "run_survival", "simulated_predict", "table"]

CONFIGS: tuple[tuple[int, int, int], ...] = (
    (10, 1, 32),
    (10, 2, 32),
    (40, 1, 32),
    (40, 2, 32),
    (40, 3, 8),
    (120, 2, 8),
    (120, 2, 32),
    (240, 2, 12),
)
"""(n, p, fan-in) of each scan."""

LAWS: tuple[str, ...] = ("attention", "writing", "forgetful")
"""Capacity laws of the service: 12 items read a call; 12 lessons written a call; 24 items read, and 3 of 10
read items not noticed. The last is not of the fitted family: the service forgets each copy by itself."""

# No token limit of a scan comes before the fan-in that is measured.
_NO_LIMIT = 1_000_000
_PROBED = (4, 8, 12, 16, 24, 36, 48, 96, 144)


@dataclass(frozen=True, slots=True)
class SurvivalOptions:
    """What is measured.

    Attributes:
        configs: (n, p, fan-in) of each scan.
        laws: Capacity laws of the service, out of :data:`LAWS`.
        seeds: Scans per law and setting, each with facts, plan and service of its own.
        probe_sizes: Sizes of the probe's calls.
        probe_calls: Calls per kind and size.
        seed: Where everything random comes from.
    """

    configs: tuple[tuple[int, int, int], ...] = CONFIGS
    laws: tuple[str, ...] = LAWS
    seeds: int = 10
    probe_sizes: tuple[int, ...] = _PROBED
    probe_calls: int = 6
    seed: int = 0


@dataclass(frozen=True, slots=True)
class SurvivalRow:
    """One setting of a scan under one capacity law.

    Attributes:
        law: The service's capacity law.
        n: Reflections, each with a lesson of its own.
        copies: p.
        fan_in: The most items of one call.
        levels: LM calls per level.
        predicted: Expected survival.
        low: Lower end of the 95 % prediction interval of the mean over so many seeds: the laws
            are known from a probe only, and single scans vary.
        high: Upper end.
        law_low: Lower end of the 95 % interval of the expectation: the first of the two reasons alone.
        law_high: Upper end.
        observed: Mean share of the lessons in the result, over seeds.
        observed_low: Lower end of its 95 % t interval over seeds.
        observed_high: Upper end.
        level_one: Expected share after level 1, which is what a lossless join would keep.
        observed_level_one: Observed share after level 1.
        measured: Mean share that :func:`combee_dspy.retention.measure_retention` calls
            covered, from texts alone.
        agreement: Share of the reflections for which that verdict is the planted truth.
        seeds: Scans.
        misfit: p-values of the fitted laws of reading and merging, ``None`` where too few
            sizes were probed; below 0.01 the service's law is not of the fitted family.
    """

    law: str
    n: int
    copies: int
    fan_in: int
    levels: tuple[int, ...]
    predicted: float
    low: float
    high: float
    law_low: float
    law_high: float
    observed: float
    observed_low: float
    observed_high: float
    level_one: float
    observed_level_one: float
    measured: float
    agreement: float
    seeds: int
    misfit: tuple[float | None, float | None]

    @property
    def inside(self) -> bool:
        """Whether the observed mean lies within the predicted interval."""
        return self.low <= self.observed <= self.high


@contextmanager
def simulated_predict(
    facts: Sequence[PlantedFact], capacity: CapacityModel, seed: int, threads: int = 8
) -> Iterator[PredictFn]:
    """Start a simulated service that knows planted facts, and give the way to it.

    Args:
        facts: What it can learn.
        capacity: Its law of context overload.
        seed: Its seed.
        threads: Calls in flight at once.

    Raises:
        ServiceError: The service cannot be started.
    """
    questions = tuple(SimulatedQuestion(one.question, one.code, one.wrong, one.code, one.lesson) for one in facts)
    task = SimulatedTask(questions, ("code",), base_rate=0.0)
    config = SimulatedConfig(seed=seed, time_scale=0.0, capacity=capacity, slots=threads)
    with SimulatedService(config, task) as service:
        session = Threads().start(threads)
        try:
            yield LMPort(session, {"proposer": service.lm()}, dspy.JSONAdapter()).predict
        finally:
            session.close()


def run_survival(options: SurvivalOptions | None = None) -> Iterator[SurvivalRow]:
    """Predict, then observe; the rows come one at a time.

    Args:
        options: What to measure; the defaults where None.

    Raises:
        ArgumentValueError: A law is unknown, or fewer than two seeds are asked for.
    """
    options = options or SurvivalOptions()
    for law in options.laws:
        if law not in LAWS:
            raise ArgumentValueError("laws", law, "is no capacity law", f"Laws: {', '.join(LAWS)}.")
    if options.seeds < 2:
        raise ArgumentValueError("seeds", options.seeds, "is below 2", "An interval needs several scans.")
    return _rows(options)


def _rows(options: SurvivalOptions) -> Iterator[SurvivalRow]:
    for law in options.laws:
        capacity = _capacity(law)
        fitted = _probed(capacity, options, law)
        for n, copies, fan_in in options.configs:
            yield _row(law, capacity, fitted, (n, copies, fan_in), options)


def _capacity(law: str) -> CapacityModel:
    if law == "forgetful":
        return CapacityModel(attended_items=24, lesson_miss_rate=0.3)
    return CapacityModel.attention() if law == "attention" else CapacityModel.writing()


def _probed(capacity: CapacityModel, options: SurvivalOptions, law: str) -> RetentionLaws:
    seed = derive_seed(options.seed, "survival probe", law)
    with simulated_predict(probe_facts(options.probe_sizes, seed), capacity, seed) as predict:
        found = probe_retention(predict, sizes=options.probe_sizes, calls=options.probe_calls, seed=seed)
    return RetentionLaws(fit_retention(found.reads, seed=seed), fit_retention(found.merges, seed=seed))


@dataclass(frozen=True, slots=True)
class _Scanned:
    kept: float
    level_one: float
    measured: float
    agreement: float


def _row(
    law: str,
    capacity: CapacityModel,
    fitted: RetentionLaws,
    config: tuple[int, int, int],
    options: SurvivalOptions,
) -> SurvivalRow:
    from scipy.stats import t

    n, copies, fan_in = config
    # Another draw of the plan than any scan makes: the prediction knows none of them.
    plan = plan_scan(n, copies, fan_in, derive(options.seed, "survival plan", law, *config))
    predicted = predicted_survival(fitted, plan, max_lessons=_NO_LIMIT)
    low, high = survival_range(fitted, plan, options.seeds, max_lessons=_NO_LIMIT, seed=options.seed)
    scans = [_scan(law, capacity, config, options.seed, number) for number in range(options.seeds)]
    kept = [scan.kept for scan in scans]
    mean = sum(kept) / len(kept)
    spread = math.sqrt(sum((share - mean) ** 2 for share in kept) / (len(kept) - 1) / len(kept))
    half = float(t.ppf(0.975, len(kept) - 1)) * spread
    return SurvivalRow(
        law=law,
        n=n,
        copies=copies,
        fan_in=fan_in,
        levels=plan.calls_per_level,
        predicted=predicted.survival,
        low=low,
        high=high,
        law_low=predicted.low,
        law_high=predicted.high,
        observed=mean,
        observed_low=mean - half,
        observed_high=mean + half,
        level_one=predicted.level_one,
        observed_level_one=sum(scan.level_one for scan in scans) / len(scans),
        measured=sum(scan.measured for scan in scans) / len(scans),
        agreement=sum(scan.agreement for scan in scans) / len(scans),
        seeds=len(scans),
        misfit=(fitted.reads.misfit, fitted.merges.misfit),
    )


def _scan(law: str, capacity: CapacityModel, config: tuple[int, int, int], seed: int, number: int) -> _Scanned:
    n, copies, fan_in = config
    place = ("survival scan", law, *config, number)
    facts = plant(n, derive_seed(seed, *place))
    reflections = [planted_record(fact, index) for index, fact in enumerate(facts)]
    scan = ParallelScan(
        copies=copies,
        fan_in=fan_in,
        merge_fan_in=fan_in,
        max_call_tokens=_NO_LIMIT,
        max_lessons=fan_in * fan_in,
    )
    with simulated_predict(facts, capacity, derive_seed(seed, *place, "service")) as predict:
        lessons = scan.aggregate(
            reflections,
            StrategyContext("code", INSTRUCTION, predict, _ignore, seed=derive_seed(seed, *place, "scan")),
        )
    return _compared(facts, lessons, measure_retention(reflections, lessons))


def _ignore(event: Event) -> None:
    pass


def _compared(facts: Sequence[PlantedFact], lessons: Lessons, verdicts: Sequence[object]) -> _Scanned:
    truth = planted_in(facts, (lesson.text for lesson in lessons.lessons))
    first = planted_in(facts, (line for node in lessons.nodes if node.level == 1 for line in node.lessons))
    covered = [bool(getattr(one, "covered", False)) for one in verdicts]
    right = sum(said is (fact.code in truth) for said, fact in zip(covered, facts, strict=True))
    n = len(facts)
    return _Scanned(len(truth) / n, len(first) / n, sum(covered) / n, right / n)


def table(rows: Iterable[SurvivalRow]) -> str:
    """Return a Markdown table, under a line that says what was measured."""
    head = "law | n | p | fan-in | calls | predicted | 95 % interval | observed | over seeds | inside | after level 1"
    lines = [LABEL, "", f"| {head} (predicted, observed) | measured from text | verdicts right | fit p: read, merge |"]
    lines.append("| --- " + "| ---: " * 4 + "| ---: | --- | ---: | --- | --- | --- | ---: | ---: | --- |")
    lines += [
        f"| {row.law} | {row.n} | {row.copies} | {row.fan_in} | {'+'.join(map(str, row.levels))} "
        f"| {row.predicted:.3f} | {row.low:.3f} to {row.high:.3f} | {row.observed:.3f} "
        f"| {row.observed_low:.3f} to {row.observed_high:.3f} | {'yes' if row.inside else 'NO'} "
        f"| {row.level_one:.3f}, {row.observed_level_one:.3f} | {row.measured:.3f} | {row.agreement:.1%} "
        f"| {', '.join('—' if p is None else f'{p:.2g}' for p in row.misfit)} |"
        for row in rows
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line asks for and print the table."""
    parser = argparse.ArgumentParser(prog="python -m combee_dspy.bench.survival", description=__doc__)
    parser.add_argument("--laws", default=",".join(LAWS), help=f"out of {', '.join(LAWS)}")
    parser.add_argument("--seeds", type=int, default=10, help="scans per law and setting")
    parser.add_argument("--seed", type=int, default=0, help="where everything random comes from")
    parser.add_argument("--json", type=Path, help="where to write the rows")
    asked = parser.parse_args(arguments)
    options = SurvivalOptions(laws=tuple(asked.laws.split(",")), seeds=asked.seeds, seed=asked.seed)
    rows = []
    for row in run_survival(options):
        rows.append(row)
        sys.stderr.write(f"{LABEL}: {row.law} n={row.n} p={row.copies} fan-in={row.fan_in} done\n")
    if asked.json is not None:
        data = [{**asdict(row), "inside": row.inside} for row in rows]
        record = {"label": LABEL, "simulated": True, "options": asdict(options), "rows": data}
        asked.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(table(rows) + "\n")


if __name__ == "__main__":
    main()
