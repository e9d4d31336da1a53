"""What a run learns: an instruction, or a playbook of bullets that deltas edit."""

from combee_dspy.artifacts._base import Artifact, Trajectory

__all__ = ["Artifact", "Trajectory"]
