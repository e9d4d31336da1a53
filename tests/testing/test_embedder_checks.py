from __future__ import annotations

import itertools
from typing import ClassVar

import numpy as np
import pytest

from combee_dspy.diversity import CharNgrams, Embedder
from combee_dspy.testing import ConformanceError, checks_for
from combee_dspy.testing.checks import embedders

RIGHT = CharNgrams(dimensions=256)


def embedder(embed, threshold=None):
    methods = {"name": "test", "__doc__": "An embedder.", "embed": lambda self, texts: embed(texts)}
    return type("Test", (Embedder,), {**methods, "threshold": lambda self: threshold})()


def right(texts):
    return RIGHT.embed(texts)


def short_on_text(texts):
    if not all(text.strip() for text in texts):
        raise ValueError("empty input")
    return right(texts)


def not_a_number(texts):
    rows = right(texts)
    rows[[not text.strip() for text in texts]] = np.nan
    return rows


def half_long(texts):
    rows = right(texts)
    rows[[len(text) > 1000 for text in texts]] *= 0.5
    return rows


def by_position(texts):
    return right([f"{number} {text}" for number, text in enumerate(texts)])


def always_backwards(texts):
    return right(texts[::-1])


def lengths_only(texts):
    return np.array([[np.cos(len(text)), np.sin(len(text))] for text in texts], dtype=np.float32).reshape(-1, 2)


def cleared(texts):
    rows = right(texts)
    texts.clear()
    return rows


counter = itertools.count()


def turning(texts):
    rows = right(texts)
    return np.roll(rows, next(counter), axis=1)


WRONG = [
    (embedder(lambda texts: right(texts).tolist()), "check_returns_one_unit_row_a_text", "list"),
    (embedder(lambda texts: right(texts)[:1]), "check_returns_one_unit_row_a_text", "(1, 256)"),
    (embedder(lambda texts: right(texts).astype(float)), "check_returns_one_unit_row_a_text", "float64"),
    (embedder(lambda texts: right(texts) * 2), "check_returns_one_unit_row_a_text", "lengths"),
    (embedder(lambda texts: np.zeros(0)), "check_no_texts_give_no_rows", "(0,)"),
    (embedder(lambda texts: np.stack([right([text])[0] for text in texts])), "check_no_texts_give_no_rows", "raised"),
    (embedder(short_on_text), "check_takes_any_text", "empty input"),
    (embedder(not_a_number), "check_takes_any_text", "finite: False"),
    (embedder(half_long), "check_takes_any_text", "0.49999"),
    (embedder(by_position), "check_a_text_has_one_vector", "one by one"),
    (embedder(always_backwards), "check_a_text_has_one_vector", "apart"),
    (embedder(lengths_only), "check_likeness_is_found", "against"),
    (embedder(turning), "check_threads_may_share_it", "apart"),
    (embedder(cleared), "check_leaves_its_texts_alone", "changed"),
    (embedder(right, threshold=1), "check_its_threshold_is_one", "1"),
    (embedder(right, threshold="0.9"), "check_its_threshold_is_one", "'0.9'"),
]


@pytest.mark.parametrize("check", embedders.CHECKS, ids=lambda c: c.__name__)
def test_a_right_embedder_passes(check):
    check(embedder(right, threshold=0.7))


@pytest.mark.parametrize(("strategy", "check", "says"), WRONG)
def test_wrong_embedders_fail_with_a_message_that_teaches(strategy, check, says):
    with pytest.raises(ConformanceError, match=r"expected: (.|\n)+happened: (.|\n)+to mend: ") as caught:
        getattr(embedders, check)(strategy)
    assert says in str(caught.value)


def test_every_embedder_check_has_a_strategy_that_fails_it():
    assert {check.__name__ for check in embedders.CHECKS} == {check for _, check, _ in WRONG}


def test_the_kit_runs_them():
    class Mine(Embedder):
        """Hashed n-grams."""

        name: ClassVar[str] = "mine"

        def embed(self, texts):
            return right(texts)

    assert set(embedders.CHECKS) <= set(checks_for(Mine()))
