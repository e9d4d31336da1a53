"""Serial ACE: generate, reflect and curate, one example at a time."""

from __future__ import annotations

from typing import ClassVar

import dspy

from combee_dspy.artifacts import PlaybookArtifact
from combee_dspy.baselines._base import Baseline
from combee_dspy.baselines._combee import compiled
from combee_dspy.baselines._desk import Desk
from combee_dspy.baselines._records import BaselineTask
from combee_dspy.exceptions import ArgumentValueError

__all__ = ["ACE"]


class ACE(Baseline):
    """ACE's playbook learned offline with a batch of one (arXiv 2510.04618), until the budget is spent.

    Each example is run with the playbook so far, reflected on in one call and curated in
    another. It has no search: the best on validation is returned.

    Args:
        validate_every: Examples between two validations. ``None`` validates whenever as many
            examples were learned from as the validation set has rows, so that learning
            and validation share the budget evenly.
        rounds: How often the reflector looks at a trajectory that failed.
        ground_truth: Whether the reflector sees the examples' labels.
        max_tokens: Estimated tokens that the program sees of the playbook.
    """

    name: ClassVar[str] = "ace"
    distributions: ClassVar[tuple[str, ...]] = ("dspy",)
    reports_itself: ClassVar[bool] = True

    def __init__(
        self,
        validate_every: int | None = None,
        rounds: int = 1,
        ground_truth: bool = True,
        max_tokens: int = 8_000,
    ) -> None:
        self.validate_every = validate_every
        self.rounds = rounds
        self.ground_truth = ground_truth
        self.max_tokens = max_tokens

    def validate(self) -> None:
        """Check the parameters.

        Raises:
            ArgumentTypeError: One is no whole number.
            ArgumentValueError: One is out of its range.
        """
        if self.validate_every is not None and self.validate_every == 0:
            remedy = "Give at least 1: the curve is measured on the validation set."
            raise ArgumentValueError("validate_every", 0, "would never validate", remedy)
        self._artifact(1, self.validate_every or 1).validate()

    def search(self, task: BaselineTask, desk: Desk) -> dspy.Module | None:
        """Learn a playbook example by example."""
        rows = len(task.validation)
        artifact = self._artifact(-(-task.budget // len(task.train)), self.validate_every or rows)
        # What is learned last is validated too: that has to be left over.
        budget = max(1, task.budget - rows)
        return compiled(
            task,
            desk,
            budget,
            artifact=artifact,
            aggregator="single-call",
            reflection_minibatch_size=1,
            memoize=False,
        )

    def _artifact(self, epochs: int, every: int) -> PlaybookArtifact:
        return PlaybookArtifact(
            max_tokens=self.max_tokens,
            epochs=epochs,
            validate_every=every,
            ground_truth=self.ground_truth,
            rounds=self.rounds,
        )
