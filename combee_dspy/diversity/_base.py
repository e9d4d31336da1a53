"""The embedder contract: texts in, unit vectors out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.strategies import Strategy

Vectors = NDArray[np.float32]
"""One row a text: shape (n, d)."""

_MATRIX = 2
_REMEDY = "An embedder must return one row of finite numbers for each text."


class Embedder(Strategy):
    """Turns texts into vectors whose inner product says how alike the texts are.

    What a similarity of 0.92 means differs from embedder to embedder, so a
    threshold belongs to one of them and is measured beforehand
    (see :func:`combee_dspy.diversity.calibrate_threshold`).
    """

    kind: ClassVar[str] = "embedder"

    @abstractmethod
    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one vector a text. Called in a worker thread; the same text gives the same vector in any batch.

        Args:
            texts: n ≥ 0 texts of any length and script. Not to be changed.

        Returns:
            A ``float32`` array of shape (n, d), rows in the order of the texts. A
            row has length 1, or 0 for a text that holds nothing to compare.
        """

    def threshold(self) -> float | None:
        """Return the measured threshold of this embedder with these parameters, or ``None`` where none is known."""
        return None


def unit_rows(values: Any, count: int) -> Vectors:
    """Return vectors as an embedder must: ``float32``, one row a text, rows of length 1 (or 0).

    Args:
        values: A matrix of ``count`` rows, as an array or as nested sequences.
        count: How many texts were embedded.

    Raises:
        ArgumentValueError: It is no matrix of so many rows, or holds what is no finite number.
    """
    try:
        rows = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ArgumentValueError("vectors", values, f"are no matrix of numbers: {error}", _REMEDY) from error
    if count == 0 and rows.size == 0:
        return np.zeros((0, rows.shape[1] if rows.ndim == _MATRIX else 0), dtype=np.float32)
    if rows.ndim != _MATRIX or rows.shape[0] != count or rows.shape[1] == 0:
        raise ArgumentValueError("vectors", rows.shape, f"have the wrong shape for {count} texts", _REMEDY)
    if not np.isfinite(rows).all():
        raise ArgumentValueError("vectors", rows.shape, "hold values that are not finite", _REMEDY)
    # Scaled by the largest entry first, so that squares neither overflow nor vanish.
    largest = np.abs(rows).max(axis=1, keepdims=True)
    rows = rows / np.where(largest > 0, largest, 1.0)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Vectors = (rows / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
    return unit
