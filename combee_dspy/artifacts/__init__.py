"""What a run learns: an instruction, or a playbook of bullets that deltas edit."""

from combee_dspy.artifacts._base import Artifact, Trajectory
from combee_dspy.artifacts._book import SECTIONS, Book, Bullet
from combee_dspy.artifacts._deltas import Applied, Delta, apply_deltas
from combee_dspy.artifacts._instruction import Instruction
from combee_dspy.artifacts._online import OnlinePlaybook
from combee_dspy.artifacts._playbook import Playbook
from combee_dspy.artifacts._reading import read_deltas, read_tags
from combee_dspy.artifacts._refine import refine
from combee_dspy.artifacts._text import ReadText, read_text, render, write_text

__all__ = [
    "SECTIONS",
    "Applied",
    "Artifact",
    "Book",
    "Bullet",
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
