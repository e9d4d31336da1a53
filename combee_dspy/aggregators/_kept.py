"""What a scan kept: which reflections its result still covers, and at which node the others were
lost. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from combee_dspy.records import Lessons, NodeOutput, Reflection, Retained
from combee_dspy.reflections import feedback_text, ngram_counts, normalised, texts_in

Matrix = NDArray[np.float64]

# Share of a text that a line must hold to cover it.
_THRESHOLD = 0.5
# A line is about the record it is closest to, and about those that are nearly as close.
_SHARE = 0.8
# So little of a line may stand in its record, where it is told in other words: as long as it is so
# many times what it shares with the shard's other records.
_LEAST = 0.1
_TIMES = 3.0

_MOST_CHARS = 20_000
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_NUMBER = re.compile(r"\d")
_FEWEST_WORDS = 3
# What a verdict is made of: it says that something was wrong, not what to do about it.
_VERDICT_WORDS = """a an and answer answered as be been but correct correctly error expected failed
    false for gave given got had has have here in incorrect incorrectly instead is it its mistake
    not of on ok output predicted prediction response result right score scored should that the this
    to trajectory true was were wrong yes no your you"""
_VERDICT = frozenset(_VERDICT_WORDS.split())

_SIZES = (5,)
_BUCKETS = 2**18
# A few letters have hardly any grams, and stand in every text by accident.
_FEWEST_GRAMS = 5
# Among a few texts what two of them share would look common: so many more that share nothing are
# supposed.
_UNSEEN = 20
# Similarities held at a time: 32 MB.
_CELLS = 4_000_000


def kept(lessons: Lessons, reflections: Sequence[Reflection]) -> tuple[Retained, ...]:
    """Say of every reflection how well the result covers it and, where it does not, where it was
    lost.

    What a reflection teaches is read from two places: the text of its feedback, and of each level-1
    node that read it the line that stands most fully in its record, if that share is at least 0.8
    of what the line shares with any other record of the node, and either reaches 0.5 or is at least
    0.1 and three times what the line typically shares with the node's other records. Coverage is
    the highest similarity of any of these texts to any line of the result (see :class:`Coverage`);
    from 0.5 on, the reflection counts as covered.

    What the measure cannot see: a lesson that the feedback only implies, and one that a node tells
    in quite other words. A reflection whose feedback is a mere verdict has ``measurable=False``;
    its coverage says little.

    Works with any aggregator: a node's place in the tree is read from its level and sources.
    Without nodes, what is not covered was lost at node (1, 0), the one call that read all of it.
    Returns one record per index, ascending; parts of one record, which share an index, count as
    one.
    """
    records, feedback = _by_index(reflections)
    result = _lines(lessons)
    lines = list(
        dict.fromkeys([*chain.from_iterable(node.lessons for node in lessons.nodes), *result])
    )
    place = {line: number for number, line in enumerate(lines)}
    taught = _taught(lessons.nodes, records, place)
    # Places of texts: first the lines, then the feedbacks.
    coverage = Coverage([*lines, *feedback.values()])
    for number, index in enumerate(feedback, start=len(lines)):
        taught[index].append(number)

    def covered(indices: Sequence[int], by: Iterable[str]) -> dict[int, tuple[float, int]]:
        """Return, by reflection, the most that a line covers of it, and the line's position."""
        texts = [text for index in indices for text in taught[index]]
        best, lines = coverage.best(texts, [place[line] for line in by])
        found = iter(zip(best.tolist(), lines.tolist(), strict=True))
        return {
            index: max(islice(found, len(taught[index])), key=lambda one: one[0])
            for index in indices
        }

    final = covered(list(feedback), result)
    lost = {index for index, (value, _) in final.items() if value < _THRESHOLD}
    said = [one.text.strip() for one in lessons.lessons]
    lesson = {
        index: said.index(result[line])
        for index, (_, line) in final.items()
        if index not in lost and result[line] in said
    }
    # A reflection is lost at the first node that read it or, where any covers it, at the highest
    # that does: of what is written here, the last stays.
    lost_at = dict.fromkeys(lost, (0, 0) if lessons.nodes else (1, 0))
    for node in sorted(lessons.nodes, key=lambda node: (-node.level, -node.node)):
        lost_at.update(dict.fromkeys(lost.intersection(node.sources), (node.level, node.node)))
    for node in sorted(lessons.nodes, key=lambda node: (node.level, -node.node)):
        found = covered([index for index in node.sources if index in lost], node.lessons)
        lost_at.update(
            {
                index: (node.level, node.node)
                for index, (value, _) in found.items()
                if value >= _THRESHOLD
            }
        )
    return tuple(
        Retained(
            index,
            value,
            index not in lost,
            lost_at.get(index),
            teaches(feedback[index]),
            lesson.get(index),
        )
        for index, (value, _) in final.items()
    )


def _taught(
    nodes: Sequence[NodeOutput], records: Mapping[int, str], place: Mapping[str, int]
) -> dict[int, list[int]]:
    """Return the places of the level-1 lines that tell what each reflection teaches."""
    taught: dict[int, list[int]] = {index: [] for index in records}
    position = {index: number for number, index in enumerate(records)}
    # The other way round than in the result: a line is short, and what counts is how much of it
    # comes from a record.
    origin = Coverage([*records.values(), *place])
    for node in nodes:
        readers = [index for index in node.sources if index in records]
        if node.level != 1 or not node.lessons or not readers:
            continue
        told = [place[line] for line in node.lessons]
        near = origin.of(
            [len(records) + line for line in told], [position[index] for index in readers]
        )
        own = np.where(near >= _bar(near)[:, None], near, 0.0)
        for index, line, value in zip(readers, own.argmax(axis=0), own.max(axis=0), strict=True):
            if value > 0:
                taught[index].append(told[line])
    return taught


