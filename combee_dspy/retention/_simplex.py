"""Nelder and Mead's simplex search, many at once: one numpy call a step instead of one a point."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

__all__ = ["minimised"]

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]

_WIDER = 1.05
_FROM_ZERO = 0.00025


def minimised(
    loss: Callable[[Floats, Rows], Floats],
    starts: Floats,
    lower: Floats,
    upper: Floats,
    *,
    tolerance: float = 1e-3,
    most: int = 300,
) -> Floats:
    """Return where each of several functions is least, as far as a simplex search from its start finds.

    The steps are those of Nelder & Mead (1965), "A Simplex Method for Function
    Minimization", with their coefficients (1, 2, 1/2, 1/2); the first simplex
    is each coordinate 5 % further, and points outside the bounds are put
    on them, as ``scipy.optimize.minimize`` does. Each search goes its own way and
    ends by itself. Thread-safe, deterministic.

    Args:
        loss: Takes points, one a row, and the number of the function that each belongs to.
        starts: One row a function, within the bounds.
        lower: Lower bound of each coordinate.
        upper: Upper bound of each coordinate, above ``lower``.
        tolerance: A search ends where its points, and their values, differ by no more.
        most: Steps of a search, at most.

    Returns:
        One row a function.
    """
    count = len(starts)
    simplex = _first(np.clip(starts, lower, upper), lower, upper)
    values = _valued(loss, simplex, np.arange(count))
    simplex, values = _sorted(simplex, values)
    searching: Rows = np.arange(count)
    for _ in range(most - 1):
        own, known = simplex[searching], values[searching]
        wide = np.abs(own[:, 1:] - own[:, :1]).max(axis=(1, 2)) > tolerance
        steep = np.abs(known[:, 1:] - known[:, :1]).max(axis=1) > tolerance
        going = wide | steep
        searching = searching[going]
        if not searching.size:
            break
        own, known = _stepped(loss, own[going], known[going], searching, (lower, upper))
        simplex[searching], values[searching] = _sorted(own, known)
    found: Floats = simplex[:, 0]
    return found


def _first(starts: Floats, lower: Floats, upper: Floats) -> Floats:
    size = starts.shape[1]
    simplex = np.repeat(starts[:, None, :], size + 1, axis=1)
    for axis in range(size):
        held = starts[:, axis]
        simplex[:, axis + 1, axis] = np.where(held != 0, _WIDER * held, _FROM_ZERO)
    # Put on the bound, all points could share a coordinate: nothing would ever move there.
    simplex = np.where(simplex > upper, 2 * upper - simplex, simplex)
    return np.clip(simplex, lower, upper)


def _stepped(
    loss: Callable[[Floats, Rows], Floats],
    simplex: Floats,
    values: Floats,
    numbers: Rows,
    bounds: tuple[Floats, Floats],
) -> tuple[Floats, Floats]:
    """Return the simplices, sorted before, after one step of each."""
    worst, last = simplex[:, -1], values[:, -1]
    centre = simplex[:, :-1].sum(axis=1) / simplex.shape[2]
    mirrored = np.clip(2 * centre - worst, *bounds)
    reached = loss(mirrored, numbers)
    better = reached < values[:, 0]
    outside = ~better & (reached >= values[:, -2]) & (reached < last)
    inside = ~better & (reached >= values[:, -2]) & ~(reached < last)
    # How far along the line through worst point and centre the second point lies.
    reach = np.select([better, outside, inside], [2.0, 0.5, -0.5], 1.0)[:, None]
    second = np.clip((1 + reach) * centre - reach * worst, *bounds)
    tried = np.flatnonzero(better | outside | inside)
    gained = np.full_like(reached, np.inf)
    if tried.size:
        gained[tried] = loss(second[tried], numbers[tried])
    takes_second = np.select([better, outside, inside], [gained < reached, gained <= reached, gained < last], False)
    shrinks = (outside | inside) & ~takes_second
    simplex, values = simplex.copy(), values.copy()
    simplex[:, -1] = np.where(takes_second[:, None], second, np.where(shrinks[:, None], worst, mirrored))
    values[:, -1] = np.where(takes_second, gained, np.where(shrinks, last, reached))
    smaller = np.flatnonzero(shrinks)
    if smaller.size:
        best = simplex[smaller, :1]
        simplex[smaller, 1:] = np.clip(best + 0.5 * (simplex[smaller, 1:] - best), *bounds)
        values[smaller, 1:] = _valued(loss, simplex[smaller, 1:], numbers[smaller])
    return simplex, values


def _valued(loss: Callable[[Floats, Rows], Floats], simplex: Floats, numbers: Rows) -> Floats:
    points = simplex.shape[1]
    return loss(simplex.reshape(-1, simplex.shape[2]), np.repeat(numbers, points)).reshape(-1, points)


def _sorted(simplex: Floats, values: Floats) -> tuple[Floats, Floats]:
    order = np.argsort(values, axis=1, kind="stable")
    return np.take_along_axis(simplex, order[:, :, None], axis=1), np.take_along_axis(values, order, axis=1)
