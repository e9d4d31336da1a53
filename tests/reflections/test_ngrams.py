from __future__ import annotations

import unicodedata

from hypothesis import given, settings
from hypothesis import strategies as st

from combee_dspy.reflections import ngram_counts

TEXTS = st.lists(st.text(max_size=30), max_size=8)


@given(texts=TEXTS, signed=st.booleans())
@settings(deadline=None)
def test_every_gram_of_a_text_is_counted_whatever_else_is_there(texts, signed):
    counts = ngram_counts(texts, (3, 4), 256, signed=signed)
    assert counts.shape == (len(texts), 256)
    for text, row in zip(texts, counts.toarray(), strict=True):
        assert (ngram_counts([text], (3, 4), 256, signed=signed).toarray() == row).all()
        if not signed:
            words = len(" ".join(_folded(text)))
            assert row.sum() == (max(words, 0) + max(words - 1, 0) if words else 0)


def _folded(text):
    return unicodedata.normalize("NFKC", text).casefold().split()


def test_case_and_white_space_do_not_count_and_words_do():
    first, same, other = ngram_counts(["Give  a\nUnit", "give a unit", "take a unit"], (3,), 2**18)
    assert (first != same).nnz == 0
    assert (first != other).nnz > 0
    # A blank on both sides: "give" alone shares its beginning, not its end, with "given".
    give, given_ = ngram_counts(["give", "given"], (3,), 2**18)
    assert give.minimum(given_).sum() == 3


def test_hashes_are_the_same_on_every_machine():
    assert ngram_counts(["ab"], (3, 4), 2048).indices.tolist() == [915, 1442, 2026]
    assert ngram_counts(["ab"], (3, 4), 2048, signed=True).data.tolist() == [1.0, 1.0, -1.0]
