"""From trajectories to what an LM reads: token estimates, fitting, rendering, and comparing texts."""

from combee_dspy.reflections._fit import MAX_PARTS, fit_reflections
from combee_dspy.reflections._ngrams import ngram_counts
from combee_dspy.reflections._records import (
    MEDIA_TOKENS,
    estimate_record_tokens,
    estimate_tokens,
    feedback_text,
    is_media,
    render_records,
    texts_in,
)
from combee_dspy.reflections._similar import NearDuplicates, join_texts, normalised

__all__ = [
    "MAX_PARTS",
    "MEDIA_TOKENS",
    "NearDuplicates",
    "estimate_record_tokens",
    "estimate_tokens",
    "feedback_text",
    "fit_reflections",
    "is_media",
    "join_texts",
    "ngram_counts",
    "normalised",
    "render_records",
    "texts_in",
]
