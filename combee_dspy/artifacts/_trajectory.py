"""What a reflector sees of a rollout."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from combee_dspy.artifacts._base import Trajectory
from combee_dspy.artifacts._book import Bullet
from combee_dspy.artifacts._text import read_text, render
from combee_dspy.records import PredictorCall
from combee_dspy.reflections import ngram_counts

__all__ = ["bullets_for", "trajectory_of", "truth_of"]

_TOLD = 2_000
_SIZES, _BUCKETS = (3, 4, 5), 4_096


def trajectory_of(trajectory: Trajectory) -> dict[str, Any]:
    """Return what the program was given and did: its inputs, then each step where there are several.

    DSPy types (images, files) stay what they are and reach the LM as such.
    """
    rollout = trajectory.rollout
    found: dict[str, Any] = {"Inputs": dict(trajectory.example.inputs().items())}
    if len(rollout.calls) == 1:
        found["Generated Outputs"] = _outputs(rollout.calls[0])
    elif rollout.calls:
        found["Steps"] = [
            {"Step": call.predictor or "call", "Inputs": dict(call.inputs), "Generated Outputs": _outputs(call)}
            for call in rollout.calls
        ]
    elif rollout.prediction is not None:
        found["Generated Outputs"] = dict(rollout.prediction)
    if rollout.error is not None:
        found["Error"] = rollout.error
    return found


def truth_of(trajectory: Trajectory) -> dict[str, Any]:
    """Return the example's label fields."""
    return dict(trajectory.example.labels().items())


def bullets_for(trajectory: Trajectory, text: str, max_tokens: int, most: int) -> tuple[Bullet, ...]:
    """Return the bullets that the reflector of a trajectory is to judge, in the playbook's order.

    Those whose ids the trajectory's outputs cite; where it cites none, those most like its
    inputs by their runs of characters.

    Args:
        trajectory: What the program did.
        text: The playbook.
        max_tokens: Estimated tokens of it that the program was shown.
        most: The most bullets.
    """
    bullets, vectors = _shown(text, max_tokens)
    said = _said(trajectory)
    places = [place for place, bullet in enumerate(bullets) if _cites(said, bullet.id)]
    if not places and bullets:
        given = " ".join(str(value) for value in trajectory.example.inputs().values())
        alike = (vectors @ _vectors([given[:_TOLD]]).T).toarray()[:, 0]
        best = sorted(range(len(bullets)), key=lambda place: (-float(alike[place]), place))
        places = [place for place in best[:most] if alike[place] > 0]
    return tuple(bullets[place] for place in sorted(places[:most]))


@lru_cache(maxsize=8)
def _shown(text: str, max_tokens: int) -> tuple[tuple[Bullet, ...], Any]:
    """Return the bullets in sight and their vectors: all trajectories of a minibatch share them."""
    _, bullets = render(read_text(text).book, max_tokens)
    return bullets, _vectors([bullet.content for bullet in bullets])


def _vectors(texts: list[str]) -> Any:
    """Return one row of unit length a text, or a row of zeros where there is nothing to compare."""
    from scipy import sparse

    counts = ngram_counts(texts, _SIZES, _BUCKETS, signed=True)
    lengths = np.sqrt(counts.multiply(counts).sum(axis=1)).A1
    return sparse.diags(1.0 / np.maximum(lengths, 1e-12)) @ counts


def _cites(text: str, bullet_id: str) -> bool:
    # A short id without brackets, such as "1", stands in any text.
    return f"[{bullet_id}]" in text or (len(bullet_id) >= 8 and bullet_id in text)


def _said(trajectory: Trajectory) -> str:
    rollout = trajectory.rollout
    outputs = [_outputs(call) for call in rollout.calls] or [dict(rollout.prediction or {})]
    return "\n".join(map(str, outputs))


def _outputs(call: PredictorCall) -> Mapping[str, Any]:
    return {"Answer": call.completion} if call.outputs is None else dict(call.outputs)
