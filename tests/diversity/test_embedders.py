"""Embedders: hashed n-grams, what DSPy knows, and the measured threshold."""

from typing import ClassVar

import dspy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from combee_dspy.diversity import CharNgrams, DSPyEmbedder, Embedder, calibrate_threshold, unit_rows
from combee_dspy.exceptions import ArgumentError, ArgumentTypeError, ArgumentValueError

TEXTS = st.lists(st.text(max_size=60), min_size=1, max_size=5)
BUCKETS = {17: -1.0, 34: 1.0, 43: -1.0}
RATIOS = (
    ("gross margin", "gross profit", "revenue"),
    ("operating margin", "operating income", "revenue"),
    ("net margin", "net income", "revenue"),
    ("return on equity", "net income", "equity"),
    ("return on assets", "net income", "total assets"),
    ("the current ratio", "current assets", "current liabilities"),
    ("the quick ratio", "liquid assets", "current liabilities"),
    ("leverage", "debt", "equity"),
    ("asset turnover", "sales", "assets"),
    ("interest cover", "operating profit", "interest expense"),
)
LESSONS = [
    *(f"For {name}, divide {part} by {whole}." for name, part, whole in RATIOS),
    "Round the result only at the end.",
    "Log in again when the token has expired.",
    "Take figures from the table before the running text.",
    "Use the label that names the instrument, never its issuer.",
    "Ask for the year where the question leaves it open.",
    "Write percentages with a sign.",
    "Amounts in brackets are losses.",
    "Resolve pronouns to the person named last.",
]


def likeness(first, second):
    rows = CharNgrams().embed([first, second])
    return float(rows[0] @ rows[1])


@settings(max_examples=40, deadline=None)
@given(TEXTS)
def test_rows_have_length_one_or_hold_nothing_and_are_the_same_in_any_batch(texts):
    rows = CharNgrams().embed(texts)
    assert (rows.shape, rows.dtype) == ((len(texts), 2048), np.float32)
    lengths = np.linalg.norm(rows.astype(float), axis=1)
    assert np.all((np.abs(lengths - 1) < 1e-5) | (lengths == 0))
    assert all(
        np.array_equal(row, CharNgrams().embed([text])[0])
        for row, text in zip(rows, texts, strict=True)
    )


def test_case_and_white_space_do_not_count_and_words_do():
    assert likeness("Round the  result.", "round\nTHE result.") == pytest.approx(1)
    assert likeness("Round the result.", "Always round the result.") > 0.7
    assert abs(likeness("Round the result.", "Log in again when a token expires.")) < 0.15


def test_the_buckets_are_the_same_on_every_machine_():
    row = CharNgrams(sizes=(3,), dimensions=64).embed(["abc"])[0]
    assert {int(bucket): float(np.sign(row[bucket])) for bucket in np.flatnonzero(row)} == BUCKETS


def test_only_the_default_parameters_have_a_measured_threshold():
    assert (
        CharNgrams().threshold()
        == CharNgrams(sizes=[3, 4, 5]).threshold()
        == CharNgrams.MEASURED_THRESHOLD
    )
    assert CharNgrams(dimensions=64).threshold() is None
    assert CharNgrams(sizes=(2, 3)).threshold() is None


@pytest.mark.parametrize("params", [{"sizes": ()}, {"sizes": (17,)}, {"dimensions": 15}])
def test_wrong_parameters_are_refused_by_name(params):
    with pytest.raises(ArgumentError, match=f"CharNgrams.{next(iter(params))}"):
        CharNgrams(**params)


def test_unit_rows_scales_huge_and_tiny_values():
    rows = unit_rows([[3e200, 4e200], [3e-200, 4e-200], [0, 0]], 3)
    assert np.allclose(rows, [[0.6, 0.8], [0.6, 0.8], [0, 0]])


@pytest.mark.parametrize(
    "values",
    [[[1.0]], [1.0, 2.0], [[1.0], [float("nan")]], [[], []], [["a"], ["b"]], [[1.0], [1.0, 2.0]]],
)
def test_what_is_no_matrix_of_two_rows_is_refused(values):
    with pytest.raises(ArgumentValueError, match="vectors"):
        unit_rows(values, 2)


def lengths(texts):
    return [[float(len(text)), 1.0] for text in texts]


@pytest.mark.parametrize(
    "model",
    ["own_model:lengths", lengths, dspy.Embedder(lengths, caching=False)],
    ids=["path", "function", "dspy"],
)
def test_each_way_of_naming_a_model_embeds(model, tmp_path, monkeypatch):
    (tmp_path / "own_model.py").write_text(
        "def lengths(texts): return [[float(len(text)), 1.0] for text in texts]"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert np.allclose(DSPyEmbedder(model).embed(["abc", "a"]), unit_rows([[3, 1], [1, 1]], 2))


def test_texts_go_in_batches_and_blank_ones_are_no_empty_input():
    batches = []

    def model(texts):
        batches.append(texts)
        return [[3.0, 4.0]] * len(texts)

    embedder = DSPyEmbedder(model, batch_size=2)
    assert embedder.embed([]).shape[0] == 0
    assert np.allclose(embedder.embed(["a", " \n", ""]), [[0.6, 0.8]] * 3)
    assert batches == [["a", "."], ["."]]


def test_a_hosted_model_goes_by_dspy_with_its_batch_size(monkeypatch):
    hosted = []

    class Hosted:
        def __init__(self, model, batch_size):
            hosted.append((model, batch_size))

        def __call__(self, texts):
            return np.ones((len(texts), 2))

    monkeypatch.setattr(dspy, "Embedder", Hosted)
    assert DSPyEmbedder("openai/text-embedding-3-small", batch_size=5).embed(["a"]).shape == (1, 2)
    assert hosted == [("openai/text-embedding-3-small", 5)]


@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({"model": 7}, ArgumentTypeError),
        ({"model": "no_such_module_here:function"}, ArgumentValueError),
        ({"model": lengths, "batch_size": 0}, ArgumentValueError),
        ({"model": lambda texts: [[float("nan")], [1.0]]}, ArgumentValueError),
    ],
)
def test_a_model_that_cannot_be_used_is_refused(params, error):
    with pytest.raises(error):
        DSPyEmbedder(**params).embed(["a", "b"])


class Raised(Embedder):
    """Hashed n-grams in which everything has something in common, as with many models."""

    name: ClassVar[str] = "raised"

    def embed(self, texts):
        rows = np.hstack([CharNgrams().embed(texts), np.full((len(texts), 1), 1.5)])
        return unit_rows(rows, len(texts))


class Flat(Embedder):
    """Every text is alike."""

    name: ClassVar[str] = "flat"

    def embed(self, texts):
        return np.ones((len(texts), 1), dtype=np.float32)


def test_each_embedder_gets_the_threshold_that_refuses_equally_few():
    result = calibrate_threshold(CharNgrams(), LESSONS)
    assert 0.3 < result < 1
    assert calibrate_threshold(CharNgrams(), LESSONS) == result
    assert calibrate_threshold(Raised(), LESSONS) > result + 0.05


@pytest.mark.parametrize(
    ("embedder", "lessons", "pairs"),
    [
        (CharNgrams(), LESSONS[:9], 400),
        (CharNgrams(), LESSONS[:1] * 50, 400),
        (CharNgrams(), LESSONS, 50),
        (Flat(), LESSONS, 400),
    ],
)
def test_what_cannot_be_calibrated_is_refused(embedder, lessons, pairs):
    with pytest.raises(ArgumentValueError):
        calibrate_threshold(embedder, lessons, pairs=pairs)
