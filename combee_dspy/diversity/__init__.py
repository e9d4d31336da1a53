"""Against collapse: embedders, an archive of candidates, temperature and restarts."""

from combee_dspy.diversity._archive import Archive
from combee_dspy.diversity._embedders import CharNgrams, DSPyEmbedder, Embedder, Vectors, unit_rows
from combee_dspy.diversity._options import Diversity, Restart, Temperature, UpdateView
from combee_dspy.diversity._threshold import calibrate_threshold

__all__ = [
    "Archive",
    "CharNgrams",
    "DSPyEmbedder",
    "Diversity",
    "Embedder",
    "Restart",
    "Temperature",
    "UpdateView",
    "Vectors",
    "calibrate_threshold",
    "unit_rows",
]
