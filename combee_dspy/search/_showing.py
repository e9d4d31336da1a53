"""Which lessons of a text each validation row was shown: elsewhere they prove nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from combee_dspy.artifacts import Artifact
from combee_dspy.records import PredictorCall, Rollout
from combee_dspy.search._candidates import Candidate, Scores

__all__ = ["Showing"]


@dataclass(frozen=True, slots=True)
class Showing:
    """A text and its rollouts on validation rows. What is looked up in it may wait for a service:
    ask in a thread, not on the loop.

    Attributes:
        scores: By row.
        rollouts: By row; a row without any counts as one that was shown everything.
    """

    artifact: Artifact
    text: Candidate
    scores: Scores
    rollouts: Mapping[int, Sequence[Rollout]]

    def is_shown(self, component: str, lesson: str, index: int) -> bool:
        """Return whether a row's calls were shown a lesson of the text, by the id of its line."""
        calls = self._calls(component, index)
        return not calls or any(
            (lessons := self.artifact.shows(self.text.texts[component], call.inputs)) is None
            or lesson in lessons
            for call in calls
        )

    def differs(self, other: Candidate, index: int) -> bool:
        """Return whether a row would be shown something else by another text of the program."""
        return any(
            self._lines_of(self.text, component, index) != self._lines_of(other, component, index)
            for component, text in self.text.texts.items()
            if other.texts[component] != text
        )

    def _lines_of(self, text: Candidate, component: str, index: int) -> object:
        """Return what calls are shown; the whole text where nobody looks anything up."""
        whole = text.texts[component]
        lessons = [
            self.artifact.shows(whole, call.inputs) for call in self._calls(component, index)
        ]
        return whole if not lessons or None in lessons else lessons

    def _calls(self, component: str, index: int) -> list[PredictorCall]:
        rollouts = self.rollouts.get(index, ())
        return [call for rollout in rollouts for call in rollout.calls if call.is_of(component)]
