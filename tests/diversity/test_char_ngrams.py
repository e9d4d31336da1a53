from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from combee_dspy.diversity import CharNgrams, character_ngrams, unit_rows
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError

texts = st.text(max_size=60)
BUCKETS = {17: -1.0, 34: 1.0, 43: -1.0}


def likeness(first, second):
    one, other = CharNgrams().embed([first, second])
    return float(one @ other)


@settings(max_examples=60, deadline=None)
@given(st.lists(texts, max_size=6))
def test_rows_have_length_one_or_hold_nothing(given_texts):
    rows = CharNgrams().embed(given_texts)
    assert rows.shape == (len(given_texts), 2048)
    assert rows.dtype == np.float32
    lengths = np.linalg.norm(rows.astype(float), axis=1)
    assert np.all((np.abs(lengths - 1) < 1e-5) | (lengths == 0))
    assert [length > 0 for length in lengths[:1]] == [bool(text.split()) for text in given_texts[:1]]


@settings(max_examples=40, deadline=None)
@given(st.lists(texts, min_size=1, max_size=5))
def test_a_text_has_the_same_vector_in_any_batch(given_texts):
    together = CharNgrams().embed(given_texts)
    assert all(
        np.array_equal(row, CharNgrams().embed([text])[0]) for row, text in zip(together, given_texts, strict=True)
    )


def test_many_texts_are_embedded_like_each_alone():
    many = [f"lesson {number}: divide {number} by {number + 1}" for number in range(1300)]
    rows = CharNgrams().embed(many)
    assert all(np.array_equal(rows[n], CharNgrams().embed([many[n]])[0]) for n in (0, 511, 512, 1299))


def test_case_and_white_space_do_not_count_and_words_do():
    assert likeness("Round the  result.", "round\nTHE result.") == pytest.approx(1)
    assert likeness("Round the result.", "Always round the result.") > 0.7
    assert abs(likeness("Round the result.", "Log in again when a token expires.")) < 0.15


def test_no_ngram_reaches_from_one_text_into_the_next():
    apart = CharNgrams(sizes=(3,)).embed(["ab", "cd"])
    alone = CharNgrams(sizes=(3,)).embed(["cd"])
    assert np.array_equal(apart[1], alone[0])


def test_another_process_with_another_hash_seed_gives_the_same_vectors():
    code = (
        "from combee_dspy.diversity import CharNgrams; import hashlib;"
        "print(hashlib.sha256(CharNgrams().embed(['Round to 2 decimals.', '単位']).tobytes()).hexdigest())"
    )
    found = {
        subprocess.run(  # noqa: S603 - this interpreter and the code above
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_the_buckets_are_the_same_on_every_machine():
    row = CharNgrams(sizes=(3,), dimensions=64).embed(["abc"])[0]
    assert {int(bucket): float(np.sign(row[bucket])) for bucket in np.flatnonzero(row)} == BUCKETS


def test_only_the_default_parameters_have_a_measured_threshold():
    assert CharNgrams().threshold() == CharNgrams.MEASURED_THRESHOLD
    assert CharNgrams(sizes=[3, 4, 5]).threshold() == CharNgrams.MEASURED_THRESHOLD
    assert CharNgrams(dimensions=64).threshold() is None
    assert CharNgrams(sizes=(2, 3)).threshold() is None


@pytest.mark.parametrize(
    ("params", "argument", "error"),
    [
        ({"sizes": ()}, "sizes", ArgumentValueError),
        ({"sizes": (0,)}, "sizes", ArgumentValueError),
        ({"sizes": (17,)}, "sizes", ArgumentValueError),
        ({"sizes": "345"}, "sizes", ArgumentTypeError),
        ({"sizes": (3.0,)}, "sizes", ArgumentTypeError),
        ({"dimensions": 15}, "dimensions", ArgumentValueError),
        ({"dimensions": True}, "dimensions", ArgumentTypeError),
    ],
)
def test_wrong_parameters_are_refused_by_name(params, argument, error):
    with pytest.raises(error) as caught:
        CharNgrams(**params).embed(["text"])
    assert caught.value.argument == argument


def test_the_function_is_the_default_embedder():
    assert np.array_equal(character_ngrams(["a text"]), CharNgrams().embed(["a text"]))


def test_unit_rows_scales_huge_and_tiny_values():
    rows = unit_rows([[3e200, 4e200], [3e-200, 4e-200], [0, 0]], 3)
    assert np.allclose(rows, [[0.6, 0.8], [0.6, 0.8], [0, 0]])


@pytest.mark.parametrize(
    "values", [[[1.0]], [1.0, 2.0], [[1.0], [float("nan")]], [[], []], [["a"], ["b"]], [[1.0], [1.0, 2.0]]]
)
def test_what_is_no_matrix_of_two_rows_is_refused(values):
    with pytest.raises(ArgumentValueError) as caught:
        unit_rows(values, 2)
    assert caught.value.argument == "vectors"
