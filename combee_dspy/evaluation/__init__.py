"""Honest figures: judges and their calibration, the held-out contract, and intervals for what a run
claims.

Judges are loaded on first use: a report reads receipts without DSPy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from combee_dspy.evaluation._baseline import CostPerPoint, SerialBaseline
from combee_dspy.evaluation._compare import (
    PairedDifference,
    clearly_worse,
    detectable_difference,
    discordance_bound,
    paired_difference,
    sign_test,
)
from combee_dspy.evaluation._heldout import Heldout, HeldoutPin, check_unmoved, pin
from combee_dspy.evaluation._receipts import HeldoutIdentity, Receipt, heldout_identity
from combee_dspy.evaluation._scale import DEFAULT_PERFECT_SCORE, perfect_score_of

if TYPE_CHECKING:
    from combee_dspy.evaluation._calibration import (
        Calibration,
        CalibrationResult,
        Calibrator,
        calibrate,
    )
    from combee_dspy.evaluation._judge import (
        Judge,
        check_roles,
        check_roles_heard,
        evaluator_lms,
        same_model,
    )
    from combee_dspy.evaluation._sizes import (
        SizeComparison,
        check_smaller,
        compare_sizes,
        cost_of_judging,
    )

_HOMES = {
    "_calibration": ("Calibration", "CalibrationResult", "Calibrator", "calibrate"),
    "_judge": ("Judge", "check_roles", "check_roles_heard", "evaluator_lms", "same_model"),
    "_sizes": ("SizeComparison", "check_smaller", "compare_sizes", "cost_of_judging"),
}

__all__ = [
    "DEFAULT_PERFECT_SCORE",
    "Calibration",
    "CalibrationResult",
    "Calibrator",
    "CostPerPoint",
    "Heldout",
    "HeldoutIdentity",
    "HeldoutPin",
    "Judge",
    "PairedDifference",
    "Receipt",
    "SerialBaseline",
    "SizeComparison",
    "calibrate",
    "check_roles",
    "check_roles_heard",
    "check_smaller",
    "check_unmoved",
    "clearly_worse",
    "compare_sizes",
    "cost_of_judging",
    "detectable_difference",
    "discordance_bound",
    "evaluator_lms",
    "heldout_identity",
    "paired_difference",
    "perfect_score_of",
    "pin",
    "same_model",
    "sign_test",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
