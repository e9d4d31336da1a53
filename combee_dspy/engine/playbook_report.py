"""What a playbook run has to say for itself when it is over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from combee_dspy.artifacts import Bullet, Playbook
from combee_dspy.engine.playbook_state import PlaybookState

__all__ = ["PlaybookReport"]


@dataclass(frozen=True, slots=True)
class PlaybookReport:
    """Attached to a program as ``playbook_report``, beside ``combee_report``.

    Attributes:
        playbook: The playbook that was returned, bullets beyond the budget included.
        last: The playbook after the last iteration.
        online_score: Mean score of every minibatch's rollouts, each made before its example was
            learned from; over one pass it is the score of learning while serving.
        batch_scores: The same, minibatch by minibatch.
        done: Deltas that changed the playbook, by kind.
        ignored: How many notes of ignored answers and deltas there were; events and the log say which.
        shown: Ids of the returned playbook's bullets that the budget lets the program see.
    """

    playbook: Playbook
    last: Playbook
    online_score: float | None
    batch_scores: tuple[float, ...]
    done: Mapping[str, int]
    ignored: int
    shown: tuple[str, ...] = ()

    @classmethod
    def of(cls, chosen: Playbook, state: PlaybookState, shown: Iterable[Bullet]) -> PlaybookReport:
        """Return the report of a state, where a program shows some bullets of what was chosen."""
        scores = tuple(state.batch_scores)
        ids = tuple(bullet.id for bullet in shown)
        return cls(chosen, state.playbook, state.online_score, scores, dict(state.done), state.ignored, ids)
