"""What a run costs: prices, who a call is made for, exact metering of LM calls, and sums over the
journal's usage.
"""

from combee_dspy.costs._callbacks import count_failed, count_repeated, without_callbacks
from combee_dspy.costs._costs import (
    Costs,
    CostTotals,
    Price,
    Sums,
    Tariff,
    merged,
    price_of,
    totals,
    window_of,
)
from combee_dspy.costs._meter import (
    CallRefusedError,
    Meter,
    metered,
    role_scope,
    serving,
)

__all__ = [
    "CallRefusedError",
    "CostTotals",
    "Costs",
    "Meter",
    "Price",
    "Sums",
    "Tariff",
    "count_failed",
    "count_repeated",
    "merged",
    "metered",
    "price_of",
    "role_scope",
    "serving",
    "totals",
    "window_of",
    "without_callbacks",
]
