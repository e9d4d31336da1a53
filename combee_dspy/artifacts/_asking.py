"""Reflect and curate: the two questions of a playbook, asked about many at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from combee_dspy.aggregators._telling import ScanTeller
from combee_dspy.artifacts._artifact import PlaybookArtifact
from combee_dspy.artifacts._deltas import Delta
from combee_dspy.artifacts._playbook import Playbook
from combee_dspy.artifacts._reading import MOST_CHARACTERS, read_deltas, read_tags
from combee_dspy.artifacts._sharding import Sharding
from combee_dspy.artifacts._text import line_of, render
from combee_dspy.artifacts._trajectory import bullets_at_hand, trajectory_of, truth_of
from combee_dspy.records import FailedCall, Lesson, NodeOutput, Reflection, Rollout
from combee_dspy.reflections import estimate_tokens, fit_reflections, render_records
from combee_dspy.strategies import StrategyContext

__all__ = ["Curated", "Reflected", "curate", "reflect"]

_SPARE = 4


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


@dataclass(frozen=True, slots=True)
class Curated:
    """What the curators asked for.

    Attributes:
        deltas: Of all shards; their order does not matter.
        nodes: What each shard returned, and their join.
        ignored: What of the answers was not used, one sentence each.
        failed: Error of each shard that failed for good.
    """

    deltas: tuple[Delta, ...]
    nodes: tuple[NodeOutput, ...] = ()
    ignored: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


def reflect(
    artifact: PlaybookArtifact,
    playbook: Playbook,
    rollouts: Sequence[Rollout],
    context: StrategyContext,
    *,
    max_call_tokens: int = 24_000,
    perfect_score: float = 1.0,
) -> Reflected:
    """Ask the reflector about every trajectory, all at once, and again about those that failed where asked to.

    Args:
        artifact: What is asked, and how often.
        playbook: What the program was shown; a budget hides bullets here as it did there.
        rollouts: The minibatch.
        context: The way to the LM; its text is the student's instruction.
        max_call_tokens: Estimated tokens that one call may take; longer trajectories are trimmed.
        perfect_score: Rollouts below it have failed.
    """
    visible = set(render(playbook, artifact.max_tokens).shown)
    shown = [bullet for bullet in playbook.bullets if bullet.id in visible]
    bullets = bullets_at_hand(rollouts, shown, artifact.most_bullets)
    records = _records([{"trajectory": trajectory_of(rollout)} for rollout in rollouts], context, max_call_tokens)
    inputs: list[dict[str, Any]] = [
        {
            "current_instruction": context.text,
            "trajectory": record["trajectory"],
            "feedback": rollout.feedback or f"This trajectory got a score of {rollout.score:g}.",
            "bullets_used": [line_of(bullet) for bullet in at_hand],
            "earlier_reflection": "",
            **({"ground_truth": truth_of(rollout)} if artifact.ground_truth else {}),
        }
        for rollout, record, at_hand in zip(rollouts, records, bullets, strict=True)
    ]
    answers: dict[int, Any] = {}
    asked = list(range(len(rollouts)))
    for number in range(artifact.rounds):
        if number:
            asked = [one for one in asked if rollouts[one].score < perfect_score]
            for one in asked:
                inputs[one]["earlier_reflection"] = _insight(answers.get(one))
        if not asked:
            break
        made = context.predict(artifact.signature(), [inputs[one] for one in asked], role="reflector")
        for one, answer in zip(asked, made, strict=True):
            # A later look that fails leaves what the first one found.
            if one not in answers or not isinstance(answer, FailedCall):
                answers[one] = answer
    return _reflected(answers, [{bullet.id for bullet in at_hand} for at_hand in bullets])


def _records(
    records: Sequence[Mapping[str, Any]], context: StrategyContext, max_call_tokens: int
) -> list[dict[str, Any]]:
    reflections = [Reflection(index, record["trajectory"]) for index, record in enumerate(records)]
    room = max(max_call_tokens // 2, 64)
    fitted = fit_reflections(reflections, room, context.component, context.emit, context.iteration, max_parts=1)
    return [{"trajectory": record} for record in render_records(fitted)]


def _reflected(answers: Mapping[int, Any], shown: Sequence[set[str]]) -> Reflected:
    helpful: Counter[str] = Counter()
    harmful: Counter[str] = Counter()
    insights, ignored, failed = [], [], []
    for one in sorted(answers):
        answer = answers[one]
        if isinstance(answer, FailedCall):
            failed.append(answer.error)
            continue
        tags, notes = read_tags(getattr(answer, "bullet_tags", None), shown[one])
        ignored += [f"reflection {one}: {note}" for note in notes]
        helpful.update(name for name, tag in tags.items() if tag == "helpful")
        harmful.update(name for name, tag in tags.items() if tag == "harmful")
        insight = _insight(answer)
        if insight:
            insights.append((one, insight))
    return Reflected(tuple(insights), dict(helpful), dict(harmful), tuple(ignored), tuple(failed))


def _insight(answer: Any) -> str:
    value = getattr(answer, "key_insight", None)
    if not isinstance(value, str):
        return ""
    return value.strip()[:MOST_CHARACTERS]


def curate(
    artifact: PlaybookArtifact,
    playbook: Playbook,
    insights: Sequence[tuple[int, str]],
    sharding: Sharding,
    context: StrategyContext,
) -> Curated:
    """Ask curators for deltas: each shard of insights by one call, all calls at once.

    Args:
        artifact: What is asked.
        playbook: What the deltas are about; the calls see what the budget lets a program see.
        insights: Position in the minibatch and text.
        sharding: How insights become shards.
        context: The way to the LM; its text is the student's instruction.
    """
    told = ScanTeller(context, sharding.name)
    shown = render(playbook, artifact.max_tokens)
    fixed = estimate_tokens(context.text) + shown.tokens
    shards = sharding.shards([estimate_tokens(text) for _, text in insights], fixed, context)
    told.started(len(insights), (len(shards), 0) if shards else ())
    inputs: list[dict[str, Any]] = [
        {
            "current_instruction": context.text,
            "current_playbook": shown.text,
            "sections": list(playbook.sections),
            "insights": [insights[place][1] for place in shard],
            "most_operations": len(shard) + _SPARE,
        }
        for shard in shards
    ]
    answers = context.predict(artifact.signatures.curate, inputs, role="proposer") if inputs else ()
    deltas: list[Delta] = []
    ignored: list[str] = []
    failed: list[str] = []
    level: list[NodeOutput] = []
    for node, (shard, answer) in enumerate(zip(shards, answers, strict=True)):
        sources = tuple(sorted({insights[place][0] for place in shard}))
        if isinstance(answer, FailedCall):
            failed.append(answer.error)
            level.append(NodeOutput(1, node, sources, (), answer.error))
            continue
        read = read_deltas(getattr(answer, "operations", None), playbook, len(shard) + _SPARE)
        deltas += read.deltas
        ignored += [f"curator {node}: {note}" for note in read.ignored]
        for note in read.ignored:
            told.note(1, node, f"AnswerCut: {note}")
        level.append(NodeOutput(1, node, sources, tuple(_line(delta) for delta in read.deltas)))
    told.level_done(level)
    nodes = tuple(level)
    if level:
        every = tuple(sorted({source for node in level for source in node.sources}))
        root = NodeOutput(2, 0, every, tuple(dict.fromkeys(line for node in level for line in node.lessons)))
        told.level_done((root,))
        nodes = (*nodes, root)
        told.finished(nodes, [Lesson(line, every) for line in root.lessons])
    return Curated(tuple(deltas), nodes, tuple(ignored), tuple(failed))


def _line(delta: Delta) -> str:
    if delta.op == "ADD":
        return delta.content
    return f"{delta.op} {', '.join(delta.ids)}{': ' if delta.content else ''}{delta.content}"
