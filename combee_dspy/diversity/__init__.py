"""Against collapse: embedders, the similarity guard, the temperature schedule and restarts."""

from combee_dspy.diversity._base import Embedder, Vectors, unit_rows
from combee_dspy.diversity._calibration import Calibrated, calibrate_threshold
from combee_dspy.diversity._char_ngrams import CharNgrams, character_ngrams
from combee_dspy.diversity._config import Diversity
from combee_dspy.diversity._dspy import DSPyEmbedder
from combee_dspy.diversity._guard import DiversityCounter, SimilarityGuard, TooSimilar
from combee_dspy.diversity._restart import IterationView, Restart
from combee_dspy.diversity._schedule import TemperatureSchedule
from combee_dspy.diversity._similarity import front_similarity
from combee_dspy.diversity._text import candidate_text, fingerprint

__all__ = [
    "Calibrated",
    "CharNgrams",
    "DSPyEmbedder",
    "Diversity",
    "DiversityCounter",
    "Embedder",
    "IterationView",
    "Restart",
    "SimilarityGuard",
    "TemperatureSchedule",
    "TooSimilar",
    "Vectors",
    "calibrate_threshold",
    "candidate_text",
    "character_ngrams",
    "fingerprint",
    "front_similarity",
    "unit_rows",
]
