"""Which reflections a scan's result still covers, and at which node the others were lost. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import Lessons, NodeOutput, Reflection, Retained
from combee_dspy.reflections import estimate_tokens
from combee_dspy.retention._law import RetentionSample
from combee_dspy.retention._similar import Matrix, Positions, PreparedGrams, Similarity, gram_similarity
from combee_dspy.retention._teaching import feedback_of, record_text, result_lines, teaches
from combee_dspy.retention._tree import children_of, levels_of

__all__ = [
    "DEFAULT_THRESHOLD",
    "lost_once",
    "measure_retention",
    "measure_scan",
    "node_samples",
    "tokens_per_level",
    "with_rescued",
]

DEFAULT_THRESHOLD = 0.5
"""Similarity at which a line covers a text, for :func:`gram_similarity`. Another measure needs another one."""

_SHARE = 0.8
_LEAST = 0.1
_TIMES = 3.0

UNREAD = (0, 0)
"""``lost_at`` of a reflection that no node read: it was lost before the first call."""


def measure_retention(
    reflections: Sequence[Reflection],
    lessons: Lessons,
    *,
    similarity: Similarity = gram_similarity,
    threshold: float = DEFAULT_THRESHOLD,
) -> tuple[Retained, ...]:
    """Say of every reflection how well the result covers it and, where it does not, where it was lost.

    What a reflection teaches is read from two places: the text of its
    feedback, and of each level-1 node that read it the line that stands most
    fully in its record, if that share is at least 0.8 of what the line shares
    with any other record of the shard, and either reaches ``threshold`` or is
    at least 0.1 and three times what the line typically shares with the shard's
    other records. Coverage is
    the highest similarity of any of these texts to any line of the result.

    What the measure cannot see: a lesson that the feedback only implies, and
    one that a node tells in quite other words. A reflection whose feedback is
    a mere verdict has ``measurable=False``; its coverage is still computed,
    from the level-1 line closest to it, and says little.

    Works with any aggregator: a node's place in the tree is read from its
    level and sources. Without nodes, everything that is not covered was lost
    at node (1, 0), the one call that read all of it.

    Args:
        reflections: What was aggregated. Parts of one record, which share an index, count as one.
        lessons: The result, with its nodes.
        similarity: How well lines cover texts.
        threshold: Similarity from which a line covers a text, above 0 and at most 1.

    Returns:
        One record per index, ascending.

    Raises:
        ArgumentValueError: ``threshold`` is outside (0, 1].
    """
    return _retained(_View.of(reflections, lessons, similarity, threshold))


def _retained(view: _View) -> tuple[Retained, ...]:
    final = view.best(view.result, view.feedback)
    kept: list[Retained] = []
    for index, feedback in view.feedback.items():
        coverage = final[index]
        covered = coverage >= view.threshold
        lost_at = None if covered else view.last_seen(index)
        kept.append(Retained(index, coverage, covered, lost_at, measurable=teaches(feedback)))
    return tuple(kept)


class _Compared(Protocol):
    """Similarities of some texts, by position, to some lines."""

    def block(self, texts: Positions, lines: Positions) -> Matrix:
        """Return them all, one row a text."""
        ...

    def best(self, texts: Positions, lines: Positions) -> npt.NDArray[np.float64]:
        """Return each text's highest."""
        ...

    def equal(self, texts: Positions, lines: Positions) -> npt.NDArray[np.bool_]:
        """Return whether each text's highest is known to be 1, where that is cheap to tell."""
        ...


@dataclass(frozen=True, slots=True)
class _Whole:
    """A measure of another's own, whose matrix is held whole."""

    matrix: Matrix

    def block(self, texts: Positions, lines: Positions) -> Matrix:
        return self.matrix[np.ix_(texts, lines)]

    def best(self, texts: Positions, lines: Positions) -> npt.NDArray[np.float64]:
        highest: npt.NDArray[np.float64] = self.block(texts, lines).max(axis=1)
        return highest

    def equal(self, texts: Positions, lines: Positions) -> npt.NDArray[np.bool_]:
        return np.zeros(len(texts), bool)


