"""How a server tries a challenger, and what it keeps of requests."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from combee_dspy.options import Privacy
from combee_dspy.strategies import parameters

__all__ = ["Clock", "Keeping", "Serving"]

Clock = Callable[[], float]
"""Returns Unix time in seconds."""

_Share = Annotated[float, Field(ge=0, le=1)]


@parameters
class Serving:
    """How a server tries a challenger.

    Args:
        shadow: Share of requests that the other version answers too, out of the caller's sight.
        live: Share of requests that the challenger itself answers. Where it fails the incumbent
            answers; where it hangs the caller waits as long as the LM does.
        ttl: Seconds between two looks at the registry: how long a server may go on with a version
            after a change.
        timeout: Seconds after which a shadow is given up.
        workers: Shadows at once; as many threads more score.
        queue: Shadows that may wait; more are dropped, and counted.
        labels: Requests that may wait for :meth:`CanaryProgram.feedback`, in memory, and for being
            scored. After a day without it the judge is asked.
    """

    shadow: _Share = 0.05
    live: _Share = 0.0
    ttl: Annotated[float, Field(gt=0)] = 5.0
    timeout: Annotated[float, Field(gt=0)] = 30.0
    workers: Annotated[int, Field(ge=1)] = 4
    queue: Annotated[int, Field(ge=1)] = 64
    labels: Annotated[int, Field(ge=1)] = 10_000


@dataclass(frozen=True, slots=True)
class Keeping:
    """What a server keeps of requests.

    Attributes:
        folder: Where journals of servers lie; this one makes a folder of its own in it.
        privacy: What is kept of texts.
        most: Requests that may wait for labels; the oldest gives way.
        patience: Seconds that a request waits for them.
        clock: Says when a request came, and how long it waits.
        every: Whether each request is on disk with its texts before its caller has the answer.
    """

    folder: Path
    privacy: Privacy
    most: int
    patience: float
    clock: Clock = time.time
    every: bool = False
