"""What no child of a run may break: the user's guards, and too much likeness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import dspy

from combee_dspy.diversity import SimilarityGuard, TooSimilar, candidate_text
from combee_dspy.engine.candidates import Candidate, demonstrations_key, fields_key, visible
from combee_dspy.engine.settings import Settings
from combee_dspy.engine.state import RunState
from combee_dspy.guards import (
    CopyIndex,
    GuardInput,
    check,
    copied_in_demonstrations,
    guard_notes,
    validate_against,
)
from combee_dspy.operators import OperatorInput, decode_demonstrations, decode_fields
from combee_dspy.records import Edit, Refusal

__all__ = ["Guarding"]


class Guarding:
    """Judges edits and children, and tells proposers what binds them.

    :meth:`text` counts what it refuses in the run's state; it belongs to the
    thread that runs gepa's loop. The rest is safe in any thread.

    Args:
        settings: The run's settings.
        seed: The seed candidate.
        code: Components that are source code, which the guards do not read.
        train: Examples that minibatches are drawn from, anchors included: no text may copy them.
        state: The run's state.

    Attributes:
        guards: The user's guards.
        seed: The seed's instructions by component.
        draws: How many operators one child may try.

    Raises:
        ArgumentError: The guards do not fit the program, or the embedder cannot be used.
    """

    def __init__(
        self,
        settings: Settings,
        seed: Candidate,
        code: frozenset[str],
        train: Sequence[dspy.Example],
        state: RunState,
    ) -> None:
        self.guards = settings.guards
        self.seed = {name: seed[name] for name in visible(seed) if name not in code}
        self._fields = {name: decode_fields(seed.get(fields_key(name), "")) for name in self.seed}
        validate_against(self.guards, self.seed, self._fields)
        most = self.guards.max_copied_words
        self._copies = None if most is None else CopyIndex.build(train, most)
        self._similar: SimilarityGuard | None = settings.diversity.guard(seed=settings.seed)
        self._state = state
        self.draws = settings.diversity.max_draws if self._similar is not None else 1

    def edit(self, component: str, given: OperatorInput, edit: Edit) -> Refusal | None:
        """Return why an edit is refused by itself, or ``None``."""
        judged = GuardInput(
            component=component,
            parent=given.instruction,
            edit=edit,
            seed=self.seed.get(component),
            parent_fields=given.field_descriptions,
            seed_fields=self._fields.get(component, {}),
            signature=given.signature,
        )
        return check(self.guards, judged, self._copies)

    def proposed(self, component: str, text: str, candidate: Mapping[str, str]) -> Refusal | None:
        """Return why a text that no operator of ours wrote may not stand in a candidate, or ``None``."""
        if component not in self.seed:
            return None
        judged = GuardInput(
            component=component,
            parent=candidate[component],
            edit=Edit(instruction=text),
            seed=self.seed[component],
            parent_fields=decode_fields(candidate.get(fields_key(component), "")),
            seed_fields=self._fields.get(component, {}),
        )
        return check(self.guards, judged, self._copies)

    def text(
        self,
        candidate: Mapping[str, str],
        parent: Mapping[str, str],
        siblings: Sequence[Mapping[str, str]],
        *,
        near_parent: bool = False,
    ) -> Refusal | None:
        """Return why a child is refused, or ``None``; and count it.

        It is compared with the front, its parent, its siblings, and the children that were rejected last.
        """
        text = candidate_text(candidate)
        refusal = self.likeness(candidate, parent, siblings, near_parent=near_parent)
        drawn = self._state.drawn
        self._state.drawn = drawn.after_proposal(text) if refusal is None else drawn.after_refusal(text, refusal)
        return refusal

    def likeness(
        self,
        candidate: Mapping[str, str],
        parent: Mapping[str, str],
        siblings: Sequence[Mapping[str, str]] = (),
        *,
        near_parent: bool = False,
    ) -> TooSimilar | None:
        """Return what :meth:`text` returns, and count nothing: for what may never be proposed."""
        if self._similar is None:
            return None
        others = (*self._state.front, parent, *siblings, *self._state.rejected)
        compared = dict.fromkeys(candidate_text(one) for one in others)
        if near_parent:
            # An edit that says the same in other words is like its parent on purpose.
            compared.pop(candidate_text(parent))
        refused = self._state.drawn.refused_texts
        return self._similar.judge(candidate_text(candidate), list(compared), refused, order_counts=near_parent)

    def copied_words(self, texts: Mapping[str, str]) -> int:
        """Return how many words of the demonstrations among some texts come from training examples."""
        if self._copies is None:
            return 0
        shown = [texts[key] for name in self.seed if (key := demonstrations_key(name)) in texts]
        return sum(copied_in_demonstrations(decode_demonstrations(text), self._copies) for text in shown)

    def notes(self, component: str, candidate: Mapping[str, str]) -> str:
        """Return what a proposer must know before it edits a component."""
        descriptions = decode_fields(candidate.get(fields_key(component), ""))
        return guard_notes(self.guards, component, candidate[component], descriptions, self.seed.get(component))

    def front_similarity(self, candidates: Sequence[Mapping[str, str]]) -> float | None:
        """Return how alike candidates are, 0 to 1; ``None`` below two, or where likeness is not looked at."""
        if self._similar is None:
            return None
        return self._similar.front_similarity([candidate_text(one) for one in candidates])
