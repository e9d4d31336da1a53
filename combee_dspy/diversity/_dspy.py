"""Any embedder that DSPy knows: a hosted model, ``dspy.Embedder``, or a function of the user's."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pkgutil import resolve_name
from typing import Annotated, Any, ClassVar

import dspy
from pydantic import Field

from combee_dspy.diversity._base import Embedder, Vectors, unit_rows
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.strategies import parameters

_IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@parameters
class DSPyEmbedder(Embedder):
    """Embeds with a ``dspy.Embedder``.

    For a hosted model, its calls go by DSPy's own way and DSPy's cache. They are
    paid, and stand in no book: an embedding has no prompt and no completion.
    Its threshold is not known beforehand: measure it once
    (:func:`combee_dspy.diversity.calibrate_threshold`) and give ``Diversity(threshold=…)``.

    Args:
        model: Name of a hosted model, as DSPy takes it: ``"openai/text-embedding-3-small"``.
            Or the import path of a function from a list of texts to a matrix:
            ``"package.module:function"``. Or a ``dspy.Embedder`` or such a function
            itself; then the run's journal cannot name it and nobody can build it again from there.
        batch_size: Texts a request.
    """

    name: ClassVar[str] = "dspy"

    model: str | Callable[..., Any]
    batch_size: Annotated[int, Field(ge=1)] = 200

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the model's vectors, scaled to length 1. The model sees "." for a text that is blank.

        Raises:
            ArgumentValueError: The import path leads nowhere, or the model returned no matrix of finite numbers.
        """
        if not texts:
            return unit_rows([], 0)
        # Hosted models refuse an empty input.
        return unit_rows(self._embedder()([text if text.strip() else "." for text in texts]), len(texts))

    def _embedder(self) -> Callable[[list[str]], Any]:
        model = self.model
        if isinstance(model, str) and not _IMPORT_PATH.fullmatch(model):
            return dspy.Embedder(model, batch_size=self.batch_size)
        if isinstance(model, str):
            try:
                model = resolve_name(model)
            except (ImportError, AttributeError) as error:
                problem = f"cannot be imported: {type(error).__name__}: {error}"
                raise ArgumentValueError("model", model, problem, 'Write "package.module:function".') from error
        if isinstance(model, dspy.Embedder):
            return model
        # Without DSPy's cache, which would have to name a function of the user's.
        return dspy.Embedder(model, batch_size=self.batch_size, caching=False)
