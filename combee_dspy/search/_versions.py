"""The versions of a text that grows, and the last one where a budget cut its validation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from combee_dspy.lessons import BookEdit
from combee_dspy.search._candidates import Candidate
from combee_dspy.search._describe import budget_digest
from combee_dspy.search._pool import CandidatePool, Draws

__all__ = ["Version", "join_cut_off"]


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True)
class Version:
    """The text after one update.

    Attributes:
        text: The text.
        validation: Its validation; ``None`` where it gets none.
        edits: Done with the edits that its tests ask for, by component.
        awaited: Done once an update has begun whose text must know of those edits.
    """

    text: Candidate
    validation: asyncio.Task[Draws] | None
    edits: asyncio.Future[Sequence[tuple[str, BookEdit]]] = field(default_factory=_future)
    awaited: asyncio.Future[None] = field(default_factory=_future)

    @property
    def draws(self) -> Draws | None:
        """Its rollouts, once its validation has ended well: a budget may have cut it."""
        task = self.validation
        if task is None or not task.done() or task.cancelled() or task.exception():
            return None
        return task.result()


async def join_cut_off(versions: Sequence[Version], pool: CandidatePool) -> None:
    """Join the last version to the pool where a budget cut its validation at half or later.

    Half of all rows say enough to compare it with others on these rows. A run that is compiled
    again does not begin the update of that text, so the decision holds it.
    """
    effects, task = pool.effects, pool.task
    if not effects.purse.exhausted or task.settings.privacy.texts == "hashes":
        return
    place = f"cut/{budget_digest(task)}"
    cut = await effects.decide(place, lambda: _find_cut_off(versions, pool))
    if not cut:
        return
    text, step = Candidate(cut["texts"]), cut["step"]
    rows = [pool.validation[index] for index in cut["rows"]]
    draws = await pool.validate(text, rows, step)
    student, member = pool.members[0], pool.join(text, (pool.members[-1].index,), step, draws)
    before = fmean(student.scores[row] for row in member.scores)
    effects.warn(
        f"The budget cut the last text's validation at {len(rows)} of {len(student.scores)}"
        f" rows: it has {member.mean:.3f} on them, and the student {before:.3f}."
    )


def _find_cut_off(versions: Sequence[Version], pool: CandidatePool) -> dict[str, Any]:
    """Return the texts, the update and the validated rows of the version that was cut, as JSON.

    Nothing where there is none, and of texts with a key or personal data: those may not be written.
    """
    due = [(step, version) for step, version in enumerate(versions) if version.validation]
    if not due or due[-1][1].draws is not None:
        return {}
    step, text = due[-1][0], due[-1][1].text
    rows = pool.validated_rows(text, step)
    texts = dict(text.texts)
    if 2 * len(rows) < len(pool.validation) or pool.effects.texts.scrubbed(texts) != texts:
        return {}
    return {"texts": texts, "step": step, "rows": rows}
