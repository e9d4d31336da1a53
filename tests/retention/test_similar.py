from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.reflections import normalised
from combee_dspy.retention import gram_similarity
from combee_dspy.retention._grams import bags_of
from combee_dspy.retention._similar import PreparedGrams

# Few letters, so that texts share grams; symbols, a letter beyond two bytes and a character that ends texts in C.
WORDS = st.sampled_from(
    ["round", "rounded", "to", "two", "a", "ab", "net", "present", "value", "=", "é", "税", "𝒳", "\0"]
)
TEXTS = st.lists(st.lists(WORDS, max_size=9).map(" ".join), max_size=12)


def grams(text: str) -> frozenset[str]:
    padded = f" {normalised(text)} "
    return frozenset(padded[i : i + 5] for i in range(max(1, len(padded) - 4))) if len(padded) > 2 else frozenset()


def reference(texts: list[str], lines: list[str]) -> list[list[float]]:
    """The measure as its description says it, one pair at a time."""
    distinct = {grams(text) for text in (*texts, *lines)}
    held = Counter(gram for bag in distinct for gram in bag)

    def weight(bag: frozenset[str]) -> float:
        return sum(math.log1p((len(distinct) + 20) / held[gram]) for gram in bag)

    def value(text: frozenset[str], line: frozenset[str]) -> float:
        if not text or not line:
            return 0.0
        if text == line:
            return 1.0
        shared = weight(text & line)
        within = shared / weight(text) if len(text) >= 5 else 0.0
        mutual = shared / math.sqrt(weight(text) * weight(line)) if len(line) >= 5 else 0.0
        return min(max(within, mutual), 1.0)

    return [[value(grams(text), grams(line)) for line in lines] for text in texts]


@given(TEXTS, TEXTS)
def test_every_value_is_what_the_description_says(texts: list[str], lines: list[str]) -> None:
    found = gram_similarity(texts, lines)
    assert found.shape == (len(texts), len(lines))
    assert found.tolist() == [pytest.approx(row, abs=1e-9) for row in reference(texts, lines)]


@given(TEXTS, TEXTS.filter(bool), st.data())
def test_the_best_value_is_the_highest_of_all(texts: list[str], lines: list[str], data: st.DataObject) -> None:
    prepared = PreparedGrams(texts, lines)
    chosen = data.draw(st.lists(st.integers(0, len(lines) - 1), min_size=1), "lines")
    columns = np.array(chosen)
    rows = np.arange(len(texts))
    highest = [max(row[column] for column in chosen) for row in reference(texts, lines)]
    assert prepared.best(rows, columns).tolist() == pytest.approx(highest, abs=1e-6)
    assert prepared.block(rows, columns).tolist() == [
        pytest.approx([row[column] for column in chosen], abs=1e-9) for row in reference(texts, lines)
    ]


def test_many_texts_are_compared_in_parts_and_chunks_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"round the value of case {i % 37} to {i % 5} decimals and say so" for i in range(120)]
    lines = [f"values of case {i} are rounded to {i % 3} decimals" for i in range(40)]
    rows, columns = np.arange(120), np.arange(40)
    whole = PreparedGrams(texts, lines).best(rows, columns)
    monkeypatch.setattr("combee_dspy.retention._similar._CELLS", 7 * 40)
    monkeypatch.setattr("combee_dspy.retention._grams._CHUNK", 100)
    assert PreparedGrams(texts, lines).best(rows, columns).tolist() == pytest.approx(whole.tolist(), abs=1e-12)
    assert whole.tolist() == pytest.approx([max(row) for row in reference(texts, lines)], abs=1e-6)


def test_an_alphabet_too_large_for_exact_numbers_still_tells_texts_apart() -> None:
    letters = "".join(chr(code) for code in range(0x4E00, 0x4E00 + 8_000))
    texts = [letters[first : first + 50] for first in range(0, 8_000, 50)]
    bags = bags_of([*texts, texts[3]])
    assert bags.size == len(frozenset().union(*map(grams, texts)))
    assert len(set(bags.same.tolist())) == len(texts)
    assert bags.same[3] == bags.same[-1]
