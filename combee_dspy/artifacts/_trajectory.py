"""What a reflector sees of a rollout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from typing import Any

from combee_dspy.artifacts._playbook import Bullet
from combee_dspy.diversity import character_ngrams
from combee_dspy.records import Rollout

__all__ = ["bullets_at_hand", "truth_of", "trajectory_of"]

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


def bullets_at_hand(rollouts: Sequence[Rollout], shown: Sequence[Bullet], most: int) -> list[tuple[Bullet, ...]]:
    """Return the bullets that the reflector of each rollout is to judge.

    Those whose ids the trajectory's outputs cite; where it cites none, those most like its
    inputs by their runs of characters. In the playbook's order.

    Args:
        rollouts: The rollouts of one minibatch.
        shown: The bullets that their program was shown.
        most: The most bullets for one rollout.
    """
    if not shown or most == 0:
        return [() for _ in rollouts]
    said = [_said(rollout) for rollout in rollouts]
    cited = [[place for place, bullet in enumerate(shown) if _cites(text, bullet.id)] for text in said]
    silent = [number for number, places in enumerate(cited) if not places]
    if silent:
        texts = [" ".join(str(value) for value in rollouts[number].example.inputs().values()) for number in silent]
        vectors = character_ngrams([*(bullet.content for bullet in shown), *(text[:_TOLD] for text in texts)])
        alike = vectors[len(shown) :] @ vectors[: len(shown)].T
        for number, row in zip(silent, alike, strict=True):
            best = sorted(range(len(shown)), key=lambda place: (-float(row[place]), place))
            cited[number] = [place for place in best[:most] if row[place] > 0]
    return [tuple(shown[place] for place in sorted(places[:most])) for places in cited]


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
