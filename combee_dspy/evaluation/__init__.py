"""Honest figures: judges and their calibration, the held-out contract, and intervals for what a run claims."""

from combee_dspy.evaluation._book import ReceiptBook
from combee_dspy.evaluation._bootstrap import PairedDifference, paired_difference
from combee_dspy.evaluation._calibrated import CalibratedMetric
from combee_dspy.evaluation._calibration import Calibration, CalibrationResult, calibrate
from combee_dspy.evaluation._ceiling import CappedMetric, CostCeiling
from combee_dspy.evaluation._final import ReadContext, ScoreFn, final_evaluate, program_hash
from combee_dspy.evaluation._heldout import HeldoutContract
from combee_dspy.evaluation._judge import Judge
from combee_dspy.evaluation._margin import HeldoutTerms, check_target, detectable_margin, discordance_bound
from combee_dspy.evaluation._pairs import SteppedMetric
from combee_dspy.evaluation._receipts import Receipt
from combee_dspy.evaluation._roles import check_roles, check_roles_heard, evaluator_lms, same_model
from combee_dspy.evaluation._sign_test import sign_test
from combee_dspy.evaluation._study import SplitRows, note_unheld_run

__all__ = [
    "CalibratedMetric",
    "Calibration",
    "CalibrationResult",
    "CappedMetric",
    "CostCeiling",
    "HeldoutContract",
    "HeldoutTerms",
    "Judge",
    "PairedDifference",
    "ReadContext",
    "Receipt",
    "ReceiptBook",
    "ScoreFn",
    "SplitRows",
    "SteppedMetric",
    "calibrate",
    "check_roles",
    "check_roles_heard",
    "check_target",
    "detectable_margin",
    "discordance_bound",
    "evaluator_lms",
    "final_evaluate",
    "note_unheld_run",
    "paired_difference",
    "program_hash",
    "same_model",
    "sign_test",
]
