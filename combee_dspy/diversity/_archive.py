"""Refuses children that say what their parent or an earlier candidate said."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping

from combee_dspy.diversity._embedders import Vectors, unit_rows
from combee_dspy.diversity._likeness import Statements, likeness, statements
from combee_dspy.diversity._options import Diversity
from combee_dspy.json_texts import sound
from combee_dspy.records import Refusal

_REMEMBERED = 8_192  # vectors


class Archive:
    """The candidates of a run, to tell a new one from them.

    Deterministic: what it says depends on what was added before, in order, and on nothing else.
    Made once a run; asks the embedder inside :meth:`refuses`, so call it in a worker
    thread, once at a time.

    Raises:
        ArgumentError: The embedder cannot be used, or its threshold is not known.
        PluginError: The embedder cannot be loaded.
    """

    def __init__(self, options: Diversity) -> None:
        self._compared = options.build_embedder()
        self._seen: set[tuple[tuple[str, str], ...]] = set()
        self._recent: deque[Statements] = deque(maxlen=options.recent)
        self._vector_of: dict[str, Vectors] = {}

    def refuses(
        self, texts: Mapping[str, str], parent: Mapping[str, str], near_parent: bool = False
    ) -> Refusal | None:
        """Return why a child is too similar to its parent or an earlier candidate, or ``None``.

        Both are given as text per component, encoded demonstrations and field descriptions among
        them. Where the operator says so (:attr:`combee_dspy.operators.Operator.near_parent`), only
        a repeated text is refused.
        """
        if self._compared is None:
            return None
        embedder, threshold = self._compared
        if self.repeats(texts):
            return Refusal("it repeats a candidate that is there already")
        if near_parent:
            return None
        child = statements(texts)
        others = [statements(parent), *reversed(self._recent)]
        similarities = [likeness(child, other, self._vectors) for other in others]
        similarity, place = max(similarities), similarities.index(max(similarities))
        if similarity <= threshold:
            return None
        whom = f"the candidate {place} before it" if place else "its parent"
        return Refusal(
            f"similarity {similarity:.3f} to {whom} exceeds {threshold:.3f} ({embedder.name})"
        )

    def repeats(self, texts: Mapping[str, str]) -> bool:
        """Return whether a candidate with these statements was added before."""
        return tuple(statements(texts)) in self._seen

    def add(self, texts: Mapping[str, str]) -> None:
        """Add a candidate: the seed and every proposal, in the order of updates and children."""
        added = statements(texts) if self._compared is not None else {}
        if added and tuple(added) not in self._seen:
            self._seen.add(tuple(added))
            self._recent.append(added)

    def _vectors(self, texts: Collection[str]) -> Mapping[str, Vectors]:
        """Return the vector of each text, embedding those that are new in one go."""
        new = sorted(text for text in texts if text not in self._vector_of)
        if new and self._compared is not None:
            if len(self._vector_of) + len(new) > _REMEMBERED:
                self._vector_of = {
                    text: self._vector_of[text] for text in texts if text in self._vector_of
                }
            # Lone surrogates are no Unicode text, and no tokenizer takes them.
            vectors = self._compared[0].embed(list(map(sound, new)))
            self._vector_of.update(zip(new, unit_rows(vectors, len(new)), strict=True))
        return self._vector_of
