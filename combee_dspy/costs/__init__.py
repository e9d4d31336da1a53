"""What a run has cost: the ledger, the price table, and who a call is made for."""

from combee_dspy.costs._ledger import Counts, Ledger, LMCall, Totals
from combee_dspy.costs._prices import Price, PriceTable, unpriced_models
from combee_dspy.costs._recorder import LedgerRecorder
from combee_dspy.costs._roles import current_role, role_scope

__all__ = [
    "Counts",
    "LMCall",
    "Ledger",
    "LedgerRecorder",
    "Price",
    "PriceTable",
    "Totals",
    "current_role",
    "role_scope",
    "unpriced_models",
]