def _compared(similarity: Similarity, texts: Sequence[str], lines: Sequence[str]) -> _Compared:
    if similarity is gram_similarity:
        return PreparedGrams(texts, lines)
    return _Whole(similarity(texts, lines) if texts and lines else np.zeros((len(texts), len(lines))))


@dataclass(frozen=True, slots=True)
class _View:
    """Similarities of everything to every line, looked up by text.

    Attributes:
        feedback: By index.
        taught: Rows of ``compared`` that hold what each index teaches: its feedback, and lines of level 1.
        compared: The feedbacks, then all lines, beside the lines.
        column: Each line's column.
        ways: The nodes that an index passed, from level 1 up.
        threshold: From which a line covers a text.
        result: The lines of the result.
        known: What :meth:`covers` has found, by the node's identity.
    """

    feedback: Mapping[int, str]
    taught: Mapping[int, frozenset[int]]
    compared: _Compared
    column: Mapping[str, int]
    nodes: tuple[NodeOutput, ...]
    ways: Mapping[int, list[NodeOutput]]
    threshold: float
    result: tuple[str, ...]
    known: dict[int, dict[int, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, reflections: Sequence[Reflection], lessons: Lessons, similarity: Similarity, threshold: float) -> _View:
        if not 0 < threshold <= 1:
            raise ArgumentValueError("threshold", threshold, "is outside (0, 1]", "0.5 is the default.")
        texts, feedback = _by_index(reflections)
        lines = dict.fromkeys(line for node in lessons.nodes for line in node.lessons)
        result = tuple(result_lines(lessons))
        lines.update(dict.fromkeys(result))
        column = {line: number for number, line in enumerate(lines)}
        compared = _compared(similarity, (*feedback.values(), *lines), tuple(lines))
        # The other way round: a line is short, and what counts is how much of it comes from the record.
        origin = _compared(similarity, tuple(lines), tuple(texts.values()))
        position = {index: number for number, index in enumerate(feedback)}
        taught = {index: {number} for index, number in position.items()}
        ways: dict[int, list[NodeOutput]] = {}
        for node in sorted(lessons.nodes, key=lambda node: (node.level, -node.node)):
            for index in node.sources:
                ways.setdefault(index, []).append(node)
        for node in lessons.nodes:
            readers = [position[index] for index in node.sources if index in position]
            if node.level != 1 or not node.lessons or not readers:
                continue
            near = origin.block(np.array([column[line] for line in node.lessons]), np.array(readers))
            # A line belongs to the reflections that it is about as close to as to its closest one.
            mine = near >= _SHARE * near.max(axis=1, keepdims=True)
            own = np.where(mine, near, 0.0)
            clear = own >= _clearly(near, mine, threshold)[:, None]
            own = np.where(clear, own, 0.0)
            for index, best, value in zip(
                (index for index in node.sources if index in position), own.argmax(axis=0), own.max(axis=0), strict=True
            ):
                if value > 0:
                    taught[index].add(len(feedback) + column[node.lessons[best]])
        kept = {index: frozenset(rows) for index, rows in taught.items()}
        return cls(feedback, kept, compared, column, lessons.nodes, ways, threshold, result)

    def best(self, lines: Collection[str], indices: Iterable[int]) -> dict[int, float]:
        """Return the highest similarity of what each index teaches to any of the lines."""
        asked = [index for index in indices if index in self.taught]
        if not lines or not asked:
            return dict.fromkeys(asked, 0.0)
        columns = np.array([self.column[line] for line in lines])
        counts = np.array([len(self.taught[index]) for index in asked])
        rows = np.array([row for index in asked for row in sorted(self.taught[index])])
        starts = np.cumsum(counts) - counts
        # Where one of the texts stands in the lines word for word, no other needs to be compared.
        done = np.logical_or.reduceat(self.compared.equal(rows, columns), starts)
        highest = np.ones(len(rows))
        open_ = ~np.repeat(done, counts)
        needed, back = np.unique(rows[open_], return_inverse=True)
        if len(needed):
            highest[open_] = self.compared.best(needed, columns)[back]
        return dict(zip(asked, np.maximum.reduceat(highest, starts).tolist(), strict=True))

    def covers(self, node: NodeOutput, index: int) -> bool:
        # The nodes live as long as this view, so an identity stays theirs.
        known = self.known.setdefault(id(node), {})
        if index not in known:
            known.update(self.best(node.lessons, {*node.sources, index}))
        return known[index] >= self.threshold

    def last_seen(self, index: int) -> tuple[int, int]:
        way = self.ways.get(index, [])
        if not way:
            return UNREAD if self.nodes else (1, 0)
        seen = [node for node in way if self.covers(node, index)]
        first = min(way, key=lambda node: (node.level, node.node))
        last = seen[-1] if seen else first
        return (last.level, last.node)


def _clearly(near: Matrix, mine: npt.NDArray[np.bool_], threshold: float) -> Matrix:
    """Return, per line, the share of it that a record must hold to be what the line is about.

    A line tells a record's lesson in words of its own, so little of it may stand in
    the record; what tells its origin is that far less stands in the other records.
    """
    others = np.where(mine, np.nan, near)
    known = ~mine.all(axis=1)
    typical = np.full(len(near), np.inf)
    # The median of what is no NaN, which sorts last; np.nanmedian goes by masked arrays, far slower.
    ascending = np.sort(others[known], axis=1)
    counts = np.count_nonzero(~mine[known], axis=1)
    rows = np.arange(len(counts))
    typical[known] = (ascending[rows, (counts - 1) // 2] + ascending[rows, counts // 2]) / 2
    bar: Matrix = np.minimum(threshold, np.maximum(_LEAST, _TIMES * typical))
    return bar


def _by_index(reflections: Sequence[Reflection]) -> tuple[dict[int, str], dict[int, str]]:
    """Return record text and feedback by index, ascending, parts of one record together."""
    texts: dict[int, str] = {}
    feedback: dict[int, str] = {}
    for reflection in sorted(reflections, key=lambda one: (one.index, one.part)):
        own = feedback_of(reflection)
        before = feedback.get(reflection.index, "")
        # A short feedback stands in every part.
        feedback[reflection.index] = before if own in before else f"{before} {own}".strip()
        texts[reflection.index] = f"{texts.get(reflection.index, '')} {record_text(reflection)}".strip()
    return texts, feedback


def tokens_per_level(nodes: Sequence[NodeOutput]) -> tuple[int, ...]:
    """Return the estimated tokens of all lessons of each level, lowest first."""
    return tuple(sum(estimate_tokens(line) for node in level for line in node.lessons) for level in levels_of(nodes))


def lost_once(retained: Sequence[Retained], offered_before: Collection[int] = ()) -> tuple[int, ...]:
    """Return the reflections that deserve a second chance: lost, measurable, and not offered again before.

    Args:
        retained: What became of each.
        offered_before: Indices, in this scan, of those that were already on their second chance.

    Returns:
        Indices, ascending. Whatever is lost twice is let go.
    """
    before = frozenset(offered_before)
    lost = (one.index for one in retained if one.measurable and not one.covered)
    return tuple(sorted(index for index in lost if index not in before))


def with_rescued(
    reflections: Sequence[Reflection], rescued: Sequence[Reflection]
) -> tuple[tuple[Reflection, ...], tuple[int, ...]]:
    """Append what was lost in an earlier scan to the reflections of the next.

    A rescued reflection whose example is in the new minibatch anyway is left
    out: its fresh record comes from the present candidate. Fresh records keep
    their indices; the others get the next free ones.

    Args:
        reflections: Of the next scan.
        rescued: From an earlier one, as :func:`lost_once` chose them.

    Returns:
        All reflections, and the new indices of those that are on their second chance.
    """
    present = {reflection.example_id for reflection in reflections if reflection.example_id is not None}
    start = max((reflection.index for reflection in reflections), default=-1) + 1
    fresh: dict[int, int] = {}
    added: list[Reflection] = []
    for reflection in rescued:
        if reflection.example_id in present:
            continue
        index = fresh.setdefault(reflection.index, start + len(fresh))
        added.append(replace(reflection, index=index))
    return (*reflections, *added), tuple(fresh.values())


def node_samples(
    reflections: Sequence[Reflection],
    lessons: Lessons,
    *,
    similarity: Similarity = gram_similarity,
    threshold: float = DEFAULT_THRESHOLD,
) -> tuple[tuple[RetentionSample, ...], tuple[RetentionSample, ...]]:
    """Read from an ordinary scan how much its calls kept, for :func:`fit_retention`.

    A level-1 call over m reflections is one sample: how many of the measurable
    ones its lessons cover. So is a merge: of the reflections that at least one
    of its lists covers, grouped by how many lists do, how many its own lessons
    cover. Failed nodes and nodes with a single child made no call that counts.

    Args:
        reflections: What was aggregated.
        lessons: The result, with its nodes.
        similarity: As for :func:`measure_retention`.
        threshold: As for :func:`measure_retention`.

    Returns:
        The samples of calls that read, and of calls that merge.

    Raises:
        ArgumentValueError: ``threshold`` is outside (0, 1].
    """
    return _samples(_View.of(reflections, lessons, similarity, threshold))


def measure_scan(
    reflections: Sequence[Reflection],
    lessons: Lessons,
    *,
    sample: bool = True,
    similarity: Similarity = gram_similarity,
    threshold: float = DEFAULT_THRESHOLD,
) -> tuple[tuple[Retained, ...], tuple[tuple[RetentionSample, ...], tuple[RetentionSample, ...]]]:
    """Return what :func:`measure_retention` and :func:`node_samples` return, comparing all texts once for both.

    Args:
        reflections: What was aggregated.
        lessons: The result, with its nodes.
        sample: Whether samples are wanted; without, they are empty.
        similarity: As for :func:`measure_retention`.
        threshold: As for :func:`measure_retention`.

    Raises:
        ArgumentValueError: ``threshold`` is outside (0, 1].
    """
    view = _View.of(reflections, lessons, similarity, threshold)
    return _retained(view), _samples(view) if sample else ((), ())


def _samples(view: _View) -> tuple[tuple[RetentionSample, ...], tuple[RetentionSample, ...]]:
    useful = {index for index, feedback in view.feedback.items() if teaches(feedback)}
    levels = levels_of(view.nodes)
    reads: list[RetentionSample] = []
    merges: list[RetentionSample] = []
    for node in levels[0] if levels else ():
        own = useful.intersection(node.sources)
        if node.failed is None and own:
            kept = sum(view.covers(node, index) for index in own)
            reads.append(RetentionSample(len(node.sources), kept, len(own)))
    for lower, upper in pairwise(levels):
        for node, positions in zip(upper, children_of(lower, upper), strict=True):
            if node.failed is None and len(positions) > 1:
                merges += _merge_samples(view, node, [lower[position] for position in positions], useful)
    return tuple(reads), tuple(merges)


def _merge_samples(
    view: _View, node: NodeOutput, children: Sequence[NodeOutput], useful: Collection[int]
) -> list[RetentionSample]:
    lines = sum(len(child.lessons) for child in children)
    by_copies: dict[int, list[bool]] = {}
    for index in sorted(useful):
        copies = sum(index in child.sources and view.covers(child, index) for child in children)
        if copies:
            by_copies.setdefault(copies, []).append(view.covers(node, index))
    distinct = max(1, len({line for child in children for line in child.lessons}))
    return [
        RetentionSample(distinct, sum(kept), len(kept), copies=copies, lines=lines)
        for copies, kept in sorted(by_copies.items())
    ]
