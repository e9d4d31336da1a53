"""The curators: one question about each shard of insights, as soon as the shard is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dspy

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

__all__ = ["Curated", "CuratedShard", "Curator", "Insight", "join_curated"]

_SPARE = 4

Insight = tuple[int, str]
"""Position in the minibatch, and what was learned there."""


@dataclass(frozen=True, slots=True)
class CuratedShard:
    """One call's answer.

    Attributes:
        sources: Positions of the insights that it read, ascending, each once.
        most: The most operations that it was asked for.
        answer: The curator's, or why there is none.
    """

    sources: tuple[int, ...]
    most: int
    answer: dspy.Prediction | FailedCall


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


class Curator:
    """Asks about shards of one minibatch, each on its own. Thread-safe.

    Args:
        artifact: What is asked.
        playbook: What the deltas are about; the calls see what the budget lets a program see.
        sharding: How much one call may read.
        context: The way to the LM; its text is the student's instruction.
    """

    def __init__(
        self, artifact: PlaybookArtifact, playbook: Playbook, sharding: Sharding, context: StrategyContext
    ) -> None:
        self._signature = artifact.signatures.curate
        self._sections = list(playbook.sections)
        self._sharding = sharding
        self._context = context
        shown = render(playbook, artifact.max_tokens)
        self._shown = shown.text
        self._fixed = estimate_tokens(context.text) + shown.tokens

    def calls(self, insights: Sequence[Insight]) -> list[list[Insight]]:
        """Return what each call reads of a shard: all of it, unless that would pass what one call may take."""
        pieces = self._sharding.pieces([estimate_tokens(text) for _, text in insights], self._fixed)
        return [[insights[place] for place in piece] for piece in pieces]

    def ask(self, insights: Sequence[Insight]) -> tuple[CuratedShard, ...]:
        """Ask about one shard. One without insights costs no call."""
        calls = self.calls(insights)
        inputs: list[dict[str, Any]] = [
            {
                "current_instruction": self._context.text,
                "current_playbook": self._shown,
                "sections": self._sections,
                "insights": [text for _, text in call],
                "most_operations": len(call) + _SPARE,
            }
            for call in calls
        ]
        answers = self._context.predict(self._signature, inputs, role="proposer") if inputs else ()
        return tuple(
            CuratedShard(tuple(sorted({place for place, _ in call})), len(call) + _SPARE, answer)
            for call, answer in zip(calls, answers, strict=True)
        )


def join_curated(shards: Sequence[CuratedShard], playbook: Playbook, told: ScanTeller) -> Curated:
    """Return what all curators of a minibatch asked for, and tell of each.

    Args:
        shards: In the plan's order.
        playbook: What the curators saw.
        told: Tells of the scan; its start has been told.
    """
    deltas: list[Delta] = []
    ignored: list[str] = []
    failed: list[str] = []
    level: list[NodeOutput] = []
    for node, shard in enumerate(shards):
        if isinstance(shard.answer, FailedCall):
            failed.append(shard.answer.error)
            level.append(NodeOutput(1, node, shard.sources, (), shard.answer.error))
            continue
        read = read_deltas(getattr(shard.answer, "operations", None), playbook, shard.most)
        deltas += read.deltas
        ignored += [f"curator {node}: {note}" for note in read.ignored]
        for note in read.ignored:
            told.note(1, node, f"AnswerCut: {note}")
        level.append(NodeOutput(1, node, shard.sources, tuple(_line(delta) for delta in read.deltas)))
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
