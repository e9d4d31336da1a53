from __future__ import annotations

import dspy
import numpy as np
import pytest

from combee_dspy.diversity import CharNgrams, DSPyEmbedder, character_ngrams
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError

PATH = "combee_dspy.diversity:character_ngrams"


@pytest.mark.parametrize(
    "model", [PATH, character_ngrams, dspy.Embedder(character_ngrams, caching=False)], ids=["path", "function", "dspy"]
)
def test_each_way_of_naming_a_model_embeds(model):
    texts = ["Round the result.", "Log in again."]
    assert np.allclose(DSPyEmbedder(model).embed(texts), CharNgrams().embed(texts), atol=1e-6)


def test_rows_are_scaled_and_asked_for_in_batches():
    sizes = []

    def model(texts):
        sizes.append(len(texts))
        return [[3.0, 4.0]] * len(texts)

    rows = DSPyEmbedder(model, batch_size=2).embed(["a", "b", "c"])
    assert np.allclose(rows, [[0.6, 0.8]] * 3)
    assert rows.dtype == np.float32
    assert sizes == [2, 1]


def test_a_hosted_model_goes_by_dspy_with_its_batch_size(monkeypatch):
    made = []

    class Hosted:
        def __init__(self, model, batch_size):
            made.append((model, batch_size))

        def __call__(self, texts):
            return np.ones((len(texts), 2))

    monkeypatch.setattr(dspy, "Embedder", Hosted)
    assert DSPyEmbedder("openai/text-embedding-3-small", batch_size=5).embed(["a"]).shape == (1, 2)
    assert made == [("openai/text-embedding-3-small", 5)]


def test_no_texts_ask_nobody_and_blank_ones_are_no_empty_input():
    asked = []

    def model(texts):
        asked.extend(texts)
        return np.ones((len(texts), 2))

    assert DSPyEmbedder(model).embed([]).shape[0] == 0
    DSPyEmbedder(model).embed(["", " \n", "a"])
    assert asked == [".", ".", "a"]


@pytest.mark.parametrize(
    ("params", "argument", "error"),
    [
        ({"model": 7}, "model", ArgumentTypeError),
        ({"model": "no_such_module_here:function"}, "model", ArgumentValueError),
        ({"model": "combee_dspy.diversity:no_such_function"}, "model", ArgumentValueError),
        ({"model": "combee_dspy.streams:__doc__"}, "model", ArgumentTypeError),
        ({"model": PATH, "batch_size": 0}, "batch_size", ArgumentValueError),
        ({"model": PATH, "batch_size": "many"}, "batch_size", ArgumentTypeError),
    ],
)
def test_wrong_parameters_are_refused_before_anything_is_embedded(params, argument, error):
    with pytest.raises(error) as caught:
        DSPyEmbedder(**params).validate()
    assert caught.value.argument == argument


@pytest.mark.parametrize("returned", [[[1.0]], [[float("nan")], [1.0]], "vectors"])
def test_a_model_that_returns_no_matrix_is_refused(returned):
    with pytest.raises((ArgumentValueError, ValueError)):
        DSPyEmbedder(lambda texts: returned).embed(["a", "b"])
