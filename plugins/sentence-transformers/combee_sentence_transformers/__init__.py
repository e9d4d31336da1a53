"""The embedder "sentence-transformers" for combee_dspy."""

from combee_sentence_transformers._strategy import SentenceTransformers

__all__ = ["SentenceTransformers"]
