"""Alarms of drift: how many by chance in 90 days, and how soon the fortnight's drift is seen.

The plan is studies/fortnight/README.md.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from combee_dspy.strategies import parameters
from combee_dspy.streams import derive
from combee_dspy.traces import Trace
from combee_strategist.live import Gate, Learning
from combee_strategist.live._evidence import Drift, drifted, moved
from combee_strategist.live._options import HOUR
from combee_strategist.live._served import ServedRow
from studies.fortnight.world import BEGIN, DAY, DRIFT_DAY, World, make_world

_FAILURES = "the mix of failures has moved"

Rule = Callable[[Sequence[ServedRow], dict[str, float], str], list[Drift]]

# Days that a version serves where nothing changes, and the day from 0 on which a better one comes
# where rules do.
_SERVES, _BETTER_DAY = 3, 4


@parameters
class DriftOptions:
    """Count alarms of drift by chance, and days to the first one where rules change.

    Args:
        seeds: The seeds, by comma.
        days: Days without a drift.
        labels: Labels on each of them.
        requests: Requests of each fortnight.
        rule: ``now``, with all versions ``pooled``, or what was used ``before``.
    """

    seeds: tuple[int, ...] = tuple(range(100, 110))
    days: Annotated[int, Field(ge=1)] = 90
    labels: Annotated[int, Field(ge=1)] = 71
    requests: Annotated[int, Field(ge=280)] = 20_000
    rule: Literal["now", "pooled", "before"] = "now"


@dataclass(frozen=True, slots=True)
class DriftRow:
    """What one world of one seed came to.

    Attributes:
        world: Its name.
        seed: Its seed.
        false: Alarms where nothing had changed.
        whole: Of these, how many said that a whole slice had drifted.
        days: Days from the drift to the first true alarm; ``None`` for never, or without a drift.
        told: How many slices that drifted were told of.
    """

    world: str
    seed: int
    false: int
    whole: int
    days: float | None = None
    told: int = 0


class _Labelled(NamedTuple):
    """A labelled request, and the version that served when its label came."""

    row: ServedRow
    serving: str


def run(options: DriftOptions) -> Iterator[DriftRow]:
    """Yield a row for each world and seed."""
    rule = {"now": drifted, "pooled": drifted_pooled, "before": drifted_before}[options.rule]
    for slices in (1, 24):
        for right in (0.95, 0.8):
            for days in (options.days, _SERVES):
                name = f"{slices} slices, right {right:.2f}"
                name += "" if days == options.days else f", a version every {days} days"
                for seed in options.seeds:
                    stream = derive(seed, "drift", f"{slices} {right}")
                    rows = _unchanged(options, slices, right, days, stream)
                    alarms = _alarms(rows, rule)
                    whole = sum(entire for _, _, entire in alarms)
                    yield DriftRow(name, seed, len(alarms), whole)
    worlds = [_labelled_world(seed, options.requests) for seed in options.seeds]
    for sliced in (False, True):
        for better in (False, True):
            for seed, world in zip(options.seeds, worlds, strict=True):
                yield _fortnight(world, seed, rule, sliced=sliced, better=better)


def line(options: DriftOptions, row: DriftRow) -> str:
    """Return a row in words."""
    days = "" if row.days is None else f", {row.days:.2f} days, {row.told} told"
    return f"{row.world}, seed {row.seed}: {row.false} false alarms{days}"


def table(options: DriftOptions, rows: Sequence[DriftRow]) -> str:
    """Return the tables of docs/results/live.md."""
    worlds = {row.world: [each for each in rows if each.world == row.world] for row in rows}
    lines = ["| world | false alarms | mean | whole | days to detection | told |"]
    lines.append("| --- | --- | ---: | ---: | --- | --- |")
    for name, members in worlds.items():
        days = [f"{row.days:.2f}" if row.days is not None else "never" for row in members]
        drifts = any(row.told or row.days is not None for row in members)
        cells = (
            ", ".join(str(row.false) for row in members),
            f"{fmean(row.false for row in members):.2f}",
            str(sum(row.whole for row in members)),
            ", ".join(days) if drifts else "",
            ", ".join(str(row.told) for row in members) if drifts else "",
        )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _unchanged(
    options: DriftOptions, slices: int, right: float, serves: int, stream: random.Random
) -> list[_Labelled]:
    """Return rows of a world in which a new version that is as good comes every so many days."""
    rows = []
    for number in range(options.days * options.labels):
        version = f"v{number // options.labels // serves}"
        at = BEGIN + number * DAY / options.labels
        slice_ = f"s{stream.randrange(slices)}"
        row = _row(number, at, slice_, version, right=stream.random() < right)
        rows.append(_Labelled(row, version))
    return rows


def _labelled_world(seed: int, requests: int) -> World:
    """Return a world with its labelled requests alone."""
    world = make_world(seed, requests)
    labelled = [request for request in world.requests if request.label_at is not None]
    return replace(world, requests=labelled)


def _fortnight(world: World, seed: int, rule: Rule, *, sliced: bool, better: bool) -> DriftRow:
    """Return what a program comes to that goes by the rules of the first week on all days.

    Where a better version comes, the first one knows half of the rules.
    """
    labelled = [
        (request.label_at, request) for request in world.requests if request.label_at is not None
    ]
    rules = world.launch.truth.rules
    at_first = set(sorted(rules)[::2]) if better else set(rules)
    arrives = BEGIN + _BETTER_DAY * DAY if better else BEGIN
    rows = []
    for number, (at, request) in enumerate(sorted(labelled, key=lambda item: item[0])):
        name, version = request.row.case.category, "v1" if request.at < arrives else "v2"
        right = rules[name] == request.row.label and (version == "v2" or name in at_first)
        row = _row(number, at, name if sliced else "all", version, right=right)
        rows.append(_Labelled(row, "v1" if at < arrives else "v2"))
    changed = {name for name, code in rules.items() if world.drifted.rules[name] != code}
    start = BEGIN + DRIFT_DAY * DAY
    alarms = _alarms(rows, rule)
    # The mix of failures does move with the drift, and with a better version: no false alarm.
    moves = BEGIN if better else start
    false = [
        entire
        for name, at, entire in alarms
        if not (name == _FAILURES and at >= moves) and (at < start or name not in {*changed, "all"})
    ]
    true = [(name, at) for name, at, _ in alarms if at >= start and name in {*changed, "all"}]
    return DriftRow(
        ("fortnight, a slice for each rule" if sliced else "fortnight, 1 slice")
        + (f", a better version on day {_BETTER_DAY + 1}" if better else ""),
        seed,
        len(false),
        sum(false),
        (true[0][1] - start) / DAY if true else None,
        len({name for name, _ in true}),
    )


def _row(number: int, at: float, slice_: str, version: str, *, right: bool) -> ServedRow:
    trace = Trace(f"r{number}", {}, {}, score=float(right), prompt=version)
    return ServedRow(trace, at, (), slice_, trusted=False, teaches=True)


def _alarms(labelled: Sequence[_Labelled], rule: Rule) -> list[tuple[str, float, bool]]:
    """Return slice, time and whether all of it drifted of each alarm, told as the learner does."""
    learning, recent = Learning(), Gate().recent * DAY
    known, told = dict[str, float](), dict[str, float]()
    alarms, wrong, looked = list[tuple[str, float, bool]](), 0, BEGIN
    rows = [item.row for item in labelled]
    for place, (row, serving) in enumerate(labelled):
        wrong += not row.trace.score
        if wrong < (learning.least if row.at - looked < learning.hours * HOUR else 1):
            continue
        wrong, looked, seen = 0, row.at, rows[: place + 1]
        for drift in rule(seen, known, serving):
            known[drift.slice] = drift.since
            alarms.append((drift.slice, row.at, drift.whole))
        for why in moved(seen, row.at - recent) if rule is not drifted_before else ():
            if row.at - told.get(why.split(":")[0], 0.0) > recent:
                told[why.split(":")[0]] = row.at
                alarms.append((why.split(":")[0], row.at, False))
    return alarms


def drifted_pooled(rows: Sequence[ServedRow], known: dict[str, float], serving: str) -> list[Drift]:
    """Return the slices that answers of all versions together tell of, for comparison."""
    return drifted(rows, known, "")


def drifted_before(rows: Sequence[ServedRow], known: dict[str, float], serving: str) -> list[Drift]:
    """Return the slices that the rule of before would have told of, for comparison."""
    from scipy import stats

    drifts = []
    for name in sorted({row.slice for row in rows}):
        members = [row for row in rows if row.slice == name and row.at >= known.get(name, 0.0)]
        marks, looks, whole = [bool(row.trace.score) for row in members], [], False
        for size in (4, 8, 16, 32, 64):
            right, before, earlier = sum(marks[-size:]), sum(marks[:-size]), len(marks) - size
            if earlier < size:
                break
            share = (before + 1) / (earlier + 2)
            looks.append((float(stats.binom.cdf(right, size, share)), size))
            whole |= share > 0.5 and float(stats.binom.cdf(right, size, 0.5)) <= 0.01
        chance, size = min(looks, default=(1.0, 0))
        if chance <= 0.002:
            since = next(row.at for row in members[-size:] if not row.trace.score)
            drifts.append(Drift(name, since, "", whole))
    return drifts
