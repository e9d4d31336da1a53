"""The artifact contract: what a run learns, and how a predictor reads it."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from combee_dspy.strategies import Strategy

__all__ = ["Artifact", "Instruction"]


class Artifact(Strategy):
    """What a run edits.

    ``instruction`` is edited by gepa's search, ``playbook`` by its own loop, which any subclass
    of :class:`combee_dspy.artifacts.PlaybookArtifact` shares.
    """

    kind: ClassVar[str] = "artifact"

    @abstractmethod
    def show(self, instruction: str, learned: str) -> str:
        """Return the instruction that a predictor gets.

        Args:
            instruction: The student's own.
            learned: What has been learned, as the artifact keeps it; empty where nothing has.
        """


class Instruction(Artifact):
    """GEPA's artifact: the instruction itself, rewritten whole."""

    name: ClassVar[str] = "instruction"

    def show(self, instruction: str, learned: str) -> str:
        """Return what was learned, which is an instruction; the student's own where nothing was."""
        return learned or instruction
