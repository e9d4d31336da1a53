"""Embedders: the contract, hashed character n-grams, and what DSPy knows."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pkgutil import resolve_name
from typing import Annotated, Any, ClassVar

import dspy
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.reflections import ngram_counts, unit_length
from combee_dspy.strategies import Strategy, parameters

Vectors = NDArray[np.float32]
"""One row a text: shape (n, d)."""

_IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_REMEDY = "An embedder must return one row of finite numbers for each text."


class Embedder(Strategy):
    """Turns texts into vectors whose inner product says how alike the texts are.

    What a similarity of 0.92 means differs from embedder to embedder, so a threshold belongs to one
    of them and is measured beforehand (see :func:`combee_dspy.diversity.calibrate_threshold`).
    """

    kind: ClassVar[str] = "embedder"

    @abstractmethod
    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one vector for each of n ≥ 0 texts of any length and script.

        The texts must not be changed.

        Called in a worker thread; the same text gives the same vector in any batch.

        Returns:
            A ``float32`` array of shape (n, d), rows in the order of the texts. A row has length 1,
            or 0 for a text that holds nothing to compare.
        """

    def threshold(self) -> float | None:
        """Return the threshold measured for these parameters; ``None`` where there is none."""
        return None


def unit_rows(values: object, count: int) -> Vectors:
    """Return vectors as an embedder must: ``float32``, one row a text, rows of length 1 (or 0).

    ``values`` is a matrix of ``count`` rows, one for each text, as an array or as nested sequences.

    Raises:
        ArgumentValueError: It is no matrix of so many rows, or holds what is no finite number.
    """
    try:
        rows = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ArgumentValueError(
            "vectors", values, f"are no matrix of numbers: {error}", _REMEDY
        ) from error
    if count == 0 and rows.size == 0:
        return np.zeros((0, rows.shape[1] if rows.ndim == 2 else 0), dtype=np.float32)
    if rows.ndim != 2 or rows.shape[0] != count or rows.shape[1] == 0:
        raise ArgumentValueError(
            "vectors", rows.shape, f"have the wrong shape for {count} texts", _REMEDY
        )
    if not np.isfinite(rows).all():
        raise ArgumentValueError("vectors", rows.shape, "hold values that are not finite", _REMEDY)
    return unit_length(rows)


@parameters
class CharNgrams(Embedder):
    """Counts character n-grams in hashed buckets: offline, in any script, spelling only.

    The default. Two texts are alike as far as they share runs of characters, so it finds rewordings
    that keep most words, moved lines and changed punctuation. It does not know that two words mean
    the same: a paraphrase in other words passes. Case and runs of white space do not count.

    Example:
        >>> from combee_dspy.diversity import CharNgrams
        >>> CharNgrams(dimensions=512).embed(["Round to two decimals."]).shape
        (1, 512)

    Args:
        sizes: Lengths of the n-grams in characters.
        dimensions: Buckets. Chance similarity of unlike texts is about 1/√dimensions.
    """

    name: ClassVar[str] = "char-ngrams"
    MEASURED_THRESHOLD: ClassVar[float] = 0.728
    """For the default parameters: refuses 1 % of new candidates among 800 prompts grown from 0 to
    40 lessons.
    """

    sizes: Annotated[tuple[Annotated[int, Field(ge=1, le=16)], ...], Field(min_length=1)] = (
        3,
        4,
        5,
    )
    dimensions: Annotated[int, Field(ge=16)] = 2048

    def threshold(self) -> float | None:
        """Return :attr:`MEASURED_THRESHOLD` for the default parameters, else ``None``."""
        return self.MEASURED_THRESHOLD if self == CharNgrams() else None

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the hashed n-gram counts, scaled to length 1."""
        return unit_rows(
            ngram_counts(texts, self.sizes, self.dimensions, signed=True).toarray(), len(texts)
        )


@parameters
class DSPyEmbedder(Embedder):
    """Embeds with a ``dspy.Embedder``.

    For a hosted model, its calls go by DSPy's own way and DSPy's cache. They are paid, and stand in
    no book: an embedding has no prompt and no completion. Its threshold is not known beforehand:
    measure it once (:func:`combee_dspy.diversity.calibrate_threshold`) and give
    ``Diversity(threshold=…)``.

    Example:
        >>> from combee_dspy.diversity import DSPyEmbedder
        >>> DSPyEmbedder(lambda texts: [[1.0, 0.0] for _ in texts]).embed(["one text"]).shape
        (1, 2)

    Args:
        model: Name of a hosted model, as DSPy takes it: ``"openai/text-embedding-3-small"``. Or the
            import path of a function from a list of texts to a matrix:
            ``"package.module:function"``. Or a ``dspy.Embedder`` or such a function itself; then
            the run's journal cannot name it and nobody can build it again from there.
        batch_size: Texts a request.
    """

    name: ClassVar[str] = "dspy"

    model: str | Callable[..., Any]
    batch_size: Annotated[int, Field(ge=1)] = 200

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the model's vectors, scaled to length 1. A blank text is sent as ".".

        Raises:
            ArgumentValueError: The import path leads nowhere, or the model returned no matrix of
                finite numbers.
        """
        if not texts:
            return unit_rows([], 0)
        # Hosted models refuse an empty input.
        return unit_rows(
            self._embedder()([text if text.strip() else "." for text in texts]), len(texts)
        )

    def _embedder(self) -> Callable[[list[str]], Any]:
        model = self.model
        if isinstance(model, str) and not _IMPORT_PATH.fullmatch(model):
            return dspy.Embedder(model, batch_size=self.batch_size)
        if isinstance(model, str):
            try:
                model = resolve_name(model)
            except (ImportError, AttributeError) as error:
                problem = f"cannot be imported: {type(error).__name__}: {error}"
                raise ArgumentValueError(
                    "model", model, problem, 'Write "package.module:function".'
                ) from error
        if isinstance(model, dspy.Embedder):
            return model
        # Without DSPy's cache, which would have to name a function of the user's.
        return dspy.Embedder(model, batch_size=self.batch_size, caching=False)
