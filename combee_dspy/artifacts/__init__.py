"""What a run learns: an instruction, or a playbook of bullets that deltas edit."""

from combee_dspy.artifacts._base import Artifact, Trajectory
from combee_dspy.artifacts._book import (
    SECTIONS,
    Applied,
    Bullet,
    BulletBook,
    Delta,
    ReadText,
    apply_deltas,
    read_text,
    refine,
    render,
    write_text,
)
from combee_dspy.artifacts._curating import read_deltas
from combee_dspy.artifacts._instruction import Instruction
from combee_dspy.artifacts._online import OnlinePlaybook
from combee_dspy.artifacts._playbook import Playbook
from combee_dspy.artifacts._reflecting import read_tags

__all__ = [
    "SECTIONS",
    "Applied",
    "Artifact",
    "Bullet",
    "BulletBook",
    "Delta",
    "Instruction",
    "OnlinePlaybook",
    "Playbook",
    "ReadText",
    "Trajectory",
    "apply_deltas",
    "read_deltas",
    "read_tags",
    "read_text",
    "refine",
    "render",
    "write_text",
]
