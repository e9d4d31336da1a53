"""When waiting jobs are released, and in what company."""

from __future__ import annotations

from combee_dspy.strategies import parameters

__all__ = ["Batching"]


@parameters
class Batching:
    """When waiting jobs are released, and in what company."""
