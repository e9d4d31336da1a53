"""How many rollouts a run has to spare for tests of its lines."""

from __future__ import annotations

from combee_dspy.search._trials import BLAMED

__all__ = ["blamed", "spare"]

# Validations of a text that proving may take, where the budget has room for so many of them.
_VALIDATIONS, _LEAST_BUDGET = 4, 16
# From so many validations on the budget has one to spare, for the text without the lines that were
# blamed last.
_ONE_VALIDATION = 6
# The parts of a small budget that may be set aside, and that one update's search for lines to blame
# may take: else few validation rows would leave a small budget without an update.
_SHARE_SET_ASIDE, _SHARE_BLAMED = 4, 16


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
    return validation if judged else min(validation + 2 * BLAMED, limit // _SHARE_SET_ASIDE)


def blamed(limit: int | None, validation: int, *, judged: bool) -> int:
    """Return the rollouts that the search for lines to blame may take in one update; see
    :func:`spare`.
    """
    if limit is None:
        return BLAMED
    if judged and limit < _LEAST_BUDGET * validation:
        return 0
    return min(BLAMED, limit // _SHARE_BLAMED)
