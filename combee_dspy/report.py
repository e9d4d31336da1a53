"""What a run has to say for itself when it is over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from combee_dspy.evaluation import PairedDifference, Receipt
from combee_dspy.records import BatchDecision
from combee_dspy.stopping import Selection

__all__ = ["CombeeReport"]


@dataclass(frozen=True, slots=True)
class CombeeReport:
    """Attached to a compiled program as ``combee_report``.

    Attributes:
        reason: Why the run stopped, in one sentence.
        seed_score: Mean validation score of the student as it was given; NaN where nothing was validated.
        best_score: Mean validation score of the program that was returned; NaN where nothing was validated.
        rollouts: Rollouts bought, by gepa's count and with the finalists' further draws.
        iterations: Iterations begun.
        seconds: Wall-clock seconds, of all parts of a run that was resumed.
        costs: The ledger's totals: ``seconds``, ``total`` and ``by_role``, of all parts of a run that was resumed.
        heldout: Held-out scores of student and result with their interval, where a held-out set was given.
        receipt: What was read of the held-out set, by whom, and after how many earlier looks.
        speculative: Rollouts that were begun early and not needed, those stopped in time included: on a guess, or for
            an iteration that had been drawn and never came. They are counted in the budget, and among ``rollouts``.
        speculative_reads: Shards that might have been read on a guess that was wrong, read or not. The
            ledger has the calls that were made.
        selection: How the program was chosen: finalists, draws, the runner-up's distance, looks.
        digests: SHA-256 per split.
        decisions: Every batch decision with its fit and clamps, of all parts of a run that was resumed.
        specs: The strategies as plain data, with ``memoize``.
        models: Model names by role.
        seed: The seed.
        warnings: What makes the run unfit for claims.
    """

    reason: str
    seed_score: float
    best_score: float
    rollouts: int
    iterations: int
    seconds: float
    costs: Mapping[str, Any]
    heldout: PairedDifference | None
    digests: Mapping[str, str]
    decisions: tuple[BatchDecision, ...] = ()
    specs: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    warnings: tuple[str, ...] = ()
    receipt: Receipt | None = None
    selection: Selection | None = None
    speculative: int = 0
    speculative_reads: int = 0

    @property
    def supports_claims(self) -> bool:
        """Whether held-out figures of this run may be quoted as such."""
        return self.heldout is not None and not self.warnings
