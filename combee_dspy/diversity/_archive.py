"""The candidates of a run by what they say: refuses one that is nearly there already."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

from combee_dspy.diversity._base import Vectors, unit_rows
from combee_dspy.diversity._likeness import Statements, likeness, statements
from combee_dspy.diversity._options import Diversity
from combee_dspy.records import Refusal

_REMEMBERED = 8_192


class Archive:
    """The candidates of a run, to tell a new one from them.

    Deterministic: what it says depends on what was added before, in order, and
    on nothing else. Made once a run; asks the embedder inside :meth:`refuses` and
    :meth:`similarity`, so call these in a worker thread, one at a time.

    Raises:
        ArgumentError: The embedder cannot be used, or its threshold is not known.
        PluginError: The embedder cannot be loaded.
    """

    def __init__(self, options: Diversity) -> None:
        self._compared = options.build_embedder()
        self._seen: set[tuple[tuple[str, str], ...]] = set()
        self._recent: deque[Statements] = deque(maxlen=options.recent)
        self._known: dict[str, Vectors] = {}

    def refuses(self, texts: Mapping[str, str], parent: Mapping[str, str], near_parent: bool = False) -> Refusal | None:
        """Return why a child is refused as too similar to its parent or to a candidate added before, or ``None``.

        Both are given as text per component, encoded demonstrations and field descriptions among them. Where
        the operator says so (:attr:`combee_dspy.operators.Operator.near_parent`), only a repeated text is refused.
        """
        if self._compared is None:
            return None
        embedder, threshold = self._compared
        child = statements(texts)
        if tuple(child) in self._seen:
            return Refusal("it repeats a candidate that is there already")
        if near_parent:
            return None
        others = [statements(parent), *reversed(self._recent)]
        found = [likeness(child, other, self._vectors) for other in others]
        similarity = max(found)
        if similarity <= threshold:
            return None
        place = found.index(similarity)
        whom = f"the candidate {place} before it" if place else "its parent"
        return Refusal(f"similarity {similarity:.3f} to {whom} exceeds {threshold:.3f} ({embedder.name})")

    def add(self, texts: Mapping[str, str]) -> None:
        """Take a candidate in: the seed and every one that was proposed, in the order of updates and children."""
        said = statements(texts) if self._compared is not None else {}
        if said and tuple(said) not in self._seen:
            self._seen.add(tuple(said))
            self._recent.append(said)

    def similarity(self, candidates: Sequence[Mapping[str, str]]) -> float | None:
        """Return the mean similarity of each two candidates, 0 to 1; ``None`` below two, or without an embedder."""
        if self._compared is None:
            return None
        pairs = combinations([statements(one) for one in candidates], 2)
        found = [likeness(one, other, self._vectors) for one, other in pairs]
        return sum(found) / len(found) if found else None

    def _vectors(self, texts: Collection[str]) -> Mapping[str, Vectors]:
        """Return the vector of each text, embedding those that are new in one go."""
        new = sorted(text for text in texts if text not in self._known)
        if new and self._compared is not None:
            if len(self._known) + len(new) > _REMEMBERED:
                self._known = {text: self._known[text] for text in texts if text in self._known}
            # Lone surrogates are no Unicode text, and no tokenizer takes them.
            clean = [text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in new]
            self._known.update(zip(new, unit_rows(self._compared[0].embed(clean), len(new)), strict=True))
        return self._known
