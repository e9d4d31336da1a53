"""Measures how alike two candidates are, refuses near copies, and measures the threshold."""

from __future__ import annotations

import json
import re
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise

import numpy as np

from combee_dspy.diversity._embedders import Embedder, Vectors, unit_rows
from combee_dspy.diversity._options import Diversity
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.operators import decode_demonstrations, decode_fields
from combee_dspy.records import Refusal
from combee_dspy.reflections import normalised
from combee_dspy.streams import derive

Statements = Mapping[tuple[str, str], str]
"""What a candidate says, in order: its words as written, by component and normal form."""

_BULLET = re.compile(r"^\s*(?:[-*•+>#]+|\(?\d{1,3}[.):])\s+")
_SENTENCE_END = re.compile(
    r"(?<=[.!?;])(?<!e\.g\.)(?<!i\.e\.)(?<!\bvs\.)(?<!\bcf\.)\s+|(?<=[。！？])"
)
_NEGATION_WORDS = "no not never none nor cannot dont doesnt isnt arent wont shouldnt mustnt avoid"
_NEGATIONS = frozenset(_NEGATION_WORDS.split())
_NUMBER_WORDS = "zero one two three four five six seven eight nine ten"
_NUMBERS = {word: str(number) for number, word in enumerate(_NUMBER_WORDS.split())}
_OPERATORS = frozenset("=+*/^<>≤≥×÷−") | {"!="}
_UNITS = frozenset("%$€£")
_REMEMBERED = 8_192
_FEWEST = 16
_FALSE_REFUSALS = 0.01
_MOST_SHARED = 40
_MOST_NEW = 4


def statements(texts: Mapping[str, str]) -> Statements:
    """Return the statements of a candidate, by component and first appearance.

    A statement is a sentence, a bullet's sentence, a demonstration, or a sentence of a field's
    description. What differs in punctuation, case, white space or the sign of a bullet is one
    statement; the same sentence in two components makes two, since content that was moved is a
    change. Demonstrations in another order say the same.
    """
    by_form: dict[tuple[str, str], str] = {}
    for component in sorted(texts):
        for sentence in _sentences(texts[component]):
            if form := normalised(sentence):
                by_form.setdefault((component, form), sentence)
    return by_form


def _sentences(text: str) -> list[str]:
    lines = text.splitlines()
    try:
        if text.startswith('{"demonstrations":'):
            rows = [
                {"inputs": row.inputs, "outputs": row.outputs}
                for row in decode_demonstrations(text)
            ]
            return sorted(json.dumps(row, sort_keys=True, ensure_ascii=False) for row in rows)
        if text.startswith('{"fields":'):
            described = decode_fields(text)
            lines = [
                f"{name}: {line}"
                for name in sorted(described)
                for line in described[name].splitlines()
            ]
    except ArgumentValueError:
        pass  # An instruction may look like anything; then it is compared as a text.
    return [part for line in lines for part in _SENTENCE_END.split(_BULLET.sub("", line).strip())]


def _group(component: str, form: str) -> tuple[str, frozenset[str]]:
    """Return what statements must share to be compared: the component, and what changes a meaning.

    However alike the rest looks, these are numbers, formulas, units, and a negation: embedders
    place "round to two decimals" beside "round to four decimals", a / b beside b / a, and "use"
    beside "do not use". Numbers up to ten count in words too; all negations are one.
    """
    words = ["", *form.split(), ""]
    formulas = {
        f"{before} {word} {after}"
        for (before, word), (_, after) in pairwise(pairwise(words))
        if word in _OPERATORS
    }
    numbers = {
        _NUMBERS.get(word, word)
        for word in words
        if word in _NUMBERS or any(map(str.isdigit, word))
    }
    negation = {"not"} if _NEGATIONS.intersection(words) else set()
    return component, frozenset(formulas | numbers | _UNITS.intersection(words) | negation)


def likeness(
    first: Statements,
    second: Statements,
    vectors: Callable[[Collection[str]], Mapping[str, Vectors]],
) -> float:
    """Return how alike two candidates are, from 0 to 1, the same either way round.

    Candidates grow: a child is its parent and a few lessons more. Embedded whole, it is nearly its
    parent whatever the lessons say. So what both say is left out, and for each statement that only
    one of them makes, the most similar statement of the other is found, by unit vectors of both.
    The least of these figures is the similarity: a candidate is as new as the newest thing it says,
    or no longer says. Statements that differ in a number, a formula or a negation, or stand in
    different components, have similarity 0. Candidates that make the same statements have
    similarity 1, in whatever order.

    Measured on 1,600 pairs of prompts grown from 0 to 40 lessons, as the chance that a reworded
    candidate is found more similar than a new one: 0.997 with hashed n-grams, against 0.983 for the
    mean over the statements, 0.986 where numbers and negations need not agree, and 0.780 for whole
    texts.
    """
    comparisons: list[tuple[list[str], list[str]]] = []
    for mine, theirs in ((first, second), (second, first)):
        near, alone = defaultdict(list), defaultdict(list)
        for key, text in theirs.items():
            near[_group(*key)].append(text)
        for key, text in mine.items():
            if key not in theirs:
                alone[_group(*key)].append(text)
        if any(group not in near for group in alone):
            return 0.0
        comparisons.extend((texts, near[group]) for group, texts in alone.items())
    vector_of = (
        vectors({text for pair in comparisons for texts in pair for text in texts})
        if comparisons
        else {}
    )
    least = 1.0
    for texts, others in comparisons:
        rows, columns = (np.stack([vector_of[text] for text in side]) for side in (texts, others))
        least = min(least, float((rows @ columns.T).max(axis=1).min()))
    return max(least, 0.0)


