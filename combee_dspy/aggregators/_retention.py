"""Which reflections the result of a scan still covers, and where it lost the others. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from operator import itemgetter

import numpy as np

from combee_dspy.aggregators._coverage import Coverage, Matrix, text_lines
from combee_dspy.records import Lessons, NodeOutput, Reflection, Retained
from combee_dspy.reflections import feedback_text, normalised, texts_in

# Share of a text that a line must hold to cover it.
_THRESHOLD = 0.5
# A line is about the record it is closest to, and about those that are nearly as close.
_SHARE = 0.8
# A record may hold so little of a line that words it anew, if that is so many times what the line
# shares with the shard's other records.
_LEAST = 0.1
_TIMES = 3.0

_MOST_CHARS = 20_000
_NUMBER = re.compile(r"\d")
_FEWEST_WORDS = 3
# The words of a verdict: it says that something was wrong, not what to do about it.
_VERDICT_WORDS = """
    a an and answer answered as be been but correct correctly error expected failed false for
    gave given got had has have here in incorrect incorrectly instead is it its mistake not of
    on ok output predicted prediction response result right score scored should that the this to
    trajectory true was were wrong yes no your you
"""
_VERDICT = frozenset(_VERDICT_WORDS.split())


def measure_retention(lessons: Lessons, reflections: Sequence[Reflection]) -> tuple[Retained, ...]:
    """Return for each reflection how well the result covers it, or at which node it was lost.

    What a reflection teaches is read from two places: the text of its feedback, and of each level-1
    node that read it the line of which its record holds most, if that share is at least 0.8
    of what the line shares with any other record of the node, and either reaches 0.5 or is at least
    0.1 and three times what the line typically shares with the node's other records. Coverage is
    the highest similarity of any of these texts to any line of the result (see :class:`Coverage`);
    from 0.5 on, the reflection counts as covered.

    What the measure cannot see: a lesson that the feedback only implies, and one that a node tells
    in quite other words. A reflection whose feedback is a mere verdict has ``measurable=False``;
    its coverage says little.

    Works with any aggregator: a node's place in the tree is read from its level and sources.
    Without nodes, what is not covered was lost at node (1, 0), the one call that read all of it.
    Returns one record per reflection, by index, ascending.
    """
    ordered = sorted(reflections, key=lambda reflection: reflection.index)
    feedback = {item.index: feedback_text(item)[:_MOST_CHARS] for item in ordered}
    records = {item.index: " ".join(texts_in(item.record))[:_MOST_CHARS] for item in ordered}
    taught = _level_one_lines(lessons.nodes, records)
    for index, text in feedback.items():
        taught[index].append(text)
    wordings = (lesson.text.strip() for lesson in lessons.lessons)
    result = list(dict.fromkeys([*wordings, *text_lines(lessons.rewrite or "")]))
    lines = [line for node in lessons.nodes for line in node.lessons]
    coverage = Coverage([*lines, *result, *feedback.values()])

    def best_lines(indices: Sequence[int], by: Sequence[str]) -> dict[int, tuple[float, int]]:
        """Return, by reflection, the most that a line covers of it, and the line's position."""
        shares, places = coverage.best([text for index in indices for text in taught[index]], by)
        matches = iter(zip(shares.tolist(), places.tolist(), strict=True))
        return {
            index: max(islice(matches, len(taught[index])), key=itemgetter(0)) for index in indices
        }

    final = best_lines(list(feedback), result)
    lost = {index for index, (share, _) in final.items() if share < _THRESHOLD}
    # A reflection is lost at the first node that read it or, where any covers it, at the highest
    # that does: of what is written here, the last stays.
    lost_at = dict.fromkeys(lost, (0, 0) if lessons.nodes else (1, 0))
    for node in sorted(lessons.nodes, key=lambda node: (-node.level, -node.node)):
        lost_at.update(dict.fromkeys(lost.intersection(node.sources), (node.level, node.node)))
    for node in sorted(lessons.nodes, key=lambda node: (node.level, -node.node)):
        best = best_lines([index for index in node.sources if index in lost], node.lessons)
        for index, (share, _) in best.items():
            if share >= _THRESHOLD:
                lost_at[index] = (node.level, node.node)
    place = {lesson.text.strip(): at for at, lesson in reversed([*enumerate(lessons.lessons)])}
    return tuple(
        Retained(
            index,
            share,
            index not in lost,
            lost_at.get(index),
            teaches(feedback[index]),
            None if index in lost else place.get(result[line]),
        )
        for index, (share, line) in final.items()
    )


def _level_one_lines(
    nodes: Iterable[NodeOutput], records: Mapping[int, str]
) -> dict[int, list[str]]:
    """Return the lines of level 1 that say what each reflection teaches."""
    nodes = [node for node in nodes if node.level == 1 and node.lessons]
    taught: dict[int, list[str]] = {index: [] for index in records}
    # The other way round than in the result: a line is short, and what counts is how much of it
    # comes from a record.
    origin = Coverage([*records.values(), *(line for node in nodes for line in node.lessons)])
    for node in nodes:
        readers = [index for index in node.sources if index in records]
        if not readers:
            continue
        near = origin.of(node.lessons, [records[index] for index in readers])
        own = np.where(near >= _bar(near)[:, None], near, 0.0)
        for index, line, share in zip(readers, own.argmax(axis=0), own.max(axis=0), strict=True):
            if share > 0:
                taught[index].append(node.lessons[line])
    return taught


def _bar(near: Matrix) -> Matrix:
    """Return, per line, the share of it that a record must hold to be what the line is about.

    A line has words of its own, so its record may hold little of it; what shows the origin is that
    the other records hold far less.
    """
    closest = _SHARE * near.max(axis=1)
    others = [row[row < bar] for row, bar in zip(near, closest, strict=True)]
    typical = np.array([np.median(row) if row.size else np.inf for row in others])
    bar: Matrix = np.maximum(closest, np.minimum(_THRESHOLD, np.maximum(_LEAST, _TIMES * typical)))
    return bar


def teaches(feedback: str) -> bool:
    """Return whether a feedback says more than a verdict ("Wrong: expected 3, got 4").

    It does where three of its words are neither numbers nor words of a verdict. The list of verdict
    words is English; in other languages every feedback of three words counts.
    """
    words = own_words(feedback)
    return sum(not _NUMBER.search(word) for word in words) >= _FEWEST_WORDS


def feedback_words(reflection: Reflection) -> set[str]:
    """Return the words of a feedback beyond a verdict and the inputs."""
    inputs = " ".join(texts_in(reflection.record.get("Inputs")))
    return own_words(feedback_text(reflection)) - set(normalised(inputs).split())


def own_words(feedback: str) -> set[str]:
    """Return the words of a feedback beyond a verdict."""
    return {word for word in normalised(feedback).split() if word.isalnum()} - _VERDICT
