"""The validated candidates of a run. The student is the first: its validation runs beside the first
updates.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import fmean
from typing import Any, NoReturn, TypeVar

from combee_dspy.aggregators import together
from combee_dspy.events import CandidateSelected, CandidateValidated
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import Rollout
from combee_dspy.search._candidates import (
    VALIDATION,
    Candidate,
    Compilation,
    EffectPlace,
    Member,
    Row,
)
from combee_dspy.search._effects import Effects, cancel
from combee_dspy.search._gepa import Gepa
from combee_dspy.search._judging import Failures
from combee_dspy.search._time_budget import BudgetReached

T = TypeVar("T")

Draws = Mapping[int, Sequence[Rollout]]
"""Rollouts by validation row: one for each draw."""


def mean_scores(draws: Draws) -> dict[int, float]:
    """Return the mean score of each row."""
    return {row: fmean(rollout.score for rollout in rollouts) for row, rollouts in draws.items()}


def every_other_first(rows: Sequence[T]) -> Sequence[T]:
    """Return rows in an order whose first half is spread over all of them: they may be sorted."""
    return (*rows[::2], *rows[1::2])


@dataclass(eq=False)
class CandidatePool:
    """The validated candidates of a run, in the order in which they joined.

    Attributes:
        all_rows: The validation rows, by their index.
        validation: Those that candidates are compared on.
        is_of_older_code: Whether the run began before what a budget means was recorded.
        draws: Answers that one validation averages, for each row.
        members: The candidates, the student first; none before it has joined.
    """

    task: Compilation
    effects: Effects
    gepa: Gepa

    def __post_init__(self) -> None:
        self.all_rows = self.task.splits.validation
        past = self.effects.past_decision
        drawn = past("compared")
        # Such a run compared on all rows, and a budget in rollouts tested its lines at the end.
        self.is_of_older_code = drawn is None and past("batch/0") is not None
        self.validation = self.task.draw_validation(
            len(self.all_rows) if self.is_of_older_code else drawn
        )
        self.draws = self.task.settings.validation.draws
        # Train rows that no validation runs: with a cache, the others' rollouts are bought once.
        self._unseen = sys.maxsize
        if self.task.settings.cache is not False:
            rows = {row.hash for row in self.task.splits.train}
            self._unseen = len(rows - {row.hash for row in self.validation})
        self.members: list[Member] = []
        self._student = asyncio.Event()

    async def student(self) -> Member:
        """Wait until the student has joined, and return it."""
        await self._student.wait()
        return self.members[0]

    @property
    def size(self) -> int:
        """Rollouts that one validation takes at most."""
        return len(self.validation) * self.draws

    def kept_back(self, rows: int, *, is_first: bool = False) -> int:
        """Return the rollouts kept back for what follows the readings of an update: without that
        it is lost.

        That is a validation, the screens before it, and what a calibration judges, which costs
        about as much as a rollout.

        Args:
            rows: The update's.
            is_first: Half a validation says enough of the first text that grows: a limit may cut
                it. Later updates are cut to what leaves a whole one.
        """
        task, settings = self.task, self.task.settings
        validation = self.size / 2 if is_first and task.is_trunk else self.size
        calibration = settings.validation.calibration
        share = 0.0 if calibration is None else calibration.share_of(task.limits.rollouts)
        screens = task.children * min(rows, settings.search.screen)
        return math.ceil(validation) + screens + math.ceil(share * rows)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know of the rows that candidates are compared on."""
        count, whole = len(self.validation), len(self.all_rows)
        if count == whole:
            return ()
        text = (
            f"Texts are validated on {count} of {whole} validation rows, drawn by the seed: the"
            " budget that the run began with pays no four validations of all. Give a new run a"
            " larger budget, or a smaller valset."
        )
        return (text,)

    def beside_validation(self, size: int) -> int:
        """Return the rollouts that ``size`` train rows take at most beside a validation."""
        return min(size, self._unseen)

    @property
    def best(self) -> Member:
        """The candidate with the highest mean; of equals the oldest, as in GEPA.

        A budget may cut the validation of a text, whose mean is then of other rows.
        """
        rows = len(self.members[0].scores)
        whole = (member for member in self.members if len(member.scores) == rows)
        return max(whole, key=lambda member: member.mean)

    async def validate(self, candidate: Candidate, rows: Sequence[Row], step: int) -> Draws:
        """Run a candidate that update ``step`` made on validation rows; those at hand are free.

        Half of all rows are enough where a limit cuts the rest: see :func:`every_other_first`.
        """
        place = EffectPlace("validation", step)
        buy = partial(self.effects.rollout, candidate, lane=VALIDATION)
        order = every_other_first(rows)
        rollouts = await asyncio.gather(
            *(buy(row, place, replicate=draw) for row in order for draw in range(self.draws))
        )
        if step < 0:
            self._keep_time(rollouts)
        ended = iter(rollouts)
        by_row = {row.index: tuple(itertools.islice(ended, self.draws)) for row in order}
        return {row.index: by_row[row.index] for row in rows}

    def validated_rows(self, candidate: Candidate, step: int) -> list[int]:
        """Return the validation rows that a candidate of update ``step`` has run on, by index."""
        effects, place = self.effects, EffectPlace("validation", step)
        return [
            row.index
            for row in self.validation
            if all(
                effects.buyer.has(effects.key(row.rollout_key(candidate, draw), place))
                for draw in range(self.draws)
            )
        ]

    def _keep_time(self, rollouts: Sequence[Rollout]) -> None:
        """Keep time for the held-out set, by the seconds of the student's rollouts."""
        heldout = 2 * len(self.task.splits.heldout)  # the student and the result run on each row
        if heldout and rollouts:
            seconds = fmean(rollout.seconds for rollout in rollouts)
            rounds = math.ceil(heldout / self.effects.slots.capacity)
            self.effects.purse.reserve_heldout(seconds * rounds)

    def join(self, candidate: Candidate, parents: Sequence[int], step: int, draws: Draws) -> Member:
        """Take in a validated candidate that update ``step`` made; the student has no parents."""
        scores = mean_scores(draws)
        member = Member(len(self.members), candidate, tuple(parents), step, scores)
        self.members.append(member)
        self._student.set()
        best = self.best
        self.gepa.join(member, draws, best)
        event = CandidateValidated(
            candidate.id,
            member.index,
            member.mean if scores else None,
            len(scores),
            best=best.index == member.index,
        )
        self.effects.emit(event, step=step)
        return member

    def join_part(
        self, candidate: Candidate, parents: Sequence[int], step: int, draws: Draws
    ) -> None:
        """Take in the last candidate, which a budget let run on a part of the rows."""
        student, member = self.members[0], self.join(candidate, parents, step, draws)
        parent, before = (
            fmean(each.scores[row] for row in member.scores)
            for each in (self.members[parents[0]], student)
        )
        self.effects.warn(
            f"The budget cut the last text's validation at {len(draws)} of {len(student.scores)}"
            f" rows: it has {member.mean:.3f} on them, its parent {parent:.3f},"
            f" the student {before:.3f}."
        )

    def select(self, member: Member, reason: str) -> Member:
        """Return the member that the run returns; note it and why."""
        self.effects.emit(CandidateSelected(member.candidate.id, member.index, reason))
        return member


