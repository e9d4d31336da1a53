"""Reports of a search, to claim something of."""

from __future__ import annotations

import dspy

from combee_dspy.costs import totals
from combee_dspy.evaluation import Receipt, heldout_identity, paired_difference
from combee_dspy.report import CombeeReport

ROWS = [
    dspy.Example(question="w " * (n + 1), kind="ab"[n % 2], year=1900 + n).with_inputs("question")
    for n in range(200)
]
WRONG, RIGHT = [float(n % 5 == 0) for n in range(200)], [float(n % 5 != 1) for n in range(200)]


def report(before=WRONG, after=RIGHT, rows=ROWS, models=None, warnings=()):
    receipt = Receipt(
        "read",
        "run 1",
        "now",
        heldout_identity(rows, "m"),
        ("a", "b"),
        tuple(before),
        tuple(after),
        paired_difference(before, after),
    )
    return CombeeReport(
        "done",
        0.2,
        0.8,
        100,
        10,
        1.0,
        totals([]),
        receipt.difference,
        receipt,
        models=models or {"task": "m"},
        warnings=warnings,
    )
