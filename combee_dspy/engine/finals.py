"""The candidate that a run returns: the best on validation, its rivals drawn again first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from combee_dspy.engine.candidates import Candidate
from combee_dspy.evaluation import sign_test
from combee_dspy.reflections import estimate_tokens
from combee_dspy.stopping import Finalist, Selection, finalists, select

__all__ = ["FINALS_SHARE", "WITHIN_REACH", "affordable_finalists", "choose", "finals_reserve", "rivals"]

FINALS_SHARE = 0.2
"""The most of a budget in rollouts that is kept back for drawing finalists again. A search that has less
left than that to find something better is not helped by knowing better which of two is best."""

WITHIN_REACH = 0.25
"""The least p of the sign test at which a finalist is drawn again. Below it a right-or-wrong score trails by more than
a further draw is likely to make up; ``python -m combee_dspy.bench.finals`` shows what other levels win and cost."""


def affordable_finalists(count: int, rollouts: int, validation: int) -> int:
    """Return how many finalists so many rollouts can draw again: at least two, or none.

    Args:
        count: The most finalists wanted.
        rollouts: What may be spent.
        validation: Validation examples, each of which is one rollout of a draw.
    """
    paid = min(count, rollouts // validation) if validation > 0 else 0
    # One finalist alone has no rival: another draw would change nothing.
    return paid if paid > 1 else 0


def finals_reserve(limit: int | None, finalists: int, validation: int) -> int:
    """Return the rollouts of a budget that the search must leave for the finalists' further draws.

    Args:
        limit: The budget; ``None`` for none, which needs no reserve.
        finalists: The most finalists wanted.
        validation: Validation examples. Where :data:`FINALS_SHARE` of the budget pays for fewer draws of them than
            there are finalists there are fewer, and where it does not pay for two there is no reserve.
    """
    if limit is None:
        return 0
    return affordable_finalists(finalists, int(FINALS_SHARE * limit), validation) * validation


def rivals(scores: Sequence[Sequence[float]], level: float = WITHIN_REACH) -> list[int]:
    """Return which finalists are worth another draw, by position; the first, the best, always is.

    Another is where the one-sided sign test of the paired scores does not show it to be worse than the best. The test
    counts examples: of graded scores it does not see by how much they differ.

    Args:
        scores: Each finalist's scores on the same examples, the best first.
        level: The p of that test below which a finalist is worse, in [0, 1].
    """
    return [place for place, one in enumerate(scores) if place == 0 or sign_test(scores[0], one)[2] >= level]


def choose(
    result: Any,
    count: int,
    *,
    seed: int,
    most: int | None = None,
    draw: Callable[[Sequence[Candidate], Sequence[Any]], Sequence[Sequence[float]]] | None,
) -> Selection:
    """Choose among a run's candidates.

    A validation score from a LM that samples is one draw, and the best of many
    is partly luck. So the finalists are drawn again, and the mean of both draws
    decides. Only candidates that were validated on the same examples can be
    compared: those that the first of the most widely validated ones was. Only the best and its :func:`rivals` are
    drawn again; where it has none the first draw decides.

    Args:
        result: gepa's result.
        count: How many finalists there are at most.
        seed: The run's seed.
        most: How many of them may be drawn again; ``None`` for all.
        draw: Scores candidates once more on the validation examples with these ids; ``None``
            where that would tell nothing, or nothing is left to pay for it.
    """
    scores: list[dict[Any, float]] = [dict(found) for found in result.val_subscores]
    widest = max(len(found) for found in scores)
    order = sorted(next(found for found in scores if len(found) == widest))
    pool = [index for index, found in enumerate(scores) if sorted(found) == order]
    means = [sum(scores[index].values()) / len(order) for index in pool]
    tokens = [sum(map(estimate_tokens, result.candidates[index].values())) for index in pool]
    chosen = [pool[position] for position in finalists(means, count if draw is not None else 1, tokens)]
    first = [tuple(scores[index][key] for key in order) for index in chosen]
    places = rivals(first)[:most]
    again: Sequence[Sequence[float]] = ()
    if draw is not None and len(places) > 1:
        chosen, first = [chosen[place] for place in places], [first[place] for place in places]
        again = draw([dict(result.candidates[index]) for index in chosen], order)
    made = [
        Finalist(index, (first[place], tuple(again[place])) if again else (first[place],), tokens[pool.index(index)])
        for place, index in enumerate(chosen)
    ]
    return select(made, looks=len(scores), seed=seed)
