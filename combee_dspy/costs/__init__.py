"""What a run has cost: the ledger, the price table, and who a call is made for."""

from combee_dspy.costs._elsewhere import CallsElsewhere, WorkerBooks, prices_here, take_over
from combee_dspy.costs._gpu import check_gpus, share_gpu_seconds
from combee_dspy.costs._ledger import Counts, Ledger, LMCall, Totals
from combee_dspy.costs._prices import Price, PriceTable, unpriced_models
from combee_dspy.costs._recorder import LedgerRecorder, is_recorder
from combee_dspy.costs._roles import current_role, role_scope
from combee_dspy.costs._rollout import ROLLOUT_SETTING, RolloutMeter, current_meter, rollout_scope

__all__ = [
    "ROLLOUT_SETTING",
    "CallsElsewhere",
    "Counts",
    "LMCall",
    "Ledger",
    "LedgerRecorder",
    "Price",
    "PriceTable",
    "RolloutMeter",
    "Totals",
    "WorkerBooks",
    "check_gpus",
    "current_meter",
    "current_role",
    "is_recorder",
    "prices_here",
    "role_scope",
    "rollout_scope",
    "share_gpu_seconds",
    "take_over",
    "unpriced_models",
]
