"""What a search has paid for what it reached: by update, by accepted prompt, and as a whole."""

from __future__ import annotations

import bisect
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from typing import Any, NamedTuple

from combee_dspy.events import HeldoutRead, RunStarted
from combee_dspy.journal import Reader, RunHistory
from combee_dspy.tracking._candidates import CandidateRow, chosen_of
from combee_dspy.tracking._runs import RunFigures

_EFFECTS = """SELECT e.step, e.started, e.ended, e.kind = 'rollout',
    coalesce(sum(u.prompt_tokens + u.completion_tokens), 0),
    iif(total(u.effect IS NOT NULL AND u.dollars IS NULL) = 0, total(u.dollars), NULL),
    sum(u.gpu_seconds)
FROM effect e LEFT JOIN usage u ON u.effect = e.id
WHERE e.run = ? AND e.purpose <> 'heldout' AND e.kind <> 'decision'
GROUP BY e.id ORDER BY e.ended"""
_Sums = tuple[int, int, float | None, float | None]


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


def read_spending(history: RunHistory, candidates: Sequence[CandidateRow] = ()) -> Spending:
    """Return what a run's search has paid, also by the times at which candidates were validated.

    Each effect is read once, and of each only its end is held.
    """
    times = {row.validated_at for row in candidates if row.validated_at is not None}
    waiting = sorted(times, reverse=True)
    by_time: dict[float, Amounts] = {}
    updates: dict[int, tuple[float, float, _Sums]] = {}
    ends = array("d")
    total: _Sums = (0, 0, 0.0, None)
    for step, started, ended, *paid in history.reader.stream(_EFFECTS, (history.run,)):
        while waiting and waiting[-1] < ended:
            by_time[waiting.pop()] = Amounts(*total)
        ends.append(ended)
        total = _add(total, paid)
        first, _, before = updates.get(step, (started, ended, (0, 0, 0.0, None)))
        updates[step] = min(first, started), ended, _add(before, paid)
    by_time |= {at: Amounts(*total) for at in waiting}
    by_step = tuple(
        UpdateSpending(step, started, ended, Amounts(*paid))
        for step, (started, ended, paid) in sorted(updates.items())
    )
    return Spending(by_step, ends, Amounts(*total), by_time)


def _add(sums: _Sums, paid: Sequence[Any]) -> _Sums:
    """Add what one effect has paid, in the order of :class:`Amounts`, to what others have.

    On tuples: a record for each effect of a long run takes a fifth of ``combee show``.
    """
    rollouts, tokens, dollars, gpu_seconds = sums
    of_effect = paid[3]
    return (
        rollouts + paid[0],
        tokens + paid[1],
        None if dollars is None or paid[2] is None else dollars + paid[2],
        gpu_seconds if of_effect is None else (gpu_seconds or 0.0) + of_effect,
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
        name = "before the first update" if step < 0 else f"update {step}"
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
