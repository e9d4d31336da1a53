"""The curators: one question about each shard of insights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from combee_dspy.aggregators._telling import ScanTeller
from combee_dspy.artifacts._artifact import PlaybookArtifact
from combee_dspy.artifacts._deltas import Delta
from combee_dspy.artifacts._playbook import Playbook
from combee_dspy.artifacts._reading import read_deltas
from combee_dspy.artifacts._sharding import Sharding
from combee_dspy.artifacts._text import render
from combee_dspy.records import FailedCall, Lesson, NodeOutput
from combee_dspy.reflections import estimate_tokens
from combee_dspy.strategies import StrategyContext

__all__ = ["Curated", "curate"]

_SPARE = 4


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
