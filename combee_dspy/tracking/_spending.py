"""What a search has paid for what it reached: by update, by accepted prompt, and as a whole."""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from combee_dspy.events import RunStarted
from combee_dspy.journal import Reader, RunHistory
from combee_dspy.tracking._candidates import chosen_of
from combee_dspy.tracking._runs import RunFigures

__all__ = [
    "Spending",
    "budget_use",
    "read_spending",
    "spending_rows",
    "spent_of",
    "times_of",
]

_OF_SEARCH = "e.run = ? AND e.purpose <> 'heldout' AND e.kind <> 'decision'"
_EFFECTS = f"""SELECT e.step, e.started, e.ended, e.kind = 'rollout',
    sum(u.prompt_tokens + u.completion_tokens), total(u.dollars), sum(u.gpu_seconds),
    sum(u.effect IS NOT NULL AND u.dollars IS NULL)
FROM effect e LEFT JOIN usage u ON u.effect = e.id WHERE {_OF_SEARCH} GROUP BY e.id"""  # noqa: S608 - constants
_Row = Mapping[str, Any]


@dataclass(slots=True)
class Amounts:
    """What some effects have paid, and from when to when they ran."""

    rollouts: int = 0
    tokens: int = 0
    dollars: float = 0.0
    gpu_seconds: float | None = None
    unpriced: int = 0
    started: float = math.inf
    ended: float = -math.inf

    def add(self, other: Amounts) -> None:
        """Add what other effects have paid."""
        self.rollouts += other.rollouts
        self.tokens += other.tokens
        self.dollars += other.dollars
        self.unpriced += other.unpriced
        if other.gpu_seconds is not None:
            self.gpu_seconds = (self.gpu_seconds or 0.0) + other.gpu_seconds
        self.started = min(self.started, other.started)
        self.ended = max(self.ended, other.ended)

    def columns(self) -> dict[str, float | None]:
        """Return the amounts; dollars are not known where the price of one call is not."""
        return {
            "rollouts": self.rollouts,
            "tokens": self.tokens,
            "dollars": None if self.unpriced else self.dollars,
            "gpu_seconds": self.gpu_seconds,
        }


@dataclass(frozen=True, slots=True)
class Spending:
    """What a search has paid.

    Attributes:
        updates: By update; −1 before the first.
        until: All that had been paid by a time, by that time.
        total: All of it.
    """

    updates: Mapping[int, Amounts]
    until: Mapping[float, Amounts]
    total: Amounts


def read_spending(reader: Reader, run: int, times: Iterable[float] = ()) -> Spending:
    """Return what a run's search has paid, by update and by some times. Effects are read once."""
    ends = sorted(set(times))
    parts: defaultdict[tuple[int, int], Amounts] = defaultdict(Amounts)
    for step, started, ended, rollouts, tokens, *prices in reader.stream(_EFFECTS, (run,)):
        dollars, gpu_seconds, unpriced = prices
        part = parts[step, bisect.bisect_left(ends, ended)]
        part.rollouts += rollouts
        part.tokens += tokens or 0
        part.dollars += dollars
        part.unpriced += unpriced or 0
        if gpu_seconds is not None:
            part.gpu_seconds = (part.gpu_seconds or 0.0) + gpu_seconds
        part.started, part.ended = min(part.started, started), max(part.ended, ended)
    updates: defaultdict[int, Amounts] = defaultdict(Amounts)
    between = [Amounts() for _ in range(len(ends) + 1)]
    for (step, place), part in sorted(parts.items()):
        updates[step].add(part)
        between[place].add(part)
    until, total = {}, Amounts()
    gpus = any(amounts.gpu_seconds is not None for amounts in between)
    for end, amounts in zip([*ends, math.inf], between, strict=True):
        total.add(amounts)
        until[end] = replace(total, gpu_seconds=(total.gpu_seconds or 0.0) if gpus else None)
    return Spending(updates, until, total)


def times_of(candidates: Iterable[_Row]) -> list[float]:
    """Return when candidates were validated."""
    return [row["validated_at"] for row in candidates if row["validated_at"] is not None]


def spending_rows(
    paid: Spending, candidates: Sequence[_Row], figures: RunFigures
) -> list[dict[str, Any]]:
    """Return what a run's search has paid for what it reached, the held-out set left out. Pure.

    A row for each update, with what it alone has paid, and then one for each accepted (validated)
    prompt, with all that had been paid when it was. Each has ``of``, ``rollouts``, ``tokens``,
    ``dollars`` (``None`` where one price is not known), ``gpu_seconds`` (``None`` where no GPUs are
    declared), ``seconds`` (wall clock; an update may overlap its neighbours), ``validation`` (of an
    update the best so far) and ``heldout``: of the first and of the chosen prompt, since nothing
    else may read it.
    """
    validated = sorted(
        (row for row in candidates if row["validated_at"] is not None),
        key=lambda row: float(row["validated_at"]),
    )
    rows, best = [], None
    for step, amounts in paid.updates.items():
        scores = (row["score"] for row in validated if row["step"] <= step)
        best = max((score for score in scores if score is not None), default=best)
        rows.append(
            {
                "of": "before the first update" if step < 0 else f"update {step}",
                **amounts.columns(),
                "seconds": amounts.ended - amounts.started,
                "validation": best,
                "heldout": None,
            }
        )
    for row in validated:
        heldout = figures.heldout_before if row["index"] == 0 else None
        rows.append(
            {
                "of": f"prompt {row['candidate'][:8]}",
                **paid.until[row["validated_at"]].columns(),
                "seconds": row["validated_at"] - figures.created,
                "validation": row["score"],
                "heldout": figures.heldout_after if row["selected"] else heldout,
            }
        )
    return rows


def budget_use(paid: Spending, candidates: Sequence[_Row], figures: RunFigures) -> str:
    """Return whether the budget was well spent, in words; empty where no score says so. Pure."""
    chosen = chosen_of(candidates)
    at = chosen.get("validated_at")
    if at is None:
        return ""
    measure = "tokens" if figures.limits.get("tokens") else "rollouts"
    total, reached = (int(spent.columns()[measure] or 0) for spent in (paid.total, paid.until[at]))
    allowed = f"{figures.limits.get(measure) or total:,.0f} {measure}"
    if not chosen["parents"]:
        return f"{total:,} of {allowed} reached nothing better than the student"
    tail = f"; {total - reached:,} more changed nothing" if total > reached else ""
    return f"best reached at {reached:,} of {allowed}{tail}"


def spent_of(reader: Reader, run: int) -> dict[str, float | None]:
    """Return what a run's search has paid as a whole, with its wall-clock seconds, those between
    two parts left out.
    """
    total = read_spending(reader, run).total
    # Each part of a run begins with an audit line; a run that was killed before its first has none.
    starts = [entry.at for entry in RunHistory(reader, run).entries(RunStarted)]
    starts = starts or [total.started if total.ended > 0 else 0.0]
    seconds = [0.0] * len(starts)
    for (ended,) in reader.stream(f"SELECT e.ended FROM effect e WHERE {_OF_SEARCH}", (run,)):  # noqa: S608 - constants
        part = bisect.bisect_right(starts, ended) - 1
        if part >= 0:
            seconds[part] = max(seconds[part], ended - starts[part])
    return {**total.columns(), "seconds": sum(seconds)}