class Archive:
    """The candidates of a run, to tell a new one from them.

    Deterministic: what it says depends on what was added before, in order, and on nothing else.
    Made once a run; asks the embedder inside :meth:`refuses`, so call it in a worker
    thread, once at a time.

    Raises:
        ArgumentError: The embedder cannot be used, or its threshold is not known.
        PluginError: The embedder cannot be loaded.
    """

    def __init__(self, options: Diversity) -> None:
        self._compared = options.build_embedder()
        self._seen: set[tuple[tuple[str, str], ...]] = set()
        self._recent: deque[Statements] = deque(maxlen=options.recent)
        self._vector_of: dict[str, Vectors] = {}

    def refuses(
        self, texts: Mapping[str, str], parent: Mapping[str, str], near_parent: bool = False
    ) -> Refusal | None:
        """Return why a child is too similar to its parent or an earlier candidate, or ``None``.

        Both are given as text per component, encoded demonstrations and field descriptions among
        them. Where the operator says so (:attr:`combee_dspy.operators.Operator.near_parent`), only
        a repeated text is refused.
        """
        if self._compared is None:
            return None
        embedder, threshold = self._compared
        if self.repeats(texts):
            return Refusal("it repeats a candidate that is there already")
        if near_parent:
            return None
        child = statements(texts)
        others = [statements(parent), *reversed(self._recent)]
        similarities = [likeness(child, other, self._vectors) for other in others]
        similarity, place = max(similarities), similarities.index(max(similarities))
        if similarity <= threshold:
            return None
        whom = f"the candidate {place} before it" if place else "its parent"
        return Refusal(
            f"similarity {similarity:.3f} to {whom} exceeds {threshold:.3f} ({embedder.name})"
        )

    def repeats(self, texts: Mapping[str, str]) -> bool:
        """Return whether a candidate with these statements was added before."""
        return tuple(statements(texts)) in self._seen

    def add(self, texts: Mapping[str, str]) -> None:
        """Add a candidate: the seed and every proposal, in the order of updates and children."""
        added = statements(texts) if self._compared is not None else {}
        if added and tuple(added) not in self._seen:
            self._seen.add(tuple(added))
            self._recent.append(added)

    def _vectors(self, texts: Collection[str]) -> Mapping[str, Vectors]:
        """Return the vector of each text, embedding those that are new in one go."""
        new = sorted(text for text in texts if text not in self._vector_of)
        if new and self._compared is not None:
            if len(self._vector_of) + len(new) > _REMEMBERED:
                self._vector_of = {
                    text: self._vector_of[text] for text in texts if text in self._vector_of
                }
            # Lone surrogates are no Unicode text, and no tokenizer takes them.
            clean = [
                text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in new
            ]
            self._vector_of.update(
                zip(new, unit_rows(self._compared[0].embed(clean), len(new)), strict=True)
            )
        return self._vector_of


def calibrate_threshold(
    embedder: Embedder, lessons: Sequence[str], *, seed: int = 0, pairs: int = 400
) -> float:
    """Measure the threshold at which an embedder refuses 1 % of truly new candidates.

    A similarity of 0.92 is near identity to one embedder and everyday likeness to another. What can
    be held equal is how often a candidate that does say something new is refused all the same. So
    pairs of candidates are built that share up to 40 lessons and differ in one to four; in every
    second pair these are the ones that this very embedder finds most alike, as a proposer writes
    them that has one task to learn. The threshold is the 99 % quantile of their similarities. Each
    lesson is embedded once.

    Args:
        embedder: What is calibrated.
        lessons: At least 16 different ones of the kind that the proposer writes, best your task's
            own.
        seed: Seed of every draw.
        pairs: How many pairs, at least 100.

    Returns:
        A similarity in (0, 1), rounded up to three decimals, for ``Diversity(threshold=…)`` or for
        :meth:`~combee_dspy.diversity.Embedder.threshold` of an embedder that is published.

    Raises:
        ArgumentValueError: There are too few lessons or pairs, or the embedder cannot tell them
            apart.
    """
    different = list(dict.fromkeys(lesson for lesson in lessons if lesson.strip()))
    if len(different) < _FEWEST:
        remedy = f"Give at least {_FEWEST}."
        raise ArgumentValueError(
            "lessons", lessons, f"holds {len(different)} different texts", remedy
        )
    if pairs < 1 / _FALSE_REFUSALS:
        raise ArgumentValueError("pairs", pairs, "is below 100", "A 1 % quantile needs more.")
    vectors = unit_rows(embedder.embed(different), len(different))
    vector_of = dict(zip(different, vectors, strict=True))
    alike = vectors @ vectors.T
    similarities = []
    for number in range(pairs):
        stream = derive(seed, "similarity pairs", number)
        count = stream.choice([1, 1, 2, 3, _MOST_NEW])
        order = stream.sample(range(len(different)), len(different))
        shared = stream.randint(1, min(_MOST_SHARED, len(order) - _MOST_NEW))
        old, new = order[:shared], order[shared:]
        if number % 2:
            new.sort(key=lambda place: -float(alike[place, old].max()))
        before = {("", different[place]): different[place] for place in old}
        new_statements = {("", different[place]): different[place] for place in new[:count]}
        similarities.append(likeness(before, {**before, **new_statements}, lambda texts: vector_of))
    threshold = float(np.ceil(np.quantile(similarities, 1 - _FALSE_REFUSALS) * 1000) / 1000)
    if not 0 < threshold < 1:
        remedy = (
            "It gives different lessons the same vector, or unlike ones nothing in common: use"
            " another embedder."
        )
        raise ArgumentValueError(
            "embedder", embedder, f"gives no usable threshold ({threshold:g})", remedy
        )
    return threshold
