"""What a search has paid for what it reached: by update, by accepted prompt, and as a whole."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
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

    def __add__(self, other: Amounts) -> Amounts:
        """Return what two groups of effects have paid."""
        gpu_seconds = self.gpu_seconds
        if other.gpu_seconds is not None:
            gpu_seconds = (gpu_seconds or 0.0) + other.gpu_seconds
        return Amounts(
            rollouts=self.rollouts + other.rollouts,
            tokens=self.tokens + other.tokens,
            dollars=(
                None
                if self.dollars is None or other.dollars is None
                else self.dollars + other.dollars
            ),
            gpu_seconds=gpu_seconds,
        )


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
        sums: All that had been paid by then, in the order of ``ends``.
    """

    updates: tuple[UpdateSpending, ...]
    ends: tuple[float, ...]
    sums: tuple[Amounts, ...]

    @property
    def total(self) -> Amounts:
        """All of it."""
        return self.paid_by(math.inf)

    def paid_by(self, at: float) -> Amounts:
        """Return all that had been paid by a Unix time."""
        number = bisect.bisect_right(self.ends, at)
        return self.sums[number - 1] if number else Amounts()


def read_spending(history: RunHistory) -> Spending:
    """Return what a run's search has paid. Each effect is read once."""
    updates: dict[int, UpdateSpending] = {}
    ends: list[float] = []
    sums: list[Amounts] = []
    total = Amounts()
    for step, started, ended, *amounts in history.reader.stream(_EFFECTS, (history.run,)):
        paid = Amounts(*amounts)
        total += paid
        ends.append(ended)
        sums.append(total)
        before = updates.get(step, UpdateSpending(step, started, ended, Amounts()))
        updates[step] = UpdateSpending(
            step, min(before.started, started), ended, before.paid + paid
        )
    return Spending(tuple(updates[step] for step in sorted(updates)), tuple(ends), tuple(sums))


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
        name, paid = f"prompt {candidate.candidate[:8]}", spending.paid_by(at)
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
    amounts = spending.total, spending.paid_by(chosen.validated_at)
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
