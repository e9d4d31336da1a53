"""How many rollouts a run has to spare for tests of its lines."""

from __future__ import annotations

__all__ = ["spare"]

# Validations of a text that proving may take, where the budget has room for so many of them.
_VALIDATIONS, _LEAST_BUDGET = 4, 16
# From so many validations on the budget has one to spare, for the newest text, and rollouts to
# search its failing rows.
_ONE_VALIDATION, _SEARCHED = 6, 32
# The part of a small budget that may be set aside: else few validation rows would leave a small
# budget without an update.
_SHARE = 4


def spare(limit: int | None, validation: int, *, judged: bool) -> int:
    """Return the rollouts that a run sets aside to prove its lines; 0 where it has none to spare.

    Args:
        limit: The budget in rollouts.
        validation: Rollouts that one validation takes.
        judged: Whether reflections judge the lines already: a small budget then buys rows to learn
            from.
    """
    if limit is None or limit < _ONE_VALIDATION * validation:
        return 0
    if limit >= _LEAST_BUDGET * validation:
        return _VALIDATIONS * validation
    return validation if judged else min(validation + _SEARCHED, limit // _SHARE)
