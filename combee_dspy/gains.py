"""What a difference on held-out rows is called, the same wherever people read it."""

from __future__ import annotations

__all__ = ["NO_HELDOUT", "name_gain"]

NO_HELDOUT = "no held-out set"
"""What stands in the place of a name where nothing was held out."""

_WITHIN = "not shown (the interval holds zero)"


def name_gain(difference: float, low: float, high: float) -> str:
    """Return what a paired difference is called: a gain or a loss, and whether it is shown.

    A difference is shown where its interval leaves zero out. A loss is called one either way: who
    reads on must not take a lower score for luck before they have seen it.

    Args:
        difference: The mean after, minus the mean before.
        low: Lower end of its interval.
        high: Upper end.
    """
    if difference > 0:
        return "gain" if low > 0 else f"gain {_WITHIN}"
    if difference < 0:
        return "loss" if high < 0 else f"loss {_WITHIN}"
    return "no gain"
