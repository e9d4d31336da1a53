"""From trajectories to what an LM reads: tokens, fitting, rendering, comparing texts."""

from combee_dspy.ngrams import ngram_counts, unit_length
from combee_dspy.reflections._fitting import LEAST_TOKENS, MAX_PARTS, fit_reflections, is_cut
from combee_dspy.reflections._records import (
    MEDIA_TOKENS,
    ends,
    estimate_record_tokens,
    estimate_tokens,
    example_text,
    feedback_text,
    fit_lines,
    is_media,
    line_tokens,
    render_records,
    texts_in,
)
from combee_dspy.reflections._vocabulary import Vocabulary, subject_words, word_likeness
from combee_dspy.texts import NearDuplicates, normalised

__all__ = [
    "LEAST_TOKENS",
    "MAX_PARTS",
    "MEDIA_TOKENS",
    "NearDuplicates",
    "Vocabulary",
    "ends",
    "estimate_record_tokens",
    "estimate_tokens",
    "example_text",
    "feedback_text",
    "fit_lines",
    "fit_reflections",
    "is_cut",
    "is_media",
    "line_tokens",
    "ngram_counts",
    "normalised",
    "render_records",
    "subject_words",
    "texts_in",
    "unit_length",
    "word_likeness",
]
