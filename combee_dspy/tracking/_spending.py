"""What a search has paid for what it reached: by update, by accepted prompt, and as a whole."""

from __future__ import annotations

import bisect
import math
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from operator import itemgetter
from typing import Any, NamedTuple

from combee_dspy.events import HeldoutRead, RunStarted
from combee_dspy.journal import Reader, RunHistory
from combee_dspy.tracking._candidates import CandidateRow, chosen_of
from combee_dspy.tracking._runs import RunFigures

# The LM calls of an effect follow one another. To sum and sort them here takes half of what it
# takes SQLite. The plus, as elsewhere, keeps SQLite from the index of keys: in their order each row
# is on another page of the file.
_EFFECTS = """SELECT e.id, e.step, e.started, e.ended, e.kind = 'rollout',
    u.prompt_tokens + u.completion_tokens, u.dollars, u.gpu_seconds
FROM effect e LEFT JOIN usage u ON u.effect = e.id
WHERE +e.run = ? AND e.purpose <> 'heldout' AND e.kind <> 'decision'"""


@dataclass(frozen=True, slots=True)
class Amounts:
    """What some effects have paid.

    Attributes:
        rollouts: Rollouts.
        tokens: Tokens of all LM calls.
        dollars: ``None`` where the price of one call is not known.
        gpu_seconds: ``None`` where no GPUs are declared.
    """

    rollouts: int = 0
    tokens: int = 0
    dollars: float | None = 0.0
    gpu_seconds: float | None = None


class UpdateSpending(NamedTuple):
    """What one update alone has paid, from its first effect to its last, in Unix time."""

    step: int
    started: float
    ended: float
    paid: Amounts


@dataclass(frozen=True, slots=True)
class Spending:
    """What a search has paid, the reading of the held-out set left out.

    Attributes:
        updates: By update; −1 for what came before the first.
        ends: When each effect ended, ascending, in Unix time.
        total: All of it.
        by_time: All that had been paid by the times at which candidates were validated.
    """

    updates: tuple[UpdateSpending, ...]
    ends: Sequence[float]
    total: Amounts
    by_time: Mapping[float, Amounts]


@dataclass(slots=True)
class _Part:
    """What the effects of one update have paid that ended between two times."""

    started: float = math.inf
    ended: float = -math.inf
    rollouts: int = 0
    tokens: int = 0
    dollars: float = 0.0
    unpriced: bool = False
    gpu_seconds: float | None = None

    @property
    def paid(self) -> Amounts:
        dollars = None if self.unpriced else self.dollars
        return Amounts(self.rollouts, self.tokens, dollars, self.gpu_seconds)


def read_spending(history: RunHistory, candidates: Sequence[CandidateRow] = ()) -> Spending:
    """Return what a run's search has paid, also by the times at which candidates were validated.

    Each effect is read once, and of each only its end is held.
    """
    times = sorted({row.validated_at for row in candidates if row.validated_at is not None})
    # By update, and by the first of the times by which its effects had ended.
    parts: defaultdict[tuple[int, int], _Part] = defaultdict(_Part)
    ends, last = array("d"), None
    for (
        number,
        step,
        started,
        ended,
        is_rollout,
        tokens,
        dollars,
        gpu_seconds,
    ) in history.reader.stream(_EFFECTS, (history.run,)):
        part = parts[step, bisect.bisect_left(times, ended)]
        if number != last:
            last = number
            ends.append(ended)
            part.started = min(part.started, started)
            part.ended = max(part.ended, ended)
            part.rollouts += is_rollout
        if tokens is not None:  # else it made no LM call
            part.tokens += tokens
            part.dollars += dollars or 0.0
            part.unpriced |= dollars is None
            if gpu_seconds is not None:
                part.gpu_seconds = (part.gpu_seconds or 0.0) + gpu_seconds
    by_step: defaultdict[int, list[_Part]] = defaultdict(list)
    by_place: defaultdict[int, list[Amounts]] = defaultdict(list)
    for (step, place), part in parts.items():
        by_step[step].append(part)
        by_place[place].append(part.paid)
    sums = (_total(by_place[place]) for place in range(len(times) + 1))
    totals = list(accumulate(sums, lambda before, paid: _total([before, paid])))
    updates = tuple(
        UpdateSpending(
            step,
            min(part.started for part in of_step),
            max(part.ended for part in of_step),
            _total([part.paid for part in of_step]),
        )
        for step, of_step in sorted(by_step.items())
    )
    by_time = dict(zip(times, totals, strict=False))  # the last is all of it
    return Spending(updates, array("d", sorted(ends)), totals[-1], by_time)


