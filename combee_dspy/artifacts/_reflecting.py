"""The reflector: one question about each trajectory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import dspy

from combee_dspy.artifacts._base import Trajectory
from combee_dspy.artifacts._book import Bullet
from combee_dspy.artifacts._prompts import ReflectOnTrajectory, ReflectOnTrajectoryWithTruth
from combee_dspy.artifacts._reading import MOST_CHARACTERS, read_tags
from combee_dspy.artifacts._text import line_of
from combee_dspy.artifacts._trajectory import trajectory_of, truth_of
from combee_dspy.records import FailedCall, Reflection
from combee_dspy.reflections import fit_reflections, render_records
from combee_dspy.strategies import StrategyContext

__all__ = ["counts_of", "insight_of", "reflected"]

_TRAJECTORY_TOKENS = 12_000
_INSIGHT, _TAGS = "Feedback", "Bullets"


async def reflected(
    trajectory: Trajectory,
    bullets: tuple[Bullet, ...],
    context: StrategyContext,
    *,
    ground_truth: bool,
    rounds: int,
) -> Reflection | None:
    """Ask about one trajectory, and again where it taught something and several rounds are asked for.

    Args:
        trajectory: What the program did.
        bullets: What the reflector judges.
        context: The way to the LM; its notes are what the program is told besides the playbook.
        ground_truth: Whether the reflector sees the example's labels.
        rounds: How often it looks.

    Returns:
        A reflection whose record holds the key insight, and the tag of each bullet by id; ``None`` where there is
        neither, or the call failed for good.
    """
    rollout = trajectory.rollout
    given: dict[str, Any] = {
        "current_instruction": context.notes,
        "trajectory": _record(trajectory, context),
        "feedback": rollout.feedback or f"This trajectory got a score of {rollout.score:g}.",
        "bullets_used": [line_of(bullet) for bullet in bullets],
        "earlier_reflection": "",
    }
    signature: type[dspy.Signature] = ReflectOnTrajectory
    if ground_truth:
        signature, given["ground_truth"] = ReflectOnTrajectoryWithTruth, truth_of(trajectory)
    found: dict[str, Any] = {}
    for look in range(rounds):
        answer = await context.ask(signature, given, "reflect", trajectory.index, look, role="reflector")
        if isinstance(answer, FailedCall):
            # A later look that fails leaves what the first one found.
            context.emit("error", where="reflector", error=answer.error)
            break
        insight, tags = _read(answer, trajectory, bullets, context)
        found = {_INSIGHT: insight, _TAGS: tags}
        if not insight:
            break
        given = {**given, "earlier_reflection": insight}
    if not any(found.values()):
        return None
    return Reflection(trajectory.index, found, rollout.example_id)


def insight_of(reflection: Reflection) -> str:
    """Return the key insight in a reflection; empty where it only judges bullets."""
    return str(reflection.record.get(_INSIGHT, ""))


def counts_of(reflections: Iterable[Reflection]) -> dict[str, dict[str, int]]:
    """Return how often each bullet was tagged ``"helpful"`` and ``"harmful"``, by tag and id."""
    counts: dict[str, Counter[str]] = {"helpful": Counter(), "harmful": Counter()}
    for reflection in reflections:
        for name, tag in reflection.record.get(_TAGS, {}).items():
            if tag in counts:
                counts[tag][name] += 1
    return {tag: dict(sorted(found.items())) for tag, found in counts.items()}


def _record(trajectory: Trajectory, context: StrategyContext) -> dict[str, Any]:
    whole = Reflection(trajectory.index, trajectory_of(trajectory))
    fitted = fit_reflections([whole], _TRAJECTORY_TOKENS, lambda note: context.emit("warning", text=note), max_parts=1)
    return render_records(fitted)[0]


def _read(
    answer: Any, trajectory: Trajectory, bullets: tuple[Bullet, ...], context: StrategyContext
) -> tuple[str, dict[str, str]]:
    tags, ignored = read_tags(getattr(answer, "bullet_tags", None), {bullet.id for bullet in bullets})
    for note in ignored:
        context.emit("warning", text=f"reflection {trajectory.index}: {note} was ignored")
    insight = getattr(answer, "key_insight", None)
    return (insight.strip()[:MOST_CHARACTERS] if isinstance(insight, str) else ""), tags
