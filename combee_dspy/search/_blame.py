"""Which new lessons of a text spoil validation rows, while a run goes on."""

from __future__ import annotations

from collections.abc import Sequence

from combee_dspy.aggregators import together
from combee_dspy.lessons import BookEdit
from combee_dspy.search._candidates import Candidate, Scores
from combee_dspy.search._row_search import RowSearch
from combee_dspy.search._trials import Allows, Change, LessonLines, Trials, Validated, lesson_effect

Edits = list[tuple[str, BookEdit]]
"""Edits of books, each with its component."""

BLAMED = 16
"""Rollouts that the search for lessons to blame may take in one update."""

# Rows that are searched, and rows nearest to a lesson that may need it.
_LOST_ROWS, _NEAREST_ROWS = 4, 2


async def blame(
    trials: Trials,
    lines: LessonLines,
    tested: Validated,
    earlier: Candidate,
    before: Scores,
    allows: Allows,
) -> Edits:
    """Return edits, by component, that retire the new lessons which spoil rows.

    Rows that the earlier text had right are searched for the lesson that spoils them, among those
    that it lacks.
    """
    scores = tested.scores
    lost = [row for row, score in scores.items() if before.get(row, score) > score][:_LOST_ROWS]
    if not lost:
        return []
    search = RowSearch(lines, tested, allows, lines.open_changes(tested.text, serve=False))
    added = search.came_since(earlier)
    if not added:
        return []
    searching = trials.apart(trials.left - _NEAREST_ROWS)
    mending: dict[Change, int] = {}
    for row in lost:
        changes = await search.search(searching, row, list(mending), added)
        mending |= dict.fromkeys(changes, row)
    trials.left += searching.left
    edits: Edits = []
    for row in dict.fromkeys(mending.values()):
        culprits = [change for change, mended in mending.items() if mended == row]
        edits += await _retired(trials, search, culprits, lost, before)
    return edits


async def _retired(
    trials: Trials,
    search: RowSearch,
    culprits: Sequence[Change],
    lost: Sequence[int],
    before: Scores,
) -> Edits:
    """Return edits that retire lessons; none where as many rows need them as they spoil.

    Those that several examples teach must spoil two rows, since a single row may turn by chance.
    """
    scores = search.tested.scores
    without = search.lines.changed(search.tested.text, culprits)
    worst = min(*scores.values(), *before.values())  # a row that has it has nothing to lose
    right = [
        row
        for row in await search.tested.affected(without)
        if scores[row] > worst and row not in lost
    ]
    words = " ".join(change.lesson.text for change in culprits)
    near = trials.nearest(words, right, _NEAREST_ROWS)
    rows = [*near, *lost]
    after = await together(trials.score(without, row) for row in rows)
    # A row that no rollout is left for speaks for the lessons.
    missed = sum(
        not score >= scores[row] for row, score in zip(near, after[: len(near)], strict=True)
    )
    mended = sum(score > scores[row] for row, score in zip(lost, after[len(near) :], strict=True))
    taught = max(change.lesson.support for change in culprits)
    if mended <= missed or mended < min(taught, 2):
        return []
    effect = lesson_effect(after, [scores[row] for row in rows]) if len(culprits) == 1 else None
    reason = (
        f"{mended} validation rows were lost to it in update {trials.step} and are right without it"
    )
    return [(change.component, change.edit(reason, mended - missed, effect)) for change in culprits]
