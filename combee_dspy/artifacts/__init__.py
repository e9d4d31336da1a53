"""What a run learns: an instruction, or a playbook of bullets that deltas edit."""

from combee_dspy.artifacts._artifact import Mode, PlaybookArtifact, Signatures, Start
from combee_dspy.artifacts._base import Artifact, Instruction
from combee_dspy.artifacts._curating import Curated, CuratedShard, Curator, Insight, join_curated
from combee_dspy.artifacts._deltas import Applied, Delta, Op, apply_deltas
from combee_dspy.artifacts._playbook import SECTIONS, Bullet, Playbook
from combee_dspy.artifacts._reading import ReadDeltas, read_deltas, read_tags
from combee_dspy.artifacts._refine import Refined, refine
from combee_dspy.artifacts._reflecting import Answered, Reflected, Reflector, join_answers
from combee_dspy.artifacts._sharding import Sharding
from combee_dspy.artifacts._text import ReadText, Rendered, line_of, read_text, render, write_text

__all__ = [
    "SECTIONS",
    "Answered",
    "Applied",
    "Artifact",
    "Bullet",
    "Curated",
    "CuratedShard",
    "Curator",
    "Delta",
    "Insight",
    "Instruction",
    "Mode",
    "Op",
    "Playbook",
    "PlaybookArtifact",
    "ReadDeltas",
    "ReadText",
    "Refined",
    "Reflected",
    "Reflector",
    "Rendered",
    "Sharding",
    "Signatures",
    "Start",
    "apply_deltas",
    "join_answers",
    "join_curated",
    "line_of",
    "read_deltas",
    "read_tags",
    "read_text",
    "refine",
    "render",
    "write_text",
]
