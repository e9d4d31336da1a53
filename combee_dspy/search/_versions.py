"""The versions of a text that grows, and the last one where a budget cut its validation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from combee_dspy.lessons import BookEdit
from combee_dspy.search._candidates import Candidate, Member
from combee_dspy.search._pool import CandidatePool, Draws

__all__ = ["Version", "describe_cut", "find_cut_off"]


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True)
class Version:
    """The text after one update.

    Attributes:
        text: The text.
        validation: Its rollouts; ``None`` where it is not validated.
        edits: Done with the edits that its tests ask for, by component.
        awaited: Done once an update has begun whose text must know of those edits.
    """

    text: Candidate
    validation: asyncio.Task[Draws] | None
    edits: asyncio.Future[Sequence[tuple[str, BookEdit]]] = field(default_factory=_future)
    awaited: asyncio.Future[None] = field(default_factory=_future)

    @property
    def is_validated(self) -> bool:
        """Whether its validation has ended well: a budget may have cut it."""
        task = self.validation
        return (
            task is not None and task.done() and not task.cancelled() and task.exception() is None
        )


def find_cut_off(versions: Sequence[Version], pool: CandidatePool) -> dict[str, Any]:
    """Return the last version where a budget cut its validation at half of all rows or later.

    Returns:
        Its ``texts``, the ``step`` that made it and the ``rows`` that it has run on, as JSON; empty
        where there is none, and for texts with a key or personal data, which may not be written.
    """
    due = [(step, version) for step, version in enumerate(versions) if version.validation]
    if not due or due[-1][1].is_validated:
        return {}
    step, text = due[-1][0], due[-1][1].text
    rows = pool.validated_rows(text, step)
    texts = dict(text.texts)
    if 2 * len(rows) < len(pool.validation) or pool.effects.texts.scrubbed(texts) != texts:
        return {}
    return {"texts": texts, "step": step, "rows": rows}


def describe_cut(student: Member, cut: Member) -> str:
    """Return a sentence on how a text compares with the student on the rows before the cut."""
    before = fmean(student.scores[row] for row in cut.scores)
    return (
        f"The budget cut the last text's validation at {len(cut.scores)} of {len(student.scores)}"
        f" rows: it has {cut.mean:.3f} on them, and the student {before:.3f}."
    )
