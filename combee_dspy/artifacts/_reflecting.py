"""The reflector: one question about each trajectory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dspy

from combee_dspy.artifacts._artifact import PlaybookArtifact
from combee_dspy.artifacts._playbook import Playbook
from combee_dspy.artifacts._reading import MOST_CHARACTERS, read_tags
from combee_dspy.artifacts._text import line_of, render
from combee_dspy.artifacts._trajectory import BulletFinder, trajectory_of, truth_of
from combee_dspy.records import FailedCall, Reflection, Rollout
from combee_dspy.reflections import fit_reflections, render_records
from combee_dspy.strategies import StrategyContext

__all__ = ["Answered", "Reflected", "Reflector", "join_answers"]


@dataclass(frozen=True, slots=True)
class Answered:
    """The last answer about one trajectory.

    Attributes:
        answer: The reflector's, or why there is none.
        shown: Ids of the bullets that it was shown.
    """

    answer: dspy.Prediction | FailedCall
    shown: frozenset[str]

    @property
    def insight(self) -> str:
        """The key insight; empty where the trajectory teaches nothing, or the reflection failed."""
        return "" if isinstance(self.answer, FailedCall) else _insight(self.answer)


@dataclass(frozen=True, slots=True)
class Reflected:
    """What a minibatch taught.

    Attributes:
        insights: Position in the minibatch and key insight, in order; trajectories that teach
            nothing have none.
        helpful: How often each bullet was tagged helpful, by id.
        harmful: How often harmful.
        ignored: What of the answers was not used, one sentence each.
        failed: Error of each reflection that failed for good.
    """

    insights: tuple[tuple[int, str], ...]
    helpful: Mapping[str, int] = field(default_factory=dict)
    harmful: Mapping[str, int] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


class Reflector:
    """Asks about the trajectories of one minibatch, each on its own. Thread-safe.

    Args:
        artifact: What is asked, and how often.
        playbook: What the program was shown; a budget hides bullets here as it did there.
        context: The way to the LM; its text is the student's instruction.
        max_call_tokens: Estimated tokens that one call may take; longer trajectories are trimmed.
        perfect_score: Rollouts below it have failed.
    """

    def __init__(
        self,
        artifact: PlaybookArtifact,
        playbook: Playbook,
        context: StrategyContext,
        *,
        max_call_tokens: int = 24_000,
        perfect_score: float = 1.0,
    ) -> None:
        self._artifact = artifact
        self._context = context
        self._room = max(max_call_tokens // 2, 64)
        self._perfect_score = perfect_score
        visible = set(render(playbook, artifact.max_tokens).shown)
        shown = [bullet for bullet in playbook.bullets if bullet.id in visible]
        self._finder = BulletFinder(shown, artifact.most_bullets)

    def ask(self, position: int, rollout: Rollout) -> Answered:
        """Ask about one trajectory, and again about one that failed where several rounds are asked for.

        Args:
            position: Its place in the minibatch.
            rollout: The trajectory.
        """
        bullets = self._finder.find(rollout)
        given: dict[str, Any] = {
            "current_instruction": self._context.text,
            "trajectory": self._record(position, rollout),
            "feedback": rollout.feedback or f"This trajectory got a score of {rollout.score:g}.",
            "bullets_used": [line_of(bullet) for bullet in bullets],
            "earlier_reflection": "",
            **({"ground_truth": truth_of(rollout)} if self._artifact.ground_truth else {}),
        }
        (answer,) = self._context.predict(self._artifact.signature(), [given], role="reflector")
        for _ in range(1, self._artifact.rounds if rollout.score < self._perfect_score else 1):
            given = {**given, "earlier_reflection": _insight(answer)}
            (later,) = self._context.predict(self._artifact.signature(), [given], role="reflector")
            # A later look that fails leaves what the first one found.
            answer = answer if isinstance(later, FailedCall) else later
        return Answered(answer, frozenset(bullet.id for bullet in bullets))

    def _record(self, position: int, rollout: Rollout) -> dict[str, Any]:
        context = self._context
        whole = [Reflection(position, trajectory_of(rollout))]
        fitted = fit_reflections(whole, self._room, context.component, context.emit, context.iteration, max_parts=1)
        return render_records(fitted)[0]


def join_answers(answers: Sequence[Answered]) -> Reflected:
    """Return what a minibatch taught, its answers in the minibatch's order."""
    helpful: Counter[str] = Counter()
    harmful: Counter[str] = Counter()
    insights, ignored, failed = [], [], []
    for position, one in enumerate(answers):
        if isinstance(one.answer, FailedCall):
            failed.append(one.answer.error)
            continue
        tags, notes = read_tags(getattr(one.answer, "bullet_tags", None), one.shown)
        ignored += [f"reflection {position}: {note}" for note in notes]
        helpful.update(name for name, tag in tags.items() if tag == "helpful")
        harmful.update(name for name, tag in tags.items() if tag == "harmful")
        insight = _insight(one.answer)
        if insight:
            insights.append((position, insight))
    return Reflected(tuple(insights), dict(helpful), dict(harmful), tuple(ignored), tuple(failed))


def _insight(answer: Any) -> str:
    value = getattr(answer, "key_insight", None)
    if not isinstance(value, str):
        return ""
    return value.strip()[:MOST_CHARACTERS]
