"""Where a task belongs: its lane, its key, and what it shares with others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

__all__ = ["LANES", "RELEASE", "SPECULATIVE", "Place", "current_place", "current_release", "placed"]

SPECULATIVE = "speculative"
"""The lane of work that nobody waits for yet, and that may be dropped."""

LANES = ("reflection", "screening", "rollout", "validation", SPECULATIVE)
"""The lanes in their default order: what unblocks the most comes first.

One reflection frees an update and all rollouts of its children. One screened
child decides about a whole validation. Rollouts of parents feed the reflections.
Validation is read at the end of an iteration, and nobody waits for speculation.
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a task belongs.

    Attributes:
        lane: Who it is for, one of the scheduler's lanes.
        key: What it is, the same in every run that does the same, for example
            ``"parent/3/<candidate>/<row>"``. A replay finds it by this; empty for what is not to be found.
        tokens: Estimated tokens of prompt and answer; ``None`` where nobody knows.
        prefix: What its prompt begins with, or a hash of it. Tasks with the same
            prefix are kept together, so that a server's prefix cache helps.
        bucket: Class of length. ``None`` takes the power of two above ``tokens``.
        iteration: The run's iteration, for the events.
        tenant: Whose it is, where several runs share a scheduler; empty where one has it alone.
    """

    lane: str = "rollout"
    key: str = ""
    tokens: int | None = None
    prefix: str = ""
    bucket: int | None = None
    iteration: int = 0
    tenant: str = ""

    @property
    def length_class(self) -> int:
        """The bucket given, else the bits of ``tokens``; -1 where neither is known."""
        if self.bucket is not None:
            return self.bucket
        return -1 if self.tokens is None else self.tokens.bit_length()

    def within(self, part: str) -> Place:
        """Return the place of a part of this task: ``key/part``."""
        return replace(self, key=f"{self.key}/{part}")


_PLACE: ContextVar[Place] = ContextVar("combee_place", default=Place())  # noqa: B039 - frozen

RELEASE: ContextVar[str] = ContextVar("combee_release", default="")
"""Set by a scheduler around each task that it hands on."""


def current_release() -> str:
    """Return the batch by which a scheduler released the task that runs here; empty outside of one."""
    return RELEASE.get()


def current_place() -> Place:
    """Return the place that tasks submitted here have; a task's own place inside of it."""
    return _PLACE.get()


@contextmanager
def placed(place: Place) -> Iterator[Place]:
    """Give tasks that are submitted within a ``with`` block, and what these submit, a place."""
    token = _PLACE.set(place)
    try:
        yield place
    finally:
        _PLACE.reset(token)