@dataclass(eq=False)
class Student:
    """Validates the student and joins it to the pool, once. Lives on the search's loop.

    Nobody reads its scores before the first updates end, so its rollouts come behind theirs. They
    come first where updates go one after another, and where a limit on cost or time may end the
    run: without these scores it has no result.
    """

    task: Compilation
    effects: Effects
    pool: CandidatePool
    failures: Failures
    _validation: asyncio.Task[None] | None = field(default=None, init=False)

    def promise(self) -> None:
        """Reserve the rollouts of the validation.

        Raises:
            ArgumentValueError: The budget does not pay for them.
        """
        most, cost = self.effects.purse.limits.rollouts, self.pool.size
        if most is not None and most < cost:
            self.refuse(f"leaves no room for the student's validation, which takes {cost} rollouts")
        self.effects.purse.promise(-1, cost)

    def start(self) -> asyncio.Task[None]:
        """Begin the validation, behind the rollouts that are asked for by now, and return it."""
        if self._validation is None:
            self._validation = asyncio.create_task(self._validate())
        return self._validation

    async def _validate(self) -> None:
        seed, place, rows = self.task.seed, EffectPlace("validation", -1), self.pool.validation
        first = [self.effects.rollout(seed, row, place, lane=VALIDATION) for row in rows]
        results: Any = await together(
            [self.pool.validate(seed, rows, -1), self.failures.check_first("validation", first)]
        )
        self.pool.join(seed, (), -1, results[0])

    async def join(self) -> None:
        """Wait until the student is in the pool.

        Raises:
            ArgumentValueError: The budget ended in the middle of its validation.
        """
        try:
            await asyncio.shield(self.start())
        except BudgetReached as reached:
            self.refuse(f"ends in the middle of the student's validation: {reached}")

    async def close(self) -> None:
        """Cancel the validation, if it is under way."""
        if self._validation is not None:
            await cancel(self._validation)

    def refuse(self, problem: str) -> NoReturn:
        """Refuse a budget that does not pay for the validation."""
        limits = asdict(self.effects.purse.limits)
        limits = {name: limit for name, limit in limits.items() if limit is not None}
        remedy = "Give a larger budget, or a smaller valset."
        raise ArgumentValueError("budget", limits, problem, remedy)
