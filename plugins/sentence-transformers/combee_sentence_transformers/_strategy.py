"""Sentence embeddings from a model that runs in this process."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from combee_dspy.diversity import Embedder, Vectors, unit_rows
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.strategies import parameters
from pydantic import Field

__all__ = ["SentenceTransformers"]

_DEFAULT = "sentence-transformers/all-MiniLM-L6-v2"
_IN_PACKAGE = "package:"

# Loading takes seconds, and the weights are only read: one model serves every run of the process.
_lock = threading.Lock()
_loaded: dict[tuple[str, str | None], Any] = {}


@parameters
class SentenceTransformers(Embedder):
    """Embeds with a sentence-transformers model, which knows that two words mean the same.

    Choose it where the proposer rewrites in other words; hashed n-grams see
    spelling only. The model is loaded at first use, once a process. Statements
    longer than the model's window (256 word pieces for the default) are cut by it.

    Args:
        model: A model's name on the hub, the path of a folder, or
            ``"package:NAME/FOLDER"`` for a folder inside an installed package.
        device: Where it runs: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"mps"``; ``None`` lets torch
            choose.
        batch_size: Texts a forward pass, at least 1.
    """

    name: ClassVar[str] = "sentence-transformers"
    MEASURED_THRESHOLDS: ClassVar[Mapping[str, float]] = {"all-MiniLM-L6-v2": 0.868}
    """By the model's last name, as :func:`combee_dspy.diversity.calibrate_threshold` measured
    it.
    """

    model: Annotated[str, Field(min_length=1)] = _DEFAULT
    device: str | None = None
    batch_size: Annotated[int, Field(ge=1, strict=True)] = 32

    def threshold(self) -> float | None:
        """Return the measured threshold of a model that is known by its name; ``None`` for
        others.
        """
        return self.MEASURED_THRESHOLDS.get(self.model.rpartition("/")[2])

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the model's sentence embeddings, scaled to length 1.

        Raises:
            ArgumentValueError: The package named in ``model`` is not there, or the model cannot be
                loaded.
        """
        if not texts:
            return unit_rows([], 0)
        model = _model(self.model, self.device)
        # A tokenizer takes no lone surrogates.
        clean = [text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in texts]
        rows = model.encode(clean, batch_size=self.batch_size, show_progress_bar=False, convert_to_numpy=True)
        return unit_rows(rows, len(texts))


def _model(name: str, device: str | None) -> Any:
    from sentence_transformers import SentenceTransformer  # torch takes seconds to import

    with _lock:
        if (name, device) not in _loaded:
            try:
                _loaded[name, device] = SentenceTransformer(_located(name), device=device)
            except (OSError, ValueError, RuntimeError) as error:
                problem = f"cannot be loaded: {type(error).__name__}: {error}"
                remedy = "Give a model's name on the hub while it can be reached, or the path of a folder."
                raise ArgumentValueError("model", name, problem, remedy) from error
        return _loaded[name, device]


def _located(name: str) -> str:
    """Return what names the model to the library: a name on the hub, or a folder."""
    if not name.startswith(_IN_PACKAGE):
        return name
    package, _, folder = name.removeprefix(_IN_PACKAGE).partition("/")
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ArgumentValueError("model", name, "names a package that is not installed", f"Install {package or 'it'}.")
    root = Path(next(iter(spec.submodule_search_locations))).resolve()
    target = (root / folder).resolve()
    if not target.is_dir() or not target.is_relative_to(root):
        raise ArgumentValueError("model", name, "names no folder of that package", f"It is installed in {root}.")
    return str(target)
