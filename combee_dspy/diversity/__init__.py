"""Against collapse: embedders, the archive that refuses near copies, the temperature and restarts."""

from combee_dspy.diversity._archive import Archive
from combee_dspy.diversity._base import Embedder, Vectors, unit_rows
from combee_dspy.diversity._calibration import calibrate_threshold
from combee_dspy.diversity._char_ngrams import CharNgrams
from combee_dspy.diversity._dspy import DSPyEmbedder
from combee_dspy.diversity._options import Diversity, Restart, Temperature, UpdateView

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
