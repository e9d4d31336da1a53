"""Checks for embedders: texts in, unit vectors out."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from combee_dspy.diversity import Embedder
from combee_dspy.testing.checks._expect import attempt, expect

__all__ = ["CHECKS"]

_TEXTS = (
    "Round the result to two decimals.",
    "Give percentages as plain numbers without the percent sign.",
    "A forgotten password belongs to account access.",
    "Prüfe die Einheit, bevor du rechnest.",
    "単位を確かめてから計算する。",
    "[example] question: What is 7 times 8?; answer: 56",
)
_ODD = ("", " \n\t ", ".", "x", "😀", "a\x00b", "word " * 4000)
_UNIT = 1e-3
_SAME = 1e-3


def _embed(strategy: Embedder, texts: Sequence[str]) -> Any:
    return attempt(
        lambda: strategy.embed(texts),
        f"`embed` returns for {len(texts)} texts, the first {texts[0][:20] if texts else ''!r}",
        "any text can come out of an LM: empty, long, in any script",
    )


def check_returns_one_unit_row_a_text(strategy: Embedder) -> None:
    """An inner product is a similarity only between vectors of length 1."""
    rows = _embed(strategy, list(_TEXTS))
    mend = "return combee_dspy.diversity.unit_rows(matrix, len(texts))"
    expect(
        isinstance(rows, np.ndarray) and rows.ndim == 2 and rows.shape[0] == len(_TEXTS) and rows.shape[1] > 0,
        f"an array of shape ({len(_TEXTS)}, d)",
        f"{type(rows).__name__} of shape {getattr(rows, 'shape', None)}",
        mend,
    )
    expect(rows.dtype == np.float32, "float32", f"{rows.dtype}", mend)
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
    expect(bool((np.abs(lengths - 1) <= _UNIT).all()), "rows of length 1", f"lengths {lengths}", mend)


def check_no_texts_give_no_rows(strategy: Embedder) -> None:
    """A run may have nothing to compare yet."""
    rows = _embed(strategy, [])
    shape = getattr(rows, "shape", None)
    expect(
        shape is not None and len(shape) == 2 and shape[0] == 0,
        "an array of shape (0, d)",
        f"{type(rows).__name__} of shape {shape}",
        "return combee_dspy.diversity.unit_rows([], 0) where there are no texts",
    )


def check_takes_any_text(strategy: Embedder) -> None:
    """Candidates hold whatever a language model wrote."""
    rows = np.asarray(_embed(strategy, list(_ODD)))
    expect(
        rows.shape[0] == len(_ODD) and bool(np.isfinite(rows).all()),
        f"{len(_ODD)} rows of finite numbers",
        f"shape {rows.shape}, finite: {bool(np.isfinite(rows).all())}",
        "give a text that holds nothing a row of zeros; cut long texts as the model does",
    )
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
    wrong = [float(value) for value in lengths if abs(value - 1) > _UNIT and value > _UNIT]
    expect(not wrong, "rows of length 1, or 0", f"lengths {wrong}", "scale with combee_dspy.diversity.unit_rows")


def check_a_text_has_one_vector(strategy: Embedder) -> None:
    """A resumed run must refuse what the run refused, whatever else is in the batch."""
    together = _embed(strategy, list(_TEXTS))
    alone = np.concatenate([_embed(strategy, [text]) for text in _TEXTS])
    backwards = _embed(strategy, list(reversed(_TEXTS)))[::-1]
    for other, how in ((alone, "one by one"), (backwards, "in another order")):
        apart = float(np.abs(np.asarray(together) - np.asarray(other)).max())
        expect(
            apart <= _SAME,
            f"the same vector for the same text, {how}",
            f"entries up to {apart:.4f} apart",
            "turn sampling and dropout off; keep nothing between calls; return rows in the order of the texts",
        )


def check_likeness_is_found(strategy: Embedder) -> None:
    """What is nearly the same text must be nearer than another text."""
    rows = _embed(strategy, [*_TEXTS[:3], *(f"Remember: {text.lower()}" for text in _TEXTS[:3])])
    similarity = np.asarray(rows) @ np.asarray(rows).T
    for number in range(3):
        others = [float(similarity[number, other]) for other in range(3) if other != number]
        near = float(similarity[number, number + 3])
        expect(
            near > max(others),
            f"{_TEXTS[number]!r} nearer to its own rewording than to other lessons",
            f"{near:.3f} against {max(others):.3f}",
            "check that rows come in the order of the texts and that the vectors mean something",
        )


def check_threads_may_share_it(strategy: Embedder) -> None:
    """Children of one iteration are judged at the same time."""
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda text: _embed(strategy, [text]), _TEXTS * 2))
    alone = [_embed(strategy, [text]) for text in _TEXTS * 2]
    apart = max(float(np.abs(one - two).max()) for one, two in zip(found, alone, strict=True))
    expect(
        apart <= _SAME,
        "the same vectors from four threads as from one",
        f"entries up to {apart:.4f} apart",
        "share nothing that changes between calls, or hold a lock around it",
    )


def check_leaves_its_texts_alone(strategy: Embedder) -> None:
    """The list belongs to the caller."""
    texts = list(_TEXTS)
    _embed(strategy, texts)
    expect(texts == list(_TEXTS), "the list of texts unchanged", "it was changed", "build a new list")


def check_its_threshold_is_one(strategy: Embedder) -> None:
    """A threshold that was written down goes into every run."""
    threshold = attempt(strategy.threshold, "`threshold` returns", "return a float, or None where none was measured")
    expect(
        threshold is None or (isinstance(threshold, float) and 0 < threshold < 1),
        "a float in (0, 1), or None",
        f"{threshold!r}",
        "measure it: combee_dspy.diversity.calibrate_threshold(embedder).threshold",
    )


CHECKS = (
    check_returns_one_unit_row_a_text,
    check_no_texts_give_no_rows,
    check_takes_any_text,
    check_a_text_has_one_vector,
    check_likeness_is_found,
    check_threads_may_share_it,
    check_leaves_its_texts_alone,
    check_its_threshold_is_one,
)
