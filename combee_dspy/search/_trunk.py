"""The other way to keep: all lessons join one text, and an update that made it clearly worse is taken back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from combee_dspy.artifacts import Artifact
from combee_dspy.evaluation import clearly_worse
from combee_dspy.records import Rollout
from combee_dspy.search._candidates import Candidate, Row
from combee_dspy.search._effects import Effects
from combee_dspy.search._finals import newest_not_worse
from combee_dspy.search._keeper import Keeper, Parent
from combee_dspy.search._pool import Member, Pool
from combee_dspy.search._propose import Proposer
from combee_dspy.search._update import Learned

__all__ = ["Trunk"]


@dataclass(slots=True)
class _Commit:
    """One update of the trunk: what it learned, the text with it, and that text's validation."""

    learned: Learned
    text: Candidate
    validation: asyncio.Task[Mapping[int, Sequence[Rollout]]] | None
    reverted: bool = False


class Trunk(Keeper):
    """Joins the lessons of all updates to one text, in their order.

    An update's lessons are a commit, and its validation is the test of it: where that
    is clearly worse than the text before (a one-sided sign test), the next text is made
    without those lessons. Verdicts are read ``lag`` updates later, so that no update
    waits for a validation that began a moment ago.

    Args:
        effects: The way to the world.
        pool: The validated texts.
        artifact: What is learned.
        proposer: Edits by operators; ``None`` where the artifact applies lessons itself.
        seed: The candidate that is the student itself.
        components: Returns what an update edits.
        lag: Updates after which a verdict is read, at least 1.
        staleness: Update i runs on the text of update i − 1 − staleness.
    """

    def __init__(  # noqa: PLR0913 - one wiring point
        self,
        effects: Effects,
        pool: Pool,
        artifact: Artifact,
        proposer: Proposer | None,
        *,
        seed: Candidate,
        components: Callable[[int], tuple[str, ...]],
        lag: int,
        staleness: int,
    ) -> None:
        self._effects = effects
        self._pool = pool
        self._artifact = artifact
        self._proposer = proposer
        self._seed = seed
        self._components = components
        self._lag = lag
        self._staleness = staleness
        self._commits: list[_Commit] = []

    def ended(self, error: Exception | None) -> None:
        """Let go of validations that nobody waits for any more."""
        for commit in self._commits:
            if commit.validation is not None:
                commit.validation.cancel()

    def rollouts(self, size: int, children: int) -> int:
        """Return the rollouts of the minibatch and of the new text's validation."""
        return self._pool.beside_validation(size) + self._pool.size

    @property
    def text(self) -> Candidate:
        """The newest text."""
        return self._commits[-1].text if self._commits else self._seed

    async def parent(self, step: int) -> Parent:
        """Return the newest text that is surely known, though a later one may be there already."""
        known = step - 1 - self._staleness
        text = self._commits[known].text if known >= 0 else self._seed
        return Parent(text, -1, self._components(step), {})

    def select(self, parent: Parent, rows: Sequence[Row], rollouts: Sequence[Rollout]) -> Sequence[str]:
        """Return what the plan says already."""
        return parent.components or ()

    async def propose(self, learned: Learned, parent: Parent) -> Candidate:
        """Join an update's lessons to the newest text, without those of updates that turned out clearly worse."""
        step = learned.plan.step
        taken_back = await self._read_verdicts(step)
        before = self.text
        commit = _Commit(learned, before, None)
        self._commits.append(commit)
        if taken_back:
            # Lessons that were taken back may be in any later text: the text is made again from the first.
            text = self._seed
            for one in self._commits:
                text = text if one.reverted else await self._edited(one.learned, text)
        else:
            text = await self._edited(learned, before)
        commit.text = text
        if text.id != before.id:
            data = {"candidate": text.id, "texts": dict(text.texts), "parents": [before.id], "operator": self._operator,
                    "components": list(learned.lessons)}  # fmt: skip
            self._effects.log.emit("candidate", data, step=step)
        commit.validation = asyncio.ensure_future(self._pool.validate(text, self._pool.rows_to_validate(), step))
        # Where the run ends before anybody asks, nobody needs to hear that the budget had no room for it.
        commit.validation.add_done_callback(lambda done: done.cancelled() or done.exception())
        return text

    @property
    def _operator(self) -> str:
        return self._artifact.name if self._proposer is None else "+".join(self._proposer.labels)

    async def _edited(self, learned: Learned, text: Candidate) -> Candidate:
        if learned.skipped:
            return text
        if self._proposer is not None:
            return await self._proposer.edited(learned, text, range(len(self._proposer.operators)))
        return text.edited(
            {
                component: self._artifact.apply(text.texts[component], lessons)
                for component, lessons in learned.lessons.items()
            }
        )

    async def _read_verdicts(self, step: int) -> bool:
        """Revert the updates whose verdict is due and clearly bad; return whether there is one."""
        number = step - self._lag
        if number < 0:
            return False
        commit = self._commits[number]
        before = self._commits[number - 1] if number else None
        if commit.validation is None or commit.text.id == (before.text.id if before else self._seed.id):
            return False
        after = await commit.validation
        earlier = self._pool.members[0].scores if before is None else _scores(await _validated(before))
        shared = sorted(set(earlier) & set(after))
        now = _scores(after)
        if not shared or not clearly_worse([now[i] for i in shared], [earlier[i] for i in shared]):
            return False
        commit.reverted = True
        reason = f"validation fell from {_mean(earlier, shared):.4g} to {_mean(now, shared):.4g}"
        self._effects.log.emit("reverted", {"update": number, "reason": reason}, step=step)
        return True

    async def check(self, learned: Learned, parent: Parent, proposed: object) -> Mapping[int, Sequence[Rollout]]:
        """Wait for the validation of the new text, which has begun already."""
        return await _validated(self._commits[learned.plan.step])

    async def commit(self, learned: Learned, parent: Parent, checked: object) -> None:
        """Join the new text to the pool."""
        rollouts: Mapping[int, Sequence[Rollout]] = checked  # type: ignore[assignment]  # what check() returned
        commit, newest = self._commits[learned.plan.step], self._pool.members[-1]
        if commit.text.id != newest.candidate.id:
            self._pool.join(commit.text, (newest.index,), learned.plan.step, rollouts)

    async def result(self) -> Member:
        """Return the newest text that is not clearly worse than the best validated one."""
        chosen = newest_not_worse(self._pool.members)
        reason = f"the newest text that is not clearly worse than the best, {chosen.mean:.4g} on validation"
        data = {"candidate": chosen.candidate.id, "index": chosen.index, "reason": reason}
        self._effects.log.emit("selected", data)
        return chosen


async def _validated(commit: _Commit) -> Mapping[int, Sequence[Rollout]]:
    if commit.validation is None:
        raise RuntimeError("a text was asked for its validation before it was proposed")
    return await asyncio.shield(commit.validation)


def _scores(rollouts: Mapping[int, Sequence[Rollout]]) -> dict[int, float]:
    return {index: sum(one.score for one in drawn) / len(drawn) for index, drawn in rollouts.items()}


def _mean(scores: Mapping[int, float], rows: Sequence[int]) -> float:
    return sum(scores[index] for index in rows) / len(rows)
