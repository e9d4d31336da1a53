"""The table: what each contestant was worth by day, and how soon it recovered from the drift."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import Field

from combee_dspy.strategies import parameters
from studies.fortnight.live import run_live
from studies.fortnight.peers import DayRow, compile_nightly, compile_once, run_peer
from studies.fortnight.world import DAYS, DRIFT_DAY, make_world
from studies.weighing.service import Service


@parameters
class FortnightOptions:
    """Serve a simulated fortnight by Live and beside it; a third of the rules change on day 8.

    Args:
        requests: Requests, evenly over 14 days.
        tokens: What learning may take a night, in estimated tokens.
        seed: Seed of the world and of all searches.
        contestants: Who serves, by comma.
        poison_day: Day from 1 on which 2 % of the requests carry an order; 0 for none.
    """

    requests: Annotated[int, Field(ge=280)] = 20_000
    tokens: Annotated[int, Field(ge=1)] = 200_000
    seed: int = 0
    contestants: tuple[str, ...] = ("untouched", "once", "gepa", "live")
    poison_day: Annotated[int, Field(ge=0, le=DAYS)] = 0


def run(options: FortnightOptions) -> Iterator[DayRow]:
    """Yield the days of each contestant. All but ``untouched`` begin with what one compile gave."""
    seed = options.seed
    world = make_world(
        seed, options.requests, options.poison_day - 1 if options.poison_day else None
    )
    launch = Service(world.launch.laws, seed)
    with tempfile.TemporaryDirectory() as folder:
        compiled = compile_once(world, launch, Path(folder))
    for name in options.contestants:
        lm = Service(world.launch.laws, seed)
        if name == "untouched":
            yield from run_peer(name, world, world.program(), lm)
        elif name == "once":
            yield from run_peer(name, world, compiled, lm)
        elif name == "gepa":
            night = partial(compile_nightly, lm=lm, tokens=options.tokens)
            yield from run_peer(name, world, compiled, lm, night)
        else:
            yield from run_live(world, compiled, lm, options.tokens)


def line(options: FortnightOptions, row: DayRow) -> str:
    """Return a day in words."""
    return (
        f"{row.contestant}, day {row.day}: live {row.live:.1f}, lasting rules {row.lasting:.1f},"
        f" changed rules {row.changed:.1f}, orders obeyed {row.obeyed:.1f}, {row.tokens:,} tokens"
        f" {row.note}"
    )


def summary(options: FortnightOptions, rows: Sequence[DayRow]) -> list[dict[str, object]]:
    """Return, of each contestant: means, days to recover, and what was lost of lasting rules."""
    return [
        {
            "contestant": name,
            "mean_live": sum(row.live for row in days) / len(days),
            "days_to_recover": _days_to_recover(days),
            "lost_points": _lost(days),
            "most_obeyed": max(row.obeyed for row in days),
            "tokens": sum(row.tokens for row in days),
        }
        for name, days in _by_contestant(rows).items()
        if len(days) == DAYS
    ]


def table(options: FortnightOptions, rows: Sequence[DayRow]) -> str:
    """Return the live scores by day, and the summary below."""
    days = _by_contestant(rows)
    lines = [f"| day | {' | '.join(days)} |", f"| ---: |{' ---: |' * len(days)}"]
    for day in range(DAYS):
        cells = (f"{own[day].live:.1f}" if day < len(own) else "" for own in days.values())
        lines.append(f"| {day + 1} | {' | '.join(cells)} |")
    facts = summary(options, rows)
    for key in facts[0] if facts else ():
        cells = (_written(fact[key]) for fact in facts)
        lines.append(f"| {key.replace('_', ' ')} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _written(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value or "never")


def _by_contestant(rows: Sequence[DayRow]) -> dict[str, list[DayRow]]:
    return {
        name: [row for row in rows if row.contestant == name]
        for name in dict.fromkeys(row.contestant for row in rows)
    }


def _days_to_recover(days: Sequence[DayRow]) -> int | None:
    """Return after how many days it served within two points of the day before the drift."""
    before = days[DRIFT_DAY - 1].live
    later = (place for place, row in enumerate(days[DRIFT_DAY:]) if row.live >= before - 2)
    return next(later, None)


def _lost(days: Sequence[DayRow]) -> float:
    """Return what the last day has lost of the lasting rules since the day before the drift."""
    return days[DRIFT_DAY - 1].lasting - days[-1].lasting
