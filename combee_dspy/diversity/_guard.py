"""The anti-collapse guard: refuses a candidate that is nearly one that is there, and counts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from combee_dspy.diversity._base import Embedder
from combee_dspy.diversity._similarity import Likeness
from combee_dspy.diversity._text import fingerprint
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import Refusal

__all__ = ["DiversityCounter", "SimilarityGuard", "TooSimilar"]


@dataclass(frozen=True, slots=True)
class TooSimilar(Refusal):
    """A candidate that adds nothing to those that are there.

    Attributes:
        reason: One sentence for the log, with the figures.
        similarity: To the candidate that it is most like, 0 to 1; 1 for a repeated text.
        against: Position of that candidate among those compared; ``None`` for a repeated text.
        repeated: Whether its text had been refused before.
    """

    similarity: float = 1.0
    against: int | None = None
    repeated: bool = False


class SimilarityGuard:
    """Refuses candidates that are too similar to the best ones, or that were refused before.

    Depends on nothing but its arguments, so a resumed run decides the same.
    Thread-safe.

    Args:
        embedder: What similarity is measured with.
        threshold: Similarity above which a candidate is refused, in (0, 1). It
            belongs to the embedder (see :func:`combee_dspy.diversity.calibrate_threshold`).

    Raises:
        ArgumentValueError: The threshold is out of range.
    """

    def __init__(self, embedder: Embedder, threshold: float) -> None:
        if not 0 < threshold < 1:
            remedy = "Leave it out for the embedder's calibrated one."
            raise ArgumentValueError("threshold", threshold, "is not in (0, 1)", remedy)
        self.embedder = embedder
        self.threshold = threshold
        self._likeness = Likeness(embedder)

    def judge(
        self, text: str, top: Sequence[str], refused: Collection[str] = (), *, order_counts: bool = False
    ) -> TooSimilar | None:
        """Return why a candidate is refused, or ``None``.

        Args:
            text: The candidate (see :func:`combee_dspy.diversity.candidate_text`).
            top: The current top k, the candidate's parent, and what was already
                drawn in this iteration, as such texts.
            refused: Fingerprints of texts refused before (see :attr:`DiversityCounter.refused_texts`).
            order_counts: Whether the operator's edit is the order of the statements:
                then one in another order is not the same candidate.
        """
        own = fingerprint(text)
        if own in refused:
            return TooSimilar("its text repeats one that was refused before", repeated=True)
        if order_counts:
            same = [position for position, other in enumerate(top) if fingerprint(other) == own]
            found = [(1.0, position) for position in same]
        else:
            self._likeness.learn([text, *top])
            found = [(self._likeness.of(text, other), position) for position, other in enumerate(top)]
        if not found:
            return None
        # Of equally similar ones the first is named.
        similarity, position = max(found, key=lambda pair: (pair[0], -pair[1]))
        if similarity <= self.threshold:
            return None
        reason = (
            f"similarity {similarity:.3f} to candidate {position + 1} of the {len(top)} compared exceeds "
            f"{self.threshold:.3f} ({self.embedder.name})"
        )
        return TooSimilar(reason, similarity=similarity, against=position)

    def similarity(self, first: str, second: str) -> float:
        """Return how alike two texts are, 0 to 1 (see the measure's description on :class:`Likeness`)."""
        return self._likeness.of(first, second)

    def front_similarity(self, texts: Sequence[str]) -> float | None:
        """Return the mean similarity of each two texts, 0 to 1; ``None`` below two.

        By the guard's own measure, which does not saturate as prompts grow.
        """
        self._likeness.learn(texts)
        pairs = [self._likeness.of(first, second) for first, second in combinations(texts, 2)]
        return sum(pairs) / len(pairs) if pairs else None


@dataclass(frozen=True, slots=True)
class DiversityCounter:
    """What the guard has seen so far in a run. A value: each step returns a new one, fit for a checkpoint.

    Attributes:
        refused: Candidates refused as too similar.
        repeated: Candidates refused because their text had been refused before.
        refused_texts: Fingerprints of the refused texts.
        proposed_texts: Fingerprints of the candidates that were proposed.
    """

    refused: int = 0
    repeated: int = 0
    refused_texts: frozenset[str] = frozenset()
    proposed_texts: frozenset[str] = frozenset()

    @property
    def distinct(self) -> int:
        """Candidates proposed so far whose texts differ in more than punctuation."""
        return len(self.proposed_texts)

    def after_refusal(self, text: str, refusal: TooSimilar) -> DiversityCounter:
        """Return the counter after a candidate was refused."""
        return replace(
            self,
            refused=self.refused + (not refusal.repeated),
            repeated=self.repeated + refusal.repeated,
            refused_texts=self.refused_texts | {fingerprint(text)},
        )

    def after_proposal(self, text: str) -> DiversityCounter:
        """Return the counter after a candidate was proposed."""
        return replace(self, proposed_texts=self.proposed_texts | {fingerprint(text)})

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data that :meth:`from_dict` reads back."""
        return {
            "refused": self.refused,
            "repeated": self.repeated,
            "refused_texts": sorted(self.refused_texts),
            "proposed_texts": sorted(self.proposed_texts),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DiversityCounter:
        """Read what :meth:`to_dict` wrote.

        Raises:
            ArgumentValueError: ``data`` is something else.
        """
        try:
            counts = {name: int(data[name]) for name in ("refused", "repeated")}
            texts = {name: frozenset(map(str, data[name])) for name in ("refused_texts", "proposed_texts")}
        except (KeyError, TypeError, ValueError) as error:
            raise ArgumentValueError(
                "counter", data, f"is no counter: {error}", "Give what to_dict() wrote."
            ) from error
        return cls(counts["refused"], counts["repeated"], texts["refused_texts"], texts["proposed_texts"])
