"""The text that passed its tests last: what passes next joins the pool behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from combee_dspy.artifacts import Artifact
from combee_dspy.evaluation import perfect_score_of
from combee_dspy.search._candidates import Candidate
from combee_dspy.search._describe import budget_digest
from combee_dspy.search._pool import CandidatePool, Draws, every_other_first
from combee_dspy.search._time_budget import BudgetReached
from combee_dspy.search._trials import Validated


@dataclass(eq=False)
class LastText:
    """The newest text of the pool with its rollouts. Lives on the search's loop.

    A limit that ends the tests of lines may not hold where the run is replayed. So how many texts
    had joined by then is a decision, and no further one joins.

    Attributes:
        member: The text that passed last.
        draws: Its rollouts; none until it is validated here.
    """

    pool: CandidatePool
    artifact: Artifact

    def __post_init__(self) -> None:
        self.member = self.pool.members[-1]
        self.draws: Draws = {}
        self._effects = self.pool.effects
        self._place = f"proved/{budget_digest(self.pool.task)}"
        self._joined, self._most = 0, self._effects.past_decision(self._place)

    @property
    def tested(self) -> Validated:
        """The text as tests of lines read it."""
        return Validated(self.artifact, self.member.candidate, self.draws)

    @property
    def failing(self) -> list[int]:
        """The validation rows that it fails, ascending."""
        scores = self.member.scores
        perfect = perfect_score_of(self.pool.task.settings.perfect_score, scores.values())
        return sorted(row for row, score in scores.items() if score < perfect)

    def check(self) -> None:
        """End the tests where a limit ended them before.

        Raises:
            BudgetReached: They end here.
        """
        if self._joined == self._most:
            raise BudgetReached("the tests of lines ended here before")

    async def cut_off(self) -> None:
        """Note that a limit ended the tests; not for good while a kill holds what they need."""
        if not self._effects.purse.postponed:
            await self._effects.decide(self._place, lambda: self._joined)

    async def validate(self) -> None:
        """Read its rollouts, which are at hand."""
        rows = [self.pool.all_rows[row] for row in sorted(self.member.scores)]
        self.draws = await self.pool.validate(self.member.candidate, rows, self.member.step)

    async def spread(self, text: Candidate, most: int) -> Sequence[int]:
        """Return the rows that read something else in another text, spread over all.

        Half of them and more where no more than ``most`` rollouts may be bought, else none.
        """
        rows = every_other_first(await self.tested.affected(text))
        count = most // self.pool.draws
        return rows[:count] if 2 * count >= len(rows) else ()

    def join(
        self, text: Candidate, draws: Draws, components: Sequence[str], *, is_part: bool = False
    ) -> None:
        """Let a text join the pool. A row that its change does not concern keeps its rollouts; of a
        part of the rows nothing is known of the others.

        Raises:
            BudgetReached: A limit ended the tests behind it before.
        """
        parent = self.member
        event = text.proposed((parent.candidate.id,), "test", tuple(components))
        self._effects.emit(event, step=parent.step)
        if is_part:
            self.pool.join_part(text, (parent.index,), parent.step, draws)
        else:
            self.draws = {**self.draws, **draws}
            self.member = self.pool.join(text, (parent.index,), parent.step, self.draws)
        self._joined += 1
        self.check()
