"""Checks for embedders: texts in, unit vectors out."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from combee_dspy.diversity import Embedder
from combee_dspy.testing._kit import attempt, expect

_TEXTS = (
    "Round the result to two decimals.",
    "Give percentages as plain numbers without the percent sign.",
    "A forgotten password belongs to account access.",
    "Prüfe die Einheit, bevor du rechnest.",
    "単位を確かめてから計算する。",
    "[example] question: What is 7 times 8?; answer: 56",
)
_ODD = ("", " \n\t ", ".", "x", "😀", "a\x00b", "word " * 4000)
_NEAR = 1e-3
_MEND = "return combee_dspy.diversity.unit_rows(matrix, len(texts))"


def _embed(strategy: Embedder, texts: Sequence[str]) -> Any:
    expected = (
        f"`embed` returns for {len(texts)} texts, the first {texts[0][:20] if texts else ''!r}"
    )
    return attempt(
        lambda: strategy.embed(texts),
        expected,
        "any text can come out of an LM: empty, long, in any script",
    )


def check_returns_one_unit_row_a_text(strategy: Embedder) -> None:
    """Only vectors of length 1 have inner products that are similarities.

    There may also be nothing to compare yet.
    """
    texts = list(_TEXTS)
    rows = _embed(strategy, texts)
    expect(
        texts == list(_TEXTS), "the list of texts unchanged", "it was changed", "build a new list"
    )
    right = (
        isinstance(rows, np.ndarray)
        and rows.ndim == 2
        and rows.shape[0] == len(_TEXTS)
        and rows.shape[1] > 0
    )
    happened = f"{type(rows).__name__} of shape {getattr(rows, 'shape', None)}"
    expect(right, f"an array of shape ({len(_TEXTS)}, d)", happened, _MEND)
    expect(rows.dtype == np.float32, "float32", f"{rows.dtype}", _MEND)
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
    expect(
        bool((np.abs(lengths - 1) <= _NEAR).all()), "rows of length 1", f"lengths {lengths}", _MEND
    )
    shape = getattr(_embed(strategy, []), "shape", None)
    expect(
        shape is not None and len(shape) == 2 and shape[0] == 0,
        "shape (0, d) for no texts",
        f"{shape}",
        _MEND,
    )


def check_takes_any_text(strategy: Embedder) -> None:
    """Candidates hold whatever a language model wrote."""
    rows = np.asarray(_embed(strategy, list(_ODD)))
    finite = rows.shape[0] == len(_ODD) and bool(np.isfinite(rows).all())
    expect(
        finite,
        f"{len(_ODD)} rows of finite numbers",
        f"shape {rows.shape}",
        "give an empty text a row of zeros",
    )
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
    wrong = [float(value) for value in lengths if abs(value - 1) > _NEAR and value > _NEAR]
    expect(not wrong, "rows of length 1, or 0", f"lengths {wrong}", _MEND)


def check_a_text_has_one_vector(strategy: Embedder) -> None:
    """A text has one vector, in any batch, order and thread."""
    together = np.asarray(_embed(strategy, list(_TEXTS)))
    with ThreadPoolExecutor(4) as pool:
        threads = list(pool.map(lambda text: _embed(strategy, [text]), _TEXTS))
    others = {
        "one by one": np.concatenate([_embed(strategy, [text]) for text in _TEXTS]),
        "in another order": np.asarray(_embed(strategy, list(reversed(_TEXTS))))[::-1],
        "from four threads": np.concatenate(threads),
    }
    mend = (
        "turn sampling and dropout off; keep nothing between calls; return rows in the order of the"
        " texts"
    )
    for how, other in others.items():
        apart = float(np.abs(together - other).max())
        happened = f"entries up to {apart:.4f} apart"
        expect(apart <= _NEAR, f"the same vector for the same text, {how}", happened, mend)


def check_likeness_is_found(strategy: Embedder) -> None:
    """What is nearly the same text must be nearer than another text."""
    rows = np.asarray(
        _embed(strategy, [*_TEXTS[:3], *(f"Remember: {text.lower()}" for text in _TEXTS[:3])])
    )
    similarity = rows @ rows.T
    for number in range(3):
        others = [float(similarity[number, other]) for other in range(3) if other != number]
        near = float(similarity[number, number + 3])
        expected = f"{_TEXTS[number]!r} nearer to its own rewording than to other lessons"
        expect(
            near > max(others),
            expected,
            f"{near:.3f} against {max(others):.3f}",
            "do the vectors mean something?",
        )


def check_its_threshold_is_one(strategy: Embedder) -> None:
    """A threshold that was written down goes into every run."""
    threshold = attempt(
        strategy.threshold, "`threshold` returns", "return a float, or None where none was measured"
    )
    right = threshold is None or (isinstance(threshold, float) and 0 < threshold < 1)
    mend = "measure it: combee_dspy.diversity.calibrate_threshold(embedder, lessons)"
    expect(right, "a float in (0, 1), or None", f"{threshold!r}", mend)
