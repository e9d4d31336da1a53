"""Against collapse: embedders, the archive that refuses near copies, the temperature and restarts."""

# What the search uses, in full:
#     archive = Archive(diversity)                                  once a run; raises where the embedder cannot be used
#     archive.refuses(texts, parent, near_parent) -> Refusal | None   may call the embedder: in a worker thread
#     archive.add(texts) -> None                                    every proposed candidate, in order; cheap
#     archive.similarity(candidates) -> float | None                of the best candidates, for restarts and the record
#     diversity.temperature.at(update, stale) -> float              where diversity.temperature is not None; pure
#     diversity.restart.due([UpdateView(best_score, similarity, restarted), …]) -> str | None   likewise; the reason
#     diversity.max_draws                                           operators that one child may try

from combee_dspy.diversity._archive import Archive
from combee_dspy.diversity._base import Embedder, Vectors, unit_rows
from combee_dspy.diversity._calibration import calibrate_threshold
from combee_dspy.diversity._char_ngrams import CharNgrams
from combee_dspy.diversity._dspy import DSPyEmbedder
from combee_dspy.diversity._options import Diversity
from combee_dspy.diversity._restart import Restart, UpdateView
from combee_dspy.diversity._temperature import Temperature

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
