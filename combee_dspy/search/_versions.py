"""What a text that grows remembers of its updates: its versions, and which rows were right."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from combee_dspy.evaluation import perfect_score_of
from combee_dspy.records import Rollout
from combee_dspy.search._blame import Edits
from combee_dspy.search._candidates import Candidate
from combee_dspy.search._describe import budget_digest
from combee_dspy.search._keeper import Learned
from combee_dspy.search._pool import CandidatePool, Draws, every_other_first
from combee_dspy.search._time_budget import BudgetReached
from combee_dspy.search._trials import Trials

T = TypeVar("T")


@dataclass(slots=True)
class Version:
    """The text after one update.

    Attributes:
        text: The text.
        validation: Its validation; ``None`` where it gets none.
        tests: The search for lines that spoil it, which returns edits by component; ``None`` where
            no later text must know of it.
    """

    text: Candidate
    validation: asyncio.Task[Draws] | None
    tests: asyncio.Task[Edits] | None = None


async def ended_well(task: asyncio.Task[T] | None) -> T | None:
    """Return what a task returns; ``None`` where there is no task, or it or a budget was cut.

    Raises:
        Exception: What it failed with.
    """
    if task is None:
        return None
    await asyncio.wait({task})
    if task.cancelled() or isinstance(task.exception(), BudgetReached):
        return None
    return task.result()


async def join_cut_off(versions: Sequence[Version], pool: CandidatePool) -> bool:
    """Join the last version to the pool where a budget cut its validation at half or later.

    Half of all rows say enough to compare it with others on these rows. A run that is compiled
    again does not begin the update of that text, so the decision holds it.

    Returns:
        Whether it joined.
    """
    effects, task = pool.effects, pool.task
    purse = effects.purse
    if not purse.exhausted or purse.postponed or task.settings.privacy.texts == "hashes":
        return False
    place = f"cut/{budget_digest(task)}"
    last = max((step for step, each in enumerate(versions) if each.validation), default=-1)
    is_cut = last >= 0 and await ended_well(versions[last].validation) is None
    cut = await effects.decide(
        place, lambda: _cut_off(versions[last].text, last, pool) if is_cut else {}
    )
    if not cut:
        return False
    text, step = Candidate(cut["texts"]), cut["step"]
    rows = [pool.all_rows[index] for index in cut["rows"]]
    draws = await pool.validate(text, rows, step)
    pool.join_part(text, (pool.members[-1].index,), step, draws)
    return True


def _cut_off(text: Candidate, step: int, pool: CandidatePool) -> dict[str, Any]:
    """Return a text, its update and the rows that it has run on as JSON, if those are half of all.

    Nothing of texts with a key or personal data: those may not be written.
    """
    rows, texts = pool.validated_rows(text, step), dict(text.texts)
    if 2 * len(rows) < len(pool.validation) or pool.effects.texts.scrubbed(texts) != texts:
        return {}
    return {"texts": texts, "step": step, "rows": rows}


async def validate_paid(trials: Trials, text: Candidate, rows: Sequence[int]) -> Draws:
    """Return the draws of a text on the rows that limits on cost pay for.

    Which these are is recorded: a run that is compiled again would buy others.
    """
    effects = trials.pool.effects
    place = f"paid/last/{budget_digest(trials.pool.task)}"
    past = effects.past_decision(place)
    order = every_other_first(rows) if past is None else past
    results = await asyncio.gather(
        *(trials.validate(text, [row]) for row in order),
        return_exceptions=True,
    )
    draws: dict[int, Sequence[Rollout]] = {}
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, BudgetReached):
            raise result
        draws.update(result if isinstance(result, Mapping) else {})
    if len(draws) < len(rows) and not effects.purse.postponed:
        await effects.decide(place, lambda: sorted(draws))
    return dict(sorted(draws.items()))


@dataclass(eq=False)
class RowScores:
    """Which training rows were right, by update, so that nothing depends on speed."""

    perfect_score: float
    _right: list[dict[int, bool]] = field(default_factory=list, init=False)

    def end(self, learned: Learned) -> None:
        """Note the scores of the next update. Recorded rollouts do not count."""
        scores = [rollout.score for rollout in learned.rollouts]
        perfect = perfect_score_of(self.perfect_score, [learned.plan.perfect_score, *scores])
        rows = zip(learned.plan.rows, scores, strict=True)
        self._right.append({row.index: score >= perfect for row, score in rows if row.index >= 0})

    def are_right(self, last: int, size: int) -> bool:
        """Return whether all of ``size`` rows were right when updates up to ``last`` ran them."""
        latest: dict[int, bool] = {}
        for runs in self._right[: last + 1]:
            latest.update(runs)
        return len(latest) == size and all(latest.values())
