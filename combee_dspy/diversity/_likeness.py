"""Measures how alike two candidates are. Pure."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from itertools import pairwise

import numpy as np

from combee_dspy.diversity._embedders import Vectors
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.operators import decode_demonstrations, decode_fields
from combee_dspy.reflections import normalised

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
