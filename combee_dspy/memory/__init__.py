"""A memory of lessons, of which a predictor shows those that are nearest to each call's inputs.

| module | what it is |
| --- | --- |
| ``_base`` | the retriever contract |
| ``_bm25`` | lookup by words |
| ``_embeddings`` | lookup by vectors |
| ``_text`` | a memory as a component's text; pure |
| ``_cues`` | words by which a lesson is found; pure |
| ``_shelf`` | which lessons a call is shown |
| ``_predictor`` | the predictor that looks up, its state, and loading it |

``_embeddings`` and ``_predictor`` are loaded on first use: a report reads memories without DSPy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from combee_dspy.memory._base import Lookup, Retriever
from combee_dspy.memory._bm25 import BM25
from combee_dspy.memory._cues import choose_cues
from combee_dspy.memory._shelf import Shelf, query_of, shelf_of
from combee_dspy.memory._text import MemoryText, read_example, read_memory, write_example

if TYPE_CHECKING:
    from combee_dspy.memory._embeddings import Embeddings
    from combee_dspy.memory._predictor import (
        MemoryPredict,
        check_predictors,
        load_memory,
        with_memory,
    )

_HOMES = {
    "Embeddings": "_embeddings",
    "MemoryPredict": "_predictor",
    "check_predictors": "_predictor",
    "load_memory": "_predictor",
    "with_memory": "_predictor",
}

__all__ = [
    "BM25",
    "Embeddings",
    "Lookup",
    "MemoryPredict",
    "MemoryText",
    "Retriever",
    "Shelf",
    "check_predictors",
    "choose_cues",
    "load_memory",
    "query_of",
    "read_example",
    "read_memory",
    "shelf_of",
    "with_memory",
    "write_example",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
