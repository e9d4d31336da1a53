"""How several tasks share one pool: one after the other, side by side, or both at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from combee_dspy.exceptions import ArgumentValueError

__all__ = ["FULL", "HYBRID_BELOW", "SHAPES", "Shape", "ShapeDecision", "choose_shape", "given_shape"]

Shape = Literal["candidate-parallel", "task-parallel", "hybrid"]
"""Which work is in flight together.

``candidate-parallel``: one task at a time has all slots, its children side by side. ``task-parallel``: several
tasks at once, each within its equal part of the slots. ``hybrid``: several tasks at once, each with several
children in flight, and each may take any slot that is free.
"""

SHAPES: tuple[str, ...] = get_args(Shape)

HYBRID_BELOW = 0.5
"""Below this utilisation by one task alone, tasks run side by side without a bound for each."""

FULL = 0.85
"""From this utilisation on, one task alone counts as filling the slots; a choice, not a measurement."""

_MOST = 16


@dataclass(frozen=True, slots=True)
class ShapeDecision:
    """How a queue of tasks is run.

    Attributes:
        shape: The shape.
        at_once: Tasks that are active at once, at least 1.
        reason: Why, in one sentence.
        utilisation: Share of the slots that one task alone kept busy; ``None`` where nobody measured it.
    """

    shape: Shape
    at_once: int
    reason: str
    utilisation: float | None = None


def choose_shape(
    utilisation: float,
    tasks: int,
    *,
    at_once: int | None = None,
    below: float = HYBRID_BELOW,
    full: float = FULL,
) -> ShapeDecision:
    """Choose how to run what is left of a queue, from what one task alone kept busy.

    A task that fills the slots gains nothing from company: it would only wait.
    One that leaves some of them idle gets company, each task within its own part, so that none
    waits for another. One that leaves half of them idle or more gets company without such a bound:
    what one task cannot use, another takes at once.

    As many tasks are active as fill the slots by that measure, ⌈1 / utilisation⌉, and 16 at most
    where nobody says: each holds a search of its own in memory.

    Args:
        utilisation: Share of the slots, in [0, 1], that one task alone kept busy.
        tasks: Tasks that are left.
        at_once: The most tasks that may be active at once.
        below: The utilisation below which hybrid is chosen.
        full: The utilisation from which on one task is enough.

    Raises:
        ArgumentValueError: An argument is out of its range.
    """
    if not 0 <= utilisation <= 1:
        raise ArgumentValueError("utilisation", utilisation, "is no share in [0, 1]", "Give busy over slot seconds.")
    if not 0 <= below <= full <= 1:
        remedy = "Give 0 <= below <= full <= 1."
        raise ArgumentValueError("below", (below, full), "and full are no shares in order", remedy)
    if tasks < 0:
        raise ArgumentValueError("tasks", tasks, "is negative", "Give the number of tasks that are left.")
    check_at_once(at_once)
    found = f"one task alone kept {utilisation:.0%} of the slots busy"
    if tasks < 2 or at_once == 1:
        why = "there is no other task to run beside it" if tasks < 2 else "one task at once was asked for"
        return ShapeDecision("candidate-parallel", 1, f"{found}, and {why}", utilisation)
    if utilisation >= full:
        why = f"{found}, at least {full:.0%}: a second one would only wait for it"
        return ShapeDecision("candidate-parallel", 1, why, utilisation)
    wanted = _MOST if utilisation * _MOST <= 1 else math.ceil(1 / utilisation)
    beside = min(max(2, wanted), tasks, at_once or _MOST)
    if utilisation < below:
        why = f"{found}, below {below:.0%}: {beside} at once, and each takes the slots that are free"
        return ShapeDecision("hybrid", beside, why, utilisation)
    why = f"{found}, between {below:.0%} and {full:.0%}: {beside} at once, each within its part of the slots"
    return ShapeDecision("task-parallel", beside, why, utilisation)


def given_shape(shape: str, tasks: int, at_once: int | None = None) -> ShapeDecision:
    """Return the decision that a user has made.

    Args:
        shape: The shape's name.
        tasks: How many tasks there are.
        at_once: The most tasks that may be active at once; by default 4 where the shape has several.

    Raises:
        ArgumentValueError: There is no such shape, or ``at_once`` contradicts it.
    """
    check_at_once(at_once)
    if shape not in SHAPES:
        remedy = f"Give one of {', '.join(SHAPES)}, or auto."
        raise ArgumentValueError("shape", shape, "is no shape", remedy)
    if shape == "candidate-parallel":
        if at_once is not None and at_once > 1:
            remedy = "Give shape='task-parallel' or 'hybrid', or leave at_once out."
            raise ArgumentValueError("at_once", at_once, "contradicts shape='candidate-parallel'", remedy)
        return ShapeDecision("candidate-parallel", 1, "it was asked for")
    beside = max(1, min(at_once or 4, tasks))
    return ShapeDecision("hybrid" if shape == "hybrid" else "task-parallel", beside, "it was asked for")


def check_at_once(at_once: object) -> None:
    """Refuse a number of active tasks that is none.

    Raises:
        ArgumentValueError: It is no whole number of at least 1.
    """
    if at_once is None or (isinstance(at_once, int) and not isinstance(at_once, bool) and at_once >= 1):
        return
    raise ArgumentValueError("at_once", at_once, "is no whole number of at least 1", "Give 1 or more, or None.")
