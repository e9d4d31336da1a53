"""What a run learns: an instruction, or a playbook of bullets that deltas edit."""

from combee_dspy.artifacts._artifact import Mode, PlaybookArtifact, Signatures, Start
from combee_dspy.artifacts._asking import Curated, Reflected, curate, reflect
from combee_dspy.artifacts._base import Artifact, Instruction
from combee_dspy.artifacts._deltas import Applied, Delta, Op, apply_deltas
from combee_dspy.artifacts._playbook import SECTIONS, Bullet, Playbook
from combee_dspy.artifacts._reading import ReadDeltas, read_deltas, read_tags
from combee_dspy.artifacts._refine import Refined, refine
from combee_dspy.artifacts._sharding import Sharding
from combee_dspy.artifacts._text import ReadText, Rendered, line_of, read_text, render, write_text

__all__ = [
    "SECTIONS",
    "Applied",
    "Artifact",
    "Bullet",
    "Curated",
    "Delta",
    "Instruction",
    "Mode",
    "Op",
    "Playbook",
    "PlaybookArtifact",
    "ReadDeltas",
    "ReadText",
    "Refined",
    "Reflected",
    "Rendered",
    "Sharding",
    "Signatures",
    "Start",
    "apply_deltas",
    "curate",
    "line_of",
    "read_deltas",
    "read_tags",
    "read_text",
    "reflect",
    "refine",
    "render",
    "write_text",
]
