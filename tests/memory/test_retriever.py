"""Lookup by words."""

from __future__ import annotations

from typing import ClassVar

import pytest

from combee_dspy.diversity import CharNgrams, Embedder
from combee_dspy.memory import BM25, Embeddings
from combee_dspy.strategies import parameters

TEXTS = (
    "Round every amount to two decimals.",
    "Parcels from the north take code N7.",
    "Letters take code L2.",
    "北からの小包はコード七。",
)


@pytest.mark.parametrize(
    ("query", "nearest"),
    [
        ("Which code do PARCELS from the north take?", 1),
        ("A letter, or rather: letters!", 2),
        ("How many decimals?", 0),
        ("小包が北から来た", 3),
    ],
)
def test_the_text_that_shares_telling_words_comes_first(query, nearest):
    assert BM25().index(TEXTS)(query, 4)[0] == nearest


@pytest.mark.parametrize("query", ["", "?!", "zebra"])
def test_what_shares_no_word_is_not_returned(query):
    assert list(BM25().index(TEXTS)(query, 4)) == []
    assert list(BM25().index(())(query, 4)) == []


def test_equal_scores_go_by_position():
    lookup = BM25().index([f"code for animal {number}" for number in range(50)])
    assert list(lookup("code", 5)) == [0, 1, 2, 3, 4]
    assert list(lookup("code 49", 2)) == [49, 0]


@parameters
class Counting(Embedder):
    """Notes which texts are sent to it."""

    name: ClassVar[str] = "counting"
    sent: ClassVar[list[str]] = []

    def embed(self, texts):
        self.sent.extend(texts)
        return CharNgrams().embed(texts)


def test_no_text_is_embedded_twice():
    for texts in (TEXTS[:3], TEXTS, TEXTS):
        lookup = Embeddings(Counting()).index(texts)
        assert lookup("Which code do letters take?", 1) == [2]
    assert Counting.sent == [*TEXTS[:3], "Which code do letters take?", TEXTS[3]]
