"""When Live learns, and what a challenger must pass."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from combee_dspy.strategies import parameters
from combee_dspy.traces import Selection

__all__ = ["Gate", "Learning"]

_Share = Annotated[float, Field(ge=0, le=1)]


@parameters
class Learning:
    """When Live learns, and what it may spend a day.

    Args:
        least: Labelled requests that went wrong from which on a session begins.
        hours: Hours after which one such request is enough: 24 for every night.
        tokens: Tokens in and out a day (UTC, by the clock) of readers and of the gate; ``None`` for
            no limit. What a day has left decides how much is read and how many rows are run.
        dollars: The same in dollars, by list prices.
        errors: Share of the last hour's requests that failed above which nothing is learned: the
            service is ill.
        selection: Which requests are read, and how much of each.
        num_threads: Calls and rollouts at once.
    """

    least: Annotated[int, Field(ge=1)] = 20
    hours: Annotated[float, Field(gt=0)] = 24.0
    tokens: Annotated[int, Field(ge=10_000)] | None = 2_000_000
    dollars: Annotated[float, Field(gt=0)] | None = None
    errors: _Share = 0.2
    selection: Selection = Field(default_factory=Selection)
    num_threads: Annotated[int, Field(ge=1)] = 8


@parameters
class Gate:
    """What a challenger must pass before anybody's request meets it.

    Args:
        share: Share of labelled inputs that teach nothing: by a hash of the inputs, so that the
            same input is always on one side. Labels that the team vouches for never teach.
        recent: Days that count as recent: their rows are held out, older ones are the retain set.
        rows: Held-out rows at most, the newest.
        retain: Rows of the retain set at most, the same number of each slice.
        margin: How much worse, in score units, the lower end of an interval may be on either set.
        trial: Days after which a trial that is undecided ends.
        seed: Draws rows and resamples.
    """

    share: Annotated[float, Field(gt=0, lt=1)] = 0.25
    recent: Annotated[float, Field(gt=0)] = 7.0
    rows: Annotated[int, Field(ge=1)] = 60
    retain: Annotated[int, Field(ge=0)] = 60
    margin: Annotated[float, Field(gt=0, lt=1)] = 0.1
    trial: Annotated[float, Field(gt=0)] = 7.0
    seed: int = 0
