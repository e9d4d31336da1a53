"""Honest figures: judges and their calibration, the held-out contract, and intervals for what a run
claims.
"""

from combee_dspy.evaluation._baseline import CostPerPoint, SerialBaseline
from combee_dspy.evaluation._calibration import (
    Calibration,
    CalibrationResult,
    Calibrator,
    calibrate,
)
from combee_dspy.evaluation._compare import (
    PairedDifference,
    clearly_worse,
    detectable_difference,
    discordance_bound,
    paired_difference,
    select_newest_not_clearly_worse,
    sign_test,
)
from combee_dspy.evaluation._heldout import Heldout, HeldoutPin, check_unmoved, pin
from combee_dspy.evaluation._judge import (
    Judge,
    check_roles,
    check_roles_heard,
    evaluator_lms,
    same_model,
)
from combee_dspy.evaluation._receipts import HeldoutIdentity, Receipt, heldout_identity
from combee_dspy.evaluation._scale import DEFAULT_PERFECT_SCORE, perfect_score_of
from combee_dspy.evaluation._sizes import (
    SizeComparison,
    check_smaller,
    compare_sizes,
    cost_of_judging,
)

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
    "select_newest_not_clearly_worse",
    "sign_test",
]
