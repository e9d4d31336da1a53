"""What a run costs: prices, who a call is made for, exact metering of LM calls, and sums over the journal's usage."""

from combee_dspy.costs._costs import Costs, CostTotals, Sums, Tariff, merged, totals
from combee_dspy.costs._meter import Meter, metered, role_scope
from combee_dspy.costs._prices import Price, price_of

__all__ = [
    "CostTotals",
    "Costs",
    "Meter",
    "Price",
    "Sums",
    "Tariff",
    "merged",
    "metered",
    "price_of",
    "role_scope",
    "totals",
]
