"""What may have been paid: effects in flight at a kill, calls whose answers never came."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from combee_dspy.search._spent import COUNTED, EffectKind, Spent
from combee_dspy.stopping import Limits

__all__ = ["Lost", "describe_doubts", "describe_held"]


@dataclass(frozen=True, slots=True)
class Lost:
    """An effect, or answers of one, of which nobody knows what they have cost.

    Attributes:
        key: The effect's key.
        most: What they may have cost at most, of what is limited.
        until: When a service can work on them no longer, in seconds since 1970.
        answers: How many calls of it got no answer that could be read; 0 for a whole effect that
            was in flight when a run was killed.
    """

    key: str
    most: Mapping[str, float]
    until: float = 0.0
    answers: int = 0

    @property
    def is_rollout(self) -> bool:
        """Whether rollouts say what it has likely cost, or all else does."""
        return self.key.startswith("rollout/")

    def joins(self, other: Lost) -> bool:
        """Return whether both are lost answers of what costs alike."""
        return bool(self.answers and other.answers and self.is_rollout == other.is_rollout)

    def joined(self, other: Lost) -> Lost:
        """Return the answers of both together."""
        names = {*self.most, *other.most}
        most = {name: self.most.get(name, 0.0) + other.most.get(name, 0.0) for name in names}
        return replace(self, most=most, answers=self.answers + other.answers)

    @property
    def is_running(self) -> bool:
        """Whether a service may work on it still."""
        return self.until > time.time()

    def charged(self, kinds: Mapping[str, EffectKind]) -> Mapping[str, float]:
        """Return what a purse counts for them: the most while they may be running, then what is
        likely.
        """
        return self.most if self.is_running else self.likely(kinds)

    def likely(self, kinds: Mapping[str, EffectKind]) -> Mapping[str, float]:
        """Return what they have likely cost: the mean of those of its kind that have ended, and the
        most where there is none.
        """
        alike = [kind for name, kind in kinds.items() if (name == "rollout") == self.is_rollout]
        count = sum(kind.answered if self.answers else kind.ended for kind in alike)
        likely = {}
        for name, most in self.most.items():
            sums = [getattr(kind.total, name) for kind in alike]
            if not count or None in sums:
                likely[name] = most
                continue
            mean = max(self.answers, 1) * sum(sums) / count
            # Before anything of its kind was answered, nobody could say what it costs at most.
            likely[name] = min(most, mean) if most else mean
        return likely


def describe_held(lost: Sequence[Lost], name: str) -> str:
    """Return how much of a limit is held for what may be running still; empty for none."""
    running = [effect for effect in lost if effect.is_running and effect.most.get(name)]
    if not running:
        return ""
    until = time.strftime("%H:%M", time.localtime(max(effect.until for effect in running)))
    held = sum(effect.most[name] for effect in running)
    return f" ({held:g} are held until {until} for what was in flight at a kill)"


def describe_doubts(
    lost: Sequence[Lost], kinds: Mapping[str, EffectKind], limits: Limits, spent: Spent
) -> list[str]:
    """Return by how much limits may be passed by what nobody knows the cost of, a sentence each."""
    sentences = []
    for name in COUNTED:
        limit, used = getattr(limits, name), getattr(spent, name)
        doubtful = [effect for effect in lost if name in effect.most]
        if limit is None or used is None or not doubtful:
            continue
        settled = [effect for effect in doubtful if not effect.is_running]
        likely = sum(effect.likely(kinds)[name] for effect in settled)
        most = sum(max(effect.most[name], effect.likely(kinds)[name]) for effect in settled)
        running = sum(effect.most[name] for effect in doubtful if effect.is_running)
        answers = sum(effect.answers for effect in doubtful)
        killed = sum(not effect.answers for effect in doubtful)
        unit, over = name.replace("_", " "), max(0.0, used + most - likely - limit)
        causes = [f"{killed} effects were in flight when the run was killed"] if killed else []
        causes += [f"{answers} calls got no answer that could be read"] if answers else []
        held = (
            f", and {running:g} the most that those may cost that may still be running"
            if running
            else ""
        )
        sentences.append(
            f"{', and '.join(causes)}. Of the {unit} spent, {likely:g} are their likely cost{held}."
            f" The limit of {limit:g} {unit} may be passed by {over:g}."
        )
    return sentences
