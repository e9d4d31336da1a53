"""The result of a finished run: scores, costs, texts, and what they support."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

from combee_dspy.costs import CostTotals, Sums
from combee_dspy.evaluation import CalibrationResult, CostPerPoint, PairedDifference, Receipt
from combee_dspy.records import NO_BASELINE, BatchDecision, FailureCount
from combee_dspy.verdicts import UNPROVEN, judge_difference

__all__ = ["CombeeReport"]


def _spent(total: Sums) -> str:
    if total.dollars is not None:
        return f"${total.dollars:.4f}, {total.tokens:,} tokens"
    priced = f"more than ${total.known_dollars:.4f}" if total.known_dollars else "dollars unknown"
    return f"{priced}, {total.tokens:,} tokens"


@dataclass(frozen=True, slots=True)
class CombeeReport:
    """Attached to a compiled program as ``combee_report``. Printed, it says the result in ten lines
    at most.

    Attributes:
        reason: Why the run stopped, in one sentence.
        seed_score: Mean validation score of the student as it was given; NaN where nothing was
            validated.
        best_score: Mean validation score of the program that was returned; NaN where nothing was
            validated.
        rollouts: Rollouts of the search, of all parts of a run that was resumed, those taken from a
            cache too; those of the held-out set and those that were recorded elsewhere are not
            among them.
        recorded: Rollouts that were recorded elsewhere and read.
        traces: Which traces were read, why others were not, and who had answered them; empty
            without any.
        validated: Whether there were rows to validate on.
        updates: Updates committed.
        seconds: Wall-clock seconds, of all parts of a run that was resumed.
        costs: Sums over the journal's usage, of all parts of a run that was resumed.
        failures: What failed, by kind of effect, role and cause, of all parts and of the held-out
            set too.
        heldout: Held-out scores of student and result with their interval, where a held-out set was
            given.
        unread: Why a held-out set that was given was not read; else empty.
        per_point: What each held-out point above the serial baseline has cost, where
            ``Heldout(baseline=…)`` gave one: never above the run's own student.
        calibration: How far the judge agreed with its reference, where it was held to one.
        receipt: What was read of the held-out set, and after how many earlier looks.
        looks_recorded: Where looks at the held-out set are recorded, and what nobody knows of them.
        texts: The returned program's texts by component: instructions, or the playbook.
        digests: SHA-256 per split.
        decisions: Every batch decision with its fit and clamps.
        specs: The strategies as plain data.
        models: Model names by role.
        seed: The seed.
        warnings: What makes the run unfit for claims.
        journal: The run's journal; empty where it went with the run.
        page: The run's report, to open in a browser: written once the run is over, beside its
            journal.
    """

    reason: str
    seed_score: float
    best_score: float
    rollouts: int
    updates: int
    seconds: float
    costs: CostTotals
    heldout: PairedDifference | None
    receipt: Receipt | None = None
    looks_recorded: str = ""
    unread: str = ""
    per_point: CostPerPoint | None = None
    calibration: CalibrationResult | None = None
    failures: tuple[FailureCount, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    decisions: tuple[BatchDecision, ...] = ()
    specs: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    warnings: tuple[str, ...] = ()
    recorded: int = 0
    traces: str = ""
    validated: bool = True
    journal: str = ""
    page: str = ""

    @property
    def supports_claims(self) -> bool:
        """Whether held-out figures of this run may be quoted as such."""
        return self.heldout is not None and not self.warnings

    def facts(self) -> dict[str, str]:
        """Return the result as names and sentences, ten at most, the verdict first."""
        models = ", ".join(f"{role} {model}" for role, model in self.models.items())
        if "simulated" in models:
            models += " (simulated: no language model answered, so no claim about one is supported)"
        calls = "; ".join(f"{role} {sums}" for role, sums in self.costs.by_role.items())
        recorded = f"{self.recorded} recorded rollouts, none bought: {self.traces}"
        scores = f"{self.seed_score:.3f} → {self.best_score:.3f}"
        facts = {
            "not validated": "" if self.validated else "no rows to validate on: a proposal",
            "held-out": self._heldout_fact(),
            # What the score has cost, and a point of it: seconds say little without the rollouts.
            "spent": (
                f"{_spent(self.costs.total)}, {self.rollouts} rollouts in {self.updates} updates,"
                f" {self.seconds:.1f} s"
            ),
            "traces": recorded if self.traces else "",
            "per held-out point": str(self.per_point or NO_BASELINE) if self.heldout else "",
            "validation": scores if math.isfinite(self.best_score) else "",
            "calls": calls,
            "models": models,
            "failed": ", ".join(map(str, self.failures)),
            "warnings": " ".join(text for text in self.warnings if text != UNPROVEN),
            "stopped": self.reason,
            "report": self.page,
        }
        return {name: text for name, text in facts.items() if text}

    def _heldout_fact(self) -> str:
        held, receipt = self.heldout, self.receipt
        if held is None:
            return self.unread or UNPROVEN
        verdict = judge_difference(held.difference, held.low, held.high, held.n)
        interval = f"{held.confidence:.0%} interval {held.low:+.3f} to {held.high:+.3f}"
        figures = f"{held.before:.3f} → {held.after:.3f} ({held.difference:+.3f}, {interval})"
        look = f"; look {receipt.looks + 1}; {self.looks_recorded}" if receipt else ""
        return f"{verdict}: {figures}{look}"

    def __str__(self) -> str:
        """Return the result in ten lines at most."""
        return "\n".join(
            f"{name:<20}{' '.join(text.split())}" for name, text in self.facts().items()
        )

    def _repr_html_(self) -> str:
        """Return the result for a notebook: its figures and its texts; whatever a model wrote stays
        text.
        """
        rows = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>"
            for name, text in self.facts().items()
        )
        texts = "".join(
            f"<h4>{escape(name)}</h4><pre>{escape(text)}</pre>" for name, text in self.texts.items()
        )
        return f"<table>{rows}</table><details><summary>the texts</summary>{texts}</details>"
