"""Rows that stand in one set twice."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from combee_dspy.search._candidates import Row

__all__ = ["tell_repeats"]

_logger = logging.getLogger("combee_dspy")


def tell_repeats(
    train: Sequence[Row], validation: Sequence[Row], heldout: Sequence[Row]
) -> list[str]:
    """Log which sets repeat rows, and return what of it makes a run unfit for claims: an interval
    over the same held-out row twice is too narrow.
    """
    warnings = []
    for argument, rows in (("trainset", train), ("valset", validation), ("heldout", heldout)):
        if repeated := len(rows) - len({row.hash for row in rows}):
            text = (
                f"{repeated} rows of {argument} repeat an earlier row of it: they count twice in"
                " every mean, and as evidence once."
            )
            _logger.warning("%s", text)
            if argument == "heldout":
                warnings.append(f"{text} The held-out interval is narrower than it may be.")
    return warnings
