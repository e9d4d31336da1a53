"""What LM calls cost: prices, meters that count calls by role, and sums."""

from combee_dspy.costs._callbacks import count_failed, count_repeated, without_callbacks
from combee_dspy.costs._meter import (
    CallRefusedError,
    Meter,
    metered,
    role_scope,
    serving,
)
from combee_dspy.costs._prices import Costs, Price, Tariff, price_of, window_of
from combee_dspy.costs._sums import CostTotals, Sums, merged, totals

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
