"""Which rollout an LM call serves."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import dspy

from combee_dspy.records import CallUsage, Role, Rollout

if TYPE_CHECKING:
    from combee_dspy.costs._ledger import LMCall

__all__ = ["ROLLOUT_SETTING", "RolloutMeter", "current_meter", "rollout_scope"]

ROLLOUT_SETTING = "combee_rollout"
"""DSPy's setting that carries the meter, for code that enters a ``dspy.context`` of its own anyway."""

_HASH_BITS = 64
_PART = 2047


class RolloutMeter:
    """Adds up the LM calls of one rollout. Thread-safe: a program may make several at once.

    Args:
        submitted: When the rollout was queued, in seconds of ``started``'s clock; ``None`` where unknown.
        started: When it began.
    """

    __slots__ = ("_lines", "_lock", "_prompts", "queue_seconds")

    def __init__(self, submitted: float | None = None, started: float = 0.0) -> None:
        self.queue_seconds = None if submitted is None else max(0.0, started - submitted)
        self._lines: dict[tuple[str, str], list[Any]] = {}
        self._lock = threading.Lock()
        self._prompts = 0

    def add(self, call: LMCall) -> None:
        """Count a finished call."""
        key = (call.role, call.model)
        with self._lock:
            line = self._lines.get(key)
            if line is None:
                line = self._lines[key] = [0, 0, 0, 0, 0, 0.0, None, 0.0]
            line[0] += 1
            line[1] += call.error is not None
            line[2] += call.cached
            line[3] += call.prompt_tokens
            line[4] += call.completion_tokens
            line[5] = None if line[5] is None or call.dollars is None else line[5] + call.dollars
            if call.gpu_seconds is not None:
                line[6] = (line[6] or 0.0) + call.gpu_seconds
            if not call.cached:
                line[7] += call.seconds

    def saw(self, inputs: Mapping[str, Any]) -> None:
        """Take the prompt of a task call into the hash.

        Args:
            inputs: What the LM was called with: ``prompt`` or ``messages``.
        """
        said = ""
        for message in inputs.get("messages") or ({"content": inputs.get("prompt")},):
            content = message.get("content") if type(message) is dict or isinstance(message, Mapping) else message
            said += f"{content if isinstance(content, str) else repr(content)}\0"
        encoded = said.encode("utf-8", "surrogatepass")
        digest = hashlib.sha256(encoded[:_PART])
        # In parts too small for hashlib to let go of the GIL: with many threads it would take long to get it back.
        for start in range(_PART, len(encoded), _PART):
            digest.update(encoded[start : start + _PART])
        number = int.from_bytes(digest.digest()[:8])
        with self._lock:
            # A sum, because calls that run at the same time come in any order.
            self._prompts = (self._prompts + number) % (1 << _HASH_BITS)

    @property
    def prompts(self) -> int:
        """Sum of the hashes of what :meth:`saw`, below 2**64."""
        with self._lock:
            return self._prompts

    def take(self, calls: Iterable[LMCall], prompts: int) -> None:
        """Count what another meter has heard.

        Args:
            calls: Its finished calls.
            prompts: Its :attr:`prompts`.
        """
        for call in calls:
            self.add(call)
        with self._lock:
            self._prompts = (self._prompts + prompts) % (1 << _HASH_BITS)

    def usage(self) -> tuple[CallUsage, ...]:
        """Return what has been counted so far, sorted by role and model."""
        with self._lock:
            lines = sorted(self._lines.items())
        return tuple(CallUsage(cast("Role", role), model, *line) for (role, model), line in lines)

    def stamp(self, rollout: Rollout, **changes: Any) -> Rollout:
        """Return a rollout with its usage, queue wait and prompt hash.

        Args:
            rollout: The rollout.
            **changes: Further fields to replace.
        """
        prompts = f"{self._prompts:016x}" if self._prompts else ""
        changes = {"usage": self.usage(), "queue_seconds": self.queue_seconds, "prompt_hash": prompts, **changes}
        return replace(rollout, **changes)


@contextmanager
def rollout_scope(meter: RolloutMeter) -> Iterator[RolloutMeter]:
    """Attribute every LM call made inside the ``with`` block to a rollout.

    Like the role (see :func:`combee_dspy.costs.role_scope`) the meter is a DSPy
    setting, so it follows the program into ``dspy.Parallel``, ``dspy.asyncify``
    and async tasks.
    """
    with dspy.context(**{ROLLOUT_SETTING: meter}):
        yield meter


def current_meter() -> RolloutMeter | None:
    """Return the meter of the rollout that runs here and now, or ``None`` outside of one."""
    meter = dspy.settings.get(ROLLOUT_SETTING)
    return meter if isinstance(meter, RolloutMeter) else None
