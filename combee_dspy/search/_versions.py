"""The versions of a text that grows, and the one whose validation a budget cut."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from combee_dspy.lessons import BookEdit
from combee_dspy.records import Rollout
from combee_dspy.search._candidates import Candidate, Member
from combee_dspy.search._pool import CandidatePool

__all__ = ["Rollouts", "Version", "describe_cut", "find_cut_off"]

Rollouts = Mapping[int, Sequence[Rollout]]
"""Draws by validation row."""


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True)
class Version:
    """The text after one update.

    Attributes:
        text: The text.
        validation: Its rollouts; ``None`` where it is not validated.
        tested: Done with the edits that its tests ask for, by component.
        read: Done once there is an update whose text knows of its tests.
    """

    text: Candidate
    validation: asyncio.Task[dict[int, tuple[Rollout, ...]]] | None
    tested: asyncio.Future[Sequence[tuple[str, BookEdit]]] = field(default_factory=_future)
    read: asyncio.Future[None] = field(default_factory=_future)

    @property
    def is_validated(self) -> bool:
        """Whether its validation has ended well: a budget may have cut it off."""
        task = self.validation
        return (
            task is not None and task.done() and not task.cancelled() and task.exception() is None
        )


def find_cut_off(versions: Sequence[Version], pool: CandidatePool) -> dict[str, Any]:
    """Return the texts of the last version, its update and the rows that it has run on, where a
    budget cut its validation at half of all rows or later; nothing where it did not.

    Texts with a key or personal data may not be written, so nothing of them is returned either.
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


def describe_cut(members: Sequence[Member]) -> str:
    """Say how the last member, whose validation a budget cut, compares with the first on its
    rows.
    """
    first, last = members[0], members[-1]
    before = fmean(first.scores[row] for row in last.scores)
    return (
        f"The budget cut the last text's validation at {len(last.scores)} of {len(first.scores)}"
        f" rows: it has {last.mean:.3f} on them, and the student {before:.3f}."
    )
