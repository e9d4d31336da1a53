"""What a reflector sees of a rollout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from typing import Any

from combee_dspy.artifacts._playbook import Bullet
from combee_dspy.diversity import character_ngrams
from combee_dspy.records import Rollout

__all__ = ["BulletFinder", "trajectory_of", "truth_of"]

_TOLD = 2_000


def trajectory_of(rollout: Rollout) -> dict[str, Any]:
    """Return what the program was given and did: its inputs, then each step where there are several.

    DSPy types (images, files) stay what they are and reach the LM as such.
    """
    found: dict[str, Any] = {"Inputs": dict(rollout.example.inputs().items())}
    steps = list(zip(rollout.trace, chain(rollout.callers, repeat("")), strict=False))
    if len(steps) == 1:
        found["Generated Outputs"] = _outputs(steps[0][0][2])
    elif steps:
        found["Steps"] = [
            {"Step": path or "call", "Inputs": dict(inputs), "Generated Outputs": _outputs(outputs)}
            for (_, inputs, outputs), path in steps
        ]
    elif rollout.prediction is not None:
        found["Generated Outputs"] = _outputs(rollout.prediction)
    if rollout.error is not None:
        found["Error"] = rollout.error
    return found


def truth_of(rollout: Rollout) -> dict[str, Any]:
    """Return the example's label fields."""
    return dict(rollout.example.labels().items())


class BulletFinder:
    """Finds the bullets that the reflector of a trajectory is to judge. Thread-safe.

    Those whose ids the trajectory's outputs cite; where it cites none, those most like its
    inputs by their runs of characters.

    Args:
        shown: The bullets that the program was shown.
        most: The most bullets for one trajectory.
    """

    def __init__(self, shown: Sequence[Bullet], most: int) -> None:
        self._shown = tuple(shown) if most else ()
        self._most = most
        self._vectors = character_ngrams([bullet.content for bullet in self._shown])

    def find(self, rollout: Rollout) -> tuple[Bullet, ...]:
        """Return them in the playbook's order."""
        if not self._shown:
            return ()
        said = _said(rollout)
        places = [place for place, bullet in enumerate(self._shown) if _cites(said, bullet.id)]
        if not places:
            given = " ".join(str(value) for value in rollout.example.inputs().values())
            alike = self._vectors @ character_ngrams([given[:_TOLD]])[0]
            best = sorted(range(len(self._shown)), key=lambda place: (-float(alike[place]), place))
            places = [place for place in best[: self._most] if alike[place] > 0]
        return tuple(self._shown[place] for place in sorted(places[: self._most]))


def _cites(text: str, bullet_id: str) -> bool:
    # A short id without brackets, such as "1", stands in any text.
    return f"[{bullet_id}]" in text or (len(bullet_id) >= 8 and bullet_id in text)


def _said(rollout: Rollout) -> str:
    outputs: Iterable[Any] = [outputs for _, _, outputs in rollout.trace] or [rollout.prediction]
    return "\n".join(str(_outputs(one)) for one in outputs)


def _outputs(prediction: Any) -> dict[str, Any]:
    items = getattr(prediction, "items", None)
    if callable(items):
        return dict(items())
    return {} if prediction is None else {"Answer": str(prediction)}
