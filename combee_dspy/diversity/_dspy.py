"""Any embedder that DSPy knows: a hosted model, ``dspy.Embedder``, or a function of the user's."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import dspy

from combee_dspy.diversity._base import Embedder, Vectors, unit_rows
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError

__all__ = ["DSPyEmbedder"]

_IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class DSPyEmbedder(Embedder):
    """Embeds with a ``dspy.Embedder``.

    For a hosted model, its calls go by DSPy's own way and DSPy's cache. They are
    paid, and stand in no ledger: an embedding has no prompt and no completion.
    The threshold is not known beforehand: it is measured before a run, with
    about 1,700 short texts, or given.

    Args:
        model: Name of a hosted model, as DSPy takes it: ``"openai/text-embedding-3-small"``.
            Or the import path of a function from a list of texts to a matrix:
            ``"package.module:function"``. Or a ``dspy.Embedder`` or such a function
            itself; then the run's log cannot name it and nobody can build it again from there.
        batch_size: Texts a request, at least 1.
    """

    name: ClassVar[str] = "dspy"

    def __init__(self, model: Any, batch_size: int = 200) -> None:
        self.model = model
        self.batch_size = batch_size

    def validate(self) -> None:
        """Check the parameters.

        Raises:
            ArgumentTypeError: ``model`` is none of what is listed, or ``batch_size`` no whole number.
            ArgumentValueError: ``batch_size`` is below 1, or the import path leads nowhere.
        """
        if type(self.batch_size) is not int:
            raise ArgumentTypeError("batch_size", self.batch_size, "is no whole number", "Give 200.")
        if self.batch_size < 1:
            raise ArgumentValueError("batch_size", self.batch_size, "is below 1", "Give 200.")
        self._embedder()

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the model's vectors, scaled to length 1. The model sees "." for a text that is blank.

        Raises:
            ArgumentTypeError: A parameter of this strategy has another type.
            ArgumentValueError: A parameter is out of range, or the model returned no matrix of finite numbers.
        """
        if self.batch_size < 1:
            raise ArgumentValueError("batch_size", self.batch_size, "is below 1", "Give 200.")
        embedder = self._embedder()
        if not texts:
            return unit_rows([], 0)
        # Hosted models refuse an empty input.
        return unit_rows(embedder([text if text.strip() else "." for text in texts]), len(texts))

    def _embedder(self) -> Callable[[list[str]], Any]:
        if isinstance(self.model, dspy.Embedder):
            return self.model
        if isinstance(self.model, str):
            if not _IMPORT_PATH.fullmatch(self.model):
                hosted: Callable[[list[str]], Any] = dspy.Embedder(self.model, batch_size=self.batch_size)
                return hosted
            function = _imported(self.model)
        else:
            function = self.model
        if not callable(function):
            remedy = 'Give "openai/text-embedding-3-small", "package.module:function", a dspy.Embedder, or a function.'
            raise ArgumentTypeError("model", self.model, "is no embedder", remedy)
        # Without DSPy's cache, which would have to name a function of the user's.
        local: Callable[[list[str]], Any] = dspy.Embedder(function, batch_size=self.batch_size, caching=False)
        return local


def _imported(path: str) -> Any:
    module, _, attribute = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        problem = f"cannot be imported: {type(error).__name__}: {error}"
        raise ArgumentValueError("model", path, problem, 'Write "package.module:function".') from error
    return found
