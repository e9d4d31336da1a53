"""How an artifact's text grows: all lessons join it, and an update that made it clearly worse is taken back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from combee_dspy.artifacts import Artifact
from combee_dspy.evaluation import clearly_worse
from combee_dspy.records import Rollout
from combee_dspy.search._candidates import Candidate, Row
from combee_dspy.search._choices import newest_not_worse
from combee_dspy.search._effects import Effects
from combee_dspy.search._keeper import Keeper
from combee_dspy.search._pool import Member, Pool
from combee_dspy.search._update import Learned, Parent, Plan

__all__ = ["Trunk"]


@dataclass(slots=True)
class _Commit:
    """One update of the trunk. What it ran is let go of as soon as it can be taken back no more: it may be much."""

    learned: Learned | None
    text: Candidate  # what it proposed, which was validated
    kept: Candidate  # the text up to its lessons without those that were taken back since
    validation: asyncio.Task[dict[int, tuple[Rollout, ...]]] | None
    scores: dict[int, float] | None = None  # once it is committed, in the place of its validation
    reverted: bool = False


@dataclass(eq=False)
class Trunk(Keeper):
    """Joins the lessons of all updates to one text, in their order.

    An update's lessons are a commit, and its validation is the test of it: where that
    is clearly worse than the text before (a one-sided sign test), the next text is made
    without those lessons, from the last one that never held them. Verdicts are read ``lag``
    updates later, so that no update waits for a validation that began a moment ago.
    """

    effects: Effects
    pool: Pool
    artifact: Artifact
    seed: Candidate
    components: Callable[[int], tuple[str, ...]]  # what an update edits
    lag: int  # updates after which a verdict is read, at least 1
    staleness: int  # update i runs on the text of update i − 1 − staleness

    def __post_init__(self) -> None:
        self._commits: list[_Commit] = []
        self._to_validate: dict[int, tuple[Row, ...]] = {}

    def ended(self, error: Exception | None) -> None:
        """Let go of validations that nobody waits for any more."""
        for commit in self._commits:
            if commit.validation is not None:
                commit.validation.cancel()

    def rollouts(self, size: int, children: int) -> int:
        """Return the rollouts of the minibatch and of the new text's validation."""
        return self.pool.beside_validation(size) + self.pool.size

    @property
    def text(self) -> Candidate:
        """The newest text."""
        return self._commits[-1].text if self._commits else self.seed

    async def parent(self, step: int) -> Parent:
        """Return the newest text that is surely known, though a later one may be there already."""
        # Asked now, when what a policy of the user's reads is a function of the update's number.
        self._to_validate[step] = self.pool.rows_to_validate()
        known = step - 1 - self.staleness
        text = self._commits[known].text if known >= 0 else self.seed
        return Parent(text, -1, self.components(step), {})

    def select(self, plan: Plan, rollouts: Sequence[Rollout]) -> Sequence[str]:
        """Return what the plan says already."""
        return plan.parent.components or ()

    async def propose(self, learned: Learned) -> Candidate:
        """Join an update's lessons to the newest text, without those of updates that turned out clearly worse."""
        step = learned.plan.step
        before = text = self.text
        if (reverted := await self._reverted(step)) is not None:
            text = self._commits[reverted - 1].kept if reverted else self.seed
            for one in self._commits[reverted:]:
                text = one.kept = text if one.reverted else self._edited(one.learned, text)  # type: ignore[arg-type]  # not yet let go of
        if step >= self.lag:
            self._commits[step - self.lag].learned = None
        text = self._edited(learned, text)
        if text.id != before.id:
            data = {"candidate": text.id, "texts": dict(text.texts), "parents": [before.id],
                    "operator": self.artifact.name,
                    "components": list(learned.lessons)}  # fmt: skip
            self.effects.log.emit("candidate", data, step=step)
            self.proposed = True
        validation = asyncio.ensure_future(self.pool.validate(text, self._to_validate.pop(step), step))
        # Where the run ends before anybody asks, nobody needs to hear that the budget had no room for it.
        validation.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._commits.append(_Commit(learned, text, text, validation))
        return text

    def _edited(self, learned: Learned, text: Candidate) -> Candidate:
        if learned.skipped:
            return text
        return text.edited(
            {
                component: self.artifact.apply(text.texts[component], lessons)
                for component, lessons in learned.lessons.items()
            }
        )

    async def _reverted(self, step: int) -> int | None:
        """Take back the update whose verdict is due if it is clearly bad; return which, ``None`` where none is."""
        number = step - self.lag
        if number < 0:
            return None
        commit, before = self._commits[number], self._commits[number - 1] if number else None
        if commit.text.id == (before.text if before else self.seed).id:
            return None
        now = await _scores(commit)
        earlier = self.pool.members[0].scores if before is None else await _scores(before)
        shared = sorted(set(earlier) & set(now))
        if not shared or not clearly_worse([now[i] for i in shared], [earlier[i] for i in shared]):
            return None
        commit.reverted = True
        fell, to = (fmean(scores[row] for row in shared) for scores in (earlier, now))
        data = {"update": number, "reason": f"validation fell from {fell:.4g} to {to:.4g}"}
        self.effects.log.emit("reverted", data, step=step)
        return number

    async def check(
        self, learned: Learned, proposed: Candidate, turn: Callable[[], Awaitable[None]]
    ) -> Mapping[int, Sequence[Rollout]]:
        """Wait for the validation of the new text, which has begun already."""
        return await asyncio.shield(self._commits[learned.plan.step].validation)  # type: ignore[arg-type]  # it is there

    async def commit(self, learned: Learned, checked: Mapping[int, Sequence[Rollout]]) -> None:
        """Join the new text to the pool."""
        commit, newest = self._commits[learned.plan.step], self.pool.members[-1]
        if commit.text.id != newest.candidate.id:
            self.pool.join(commit.text, (newest.index,), learned.plan.step, checked)
        commit.scores, commit.validation = await _scores(commit), None

    async def result(self) -> Member:
        """Return the newest text that is not clearly worse than the best validated one."""
        chosen = newest_not_worse(self.pool.members)
        reason = f"the newest text that is not clearly worse than the best, {chosen.mean:.4g} on validation"
        data = {"candidate": chosen.candidate.id, "index": chosen.index, "reason": reason}
        self.effects.log.emit("selected", data)
        return chosen


async def _scores(commit: _Commit) -> dict[int, float]:
    if commit.validation is None:
        return commit.scores or {}
    rollouts = await asyncio.shield(commit.validation)
    return {index: fmean(one.score for one in drawn) for index, drawn in rollouts.items()}
