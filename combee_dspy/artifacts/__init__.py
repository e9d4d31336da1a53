"""What a run learns, and how a program shows it: an instruction, a memory, a playbook, a skill."""

from combee_dspy.artifacts._base import Artifact, Trajectory
from combee_dspy.artifacts._bullets import SECTIONS, Bullet, BulletText, read_text
from combee_dspy.artifacts._instruction import Instruction
from combee_dspy.artifacts._memory import Memory
from combee_dspy.artifacts._online import OnlinePlaybook
from combee_dspy.artifacts._playbook import Playbook
from combee_dspy.artifacts._reflecting import read_tags
from combee_dspy.artifacts._skill import Skill

__all__ = [
    "SECTIONS",
    "Artifact",
    "Bullet",
    "BulletText",
    "Instruction",
    "Memory",
    "OnlinePlaybook",
    "Playbook",
    "Skill",
    "Trajectory",
    "read_tags",
    "read_text",
]