def _total(amounts: Sequence[Amounts]) -> Amounts:
    """Return the sum of some amounts; a sum of which one part is not known is not known."""
    dollars = [paid.dollars for paid in amounts if paid.dollars is not None]
    gpu_seconds = [paid.gpu_seconds for paid in amounts if paid.gpu_seconds is not None]
    return Amounts(
        rollouts=sum(paid.rollouts for paid in amounts),
        tokens=sum(paid.tokens for paid in amounts),
        dollars=math.fsum(dollars) if len(dollars) == len(amounts) else None,
        gpu_seconds=math.fsum(gpu_seconds) if gpu_seconds else None,
    )


def spending_rows(
    spending: Spending, candidates: Sequence[CandidateRow], figures: RunFigures
) -> list[dict[str, Any]]:
    """Return what a run's search has paid for what it reached. Pure.

    A row for each update, with what it alone has paid, and then one for each accepted (validated)
    prompt, with all that had been paid when it was. Each has ``of``, the amounts of
    :class:`Amounts`, ``seconds`` (wall clock), ``validation`` (of an update the best so far) and
    ``heldout``: of the first and of the chosen prompt, since nothing else may read it.
    """
    validated = [(row.validated_at, row) for row in candidates if row.validated_at is not None]
    validated.sort(key=itemgetter(0))
    rows: list[dict[str, Any]] = []
    best = None
    for step, started, ended, paid in spending.updates:
        scores = (row.score for _, row in validated if row.step <= step)
        best = max((score for score in scores if score is not None), default=best)
        name = "before update 0" if step < 0 else f"update {step}"
        row = {"seconds": ended - started, "validation": best, "heldout": None}
        rows.append({"of": name, **asdict(paid), **row})
    for at, candidate in validated:
        row = {
            "seconds": at - figures.record.created,
            "validation": candidate.score,
            "heldout": _heldout_score(candidate, figures.heldout),
        }
        name, paid = f"prompt {candidate.candidate[:8]}", spending.by_time[at]
        rows.append({"of": name, **asdict(paid), **row})
    return rows


def _heldout_score(candidate: CandidateRow, heldout: HeldoutRead | None) -> float | None:
    if heldout is None:
        return None
    if candidate.selected:
        return heldout.after
    return heldout.before if candidate.index == 0 else None


def budget_use(spending: Spending, candidates: Sequence[CandidateRow], figures: RunFigures) -> str:
    """Return whether the budget was well spent, in words; empty where no score says so. Pure."""
    chosen, limits = chosen_of(candidates), figures.about.limits
    if chosen is None or chosen.validated_at is None:
        return ""
    amounts = spending.total, spending.by_time[chosen.validated_at]
    if limits.get("tokens"):
        measure, (total, reached) = "tokens", (paid.tokens for paid in amounts)
    else:
        measure, (total, reached) = "rollouts", (paid.rollouts for paid in amounts)
    allowed = f"{limits.get(measure) or total:,.0f} {measure}"
    if not chosen.parents:
        return f"{total:,} of {allowed} reached nothing better than the student"
    tail = f"; {total - reached:,} more changed nothing" if total > reached else ""
    return f"best reached at {reached:,} of {allowed}{tail}"


def spent_of(reader: Reader, run: int) -> dict[str, float | None]:
    """Return what a run's search has paid: ``rollouts``, ``tokens``, ``dollars``, ``gpu_seconds``.

    ``seconds`` are wall-clock seconds; those between two parts of a run are left out.
    """
    history = RunHistory(reader, run)
    spending = read_spending(history)
    # Each part of a run begins with an audit line; a run that was killed before its first has none.
    starts = [entry.at for entry in history.entries(RunStarted)]
    starts = starts or [min((update.started for update in spending.updates), default=0.0)]
    seconds = 0.0
    for start, following in zip(starts, [*starts[1:], math.inf], strict=True):
        number = bisect.bisect_left(spending.ends, following)
        seconds += max(0.0, spending.ends[number - 1] - start) if number else 0.0
    return {**asdict(spending.total), "seconds": seconds}