def _bar(near: Matrix) -> Matrix:
    """Return, per line, the share of it that a record must hold to be what the line is about.

    A line tells a record's lesson in words of its own, so little of it may stand in the record;
    what tells its origin is that far less stands in the other records.
    """
    closest = _SHARE * near.max(axis=1)
    others = [row[row < bar] for row, bar in zip(near, closest, strict=True)]
    typical = np.array([np.median(row) if row.size else np.inf for row in others])
    bar: Matrix = np.maximum(closest, np.minimum(_THRESHOLD, np.maximum(_LEAST, _TIMES * typical)))
    return bar


def _by_index(reflections: Sequence[Reflection]) -> tuple[dict[int, str], dict[int, str]]:
    """Return record text and feedback by index, ascending, parts of one record together."""
    records: dict[int, str] = {}
    feedback: dict[int, str] = {}
    for reflection in sorted(reflections, key=lambda one: (one.index, one.part)):
        own, before = feedback_text(reflection)[:_MOST_CHARS], feedback.get(reflection.index, "")
        # A short feedback stands in every part.
        feedback[reflection.index] = before if own in before else f"{before} {own}".strip()
        text = " ".join(texts_in(reflection.record))[:_MOST_CHARS]
        records[reflection.index] = f"{records.get(reflection.index, '')} {text}".strip()
    return records, feedback


def _lines(lessons: Lessons) -> list[str]:
    """Return the lines of a result: its lessons, and a rewritten text's lines and sentences, each
    once.
    """
    return list(
        dict.fromkeys(
            [
                *(lesson.text.strip() for lesson in lessons.lessons),
                *text_lines(lessons.rewrite or ""),
            ]
        )
    )


def text_lines(text: str) -> list[str]:
    """Return a text's lines and their sentences, each once."""
    lines = [part for line in text.splitlines() for part in (line, *_SENTENCE.split(line))]
    return list(dict.fromkeys(line.strip() for line in lines if line.strip()))


def teaches(feedback: str) -> bool:
    """Whether three words of a feedback are neither numbers nor part of a mere verdict ("Wrong:
    expected 3, got 4").

    The list of verdict words is English; in other languages every feedback of three words counts.
    """
    words = {word for word in normalised(feedback).split() if word.isalnum()}
    return (
        len([word for word in words if word not in _VERDICT and not _NUMBER.search(word)])
        >= _FEWEST_WORDS
    )


class Coverage:
    """Says how much of each text stands in each other one, from 0 to 1: offline and deterministic.

    Texts are compared as sets of character 5-grams of their lower-case words, so that forms of one
    word agree and no language is assumed. A gram weighs log(1 + (N + 20) / f), f being how many of
    the N different texts hold it: what all of them say ("the question asks for") counts little, and
    what one of them says counts much. With a and b the weights of text and line and c what they
    share, the value is the larger of c / a, the share of the text that the line holds (so a merged
    line still covers each of its parts), and c / √(ab), which a short line cut out of a long text
    can reach.

    It sees words, not meaning: a lesson told in other words counts as lost. All texts that will be
    compared are given first, and asked for by their places.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        plain = [normalised(text) for text in texts]
        distinct = {text: number for number, text in enumerate(dict.fromkeys(plain))}
        self._same = np.array([distinct[text] for text in plain], np.intp)
        self._empty = np.array([not text for text in distinct], bool)
        held = ngram_counts(list(distinct), _SIZES, _BUCKETS).astype(np.float64)
        held.data[:] = 1.0
        holders = np.maximum(np.bincount(held.indices, minlength=_BUCKETS), 1)
        self._held = held
        self._weighted = held.copy()
        self._weighted.data = np.log1p((len(distinct) + _UNSEEN) / holders)[held.indices]
        self._totals = np.asarray(self._weighted.sum(axis=1)).reshape(-1)
        self._short = np.diff(held.indptr) < _FEWEST_GRAMS

    def of(self, texts: Sequence[int], lines: Sequence[int]) -> Matrix:
        """Return how much of each text stands in each line, one row a text."""
        rows, columns = self._same[list(texts)], self._same[list(lines)]
        shared = np.asarray((self._weighted[rows] @ self._held[columns].T).todense())
        own, other = self._totals[rows, None], self._totals[None, columns]
        within = _share(shared, np.where(self._short[rows, None], 0.0, own))
        mutual = _share(shared, np.where(self._short[None, columns], 0.0, np.sqrt(own * other)))
        found: Matrix = np.clip(np.maximum(within, mutual), 0.0, 1.0)
        # Equal texts are equal however short they are.
        found[(rows[:, None] == columns[None, :]) & ~self._empty[rows, None]] = 1.0
        return found

    def best(self, texts: Sequence[int], lines: Sequence[int]) -> tuple[Matrix, NDArray[np.intp]]:
        """Return the most of each text that stands in any of the lines, and which of them that
        is.
        """
        found, which = np.zeros(len(texts)), np.zeros(len(texts), np.intp)
        step = max(1, _CELLS // max(len(lines), 1))
        for start in range(0, len(texts) if lines else 0, step):
            near = self.of(texts[start : start + step], lines)
            found[start : start + step], which[start : start + step] = (
                near.max(axis=1),
                near.argmax(axis=1),
            )
        return found, which


def _share(shared: Any, whole: Any) -> Matrix:
    return np.divide(
        shared, whole, out=np.zeros_like(shared), where=np.broadcast_to(whole > 0, shared.shape)
    )
