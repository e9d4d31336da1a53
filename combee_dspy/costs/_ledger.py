"""The ledger: what every LM call of a run has cost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from combee_dspy.costs._gpu import GpuMeter
from combee_dspy.costs._prices import PriceTable
from combee_dspy.records import Role

__all__ = ["Counts", "LMCall", "Ledger", "Totals"]

# Dollars are added as whole picodollars, so that a sum does not depend on the order in which threads add.
_PICO = 10**12


@dataclass(frozen=True, slots=True)
class LMCall:
    """One finished LM call.

    Attributes:
        call_id: DSPy's id of the call; empty where DSPy announced none.
        role: Who it was made for.
        model: The LM's name.
        prompt_tokens: Prompt tokens, as the service counts them.
        completion_tokens: Completion tokens, as the service counts them.
        dollars: What it cost; ``None`` where that is not known.
        seconds: From call to answer, DSPy's retries included.
        cached: Whether DSPy's cache answered. Then tokens and dollars are 0.
        error: Class name of the error it ended with, else ``None``.
        gpu_seconds: Its share of the role's GPUs; ``None`` where none are declared for it.
    """

    call_id: str
    role: str
    model: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    dollars: float | None = 0.0
    seconds: float = 0.0
    cached: bool = False
    error: str | None = None
    gpu_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """Sums over LM calls.

    Attributes:
        calls: Finished calls, errors and cache hits included.
        errors: Calls that ended with an error. An HTTP attempt that DSPy
            retried inside a call is not a call of its own.
        cached: Calls answered by DSPy's cache.
        prompt_tokens: Prompt tokens.
        completion_tokens: Completion tokens.
        known_dollars: Dollars of the calls whose cost is known.
        unpriced: Calls whose cost is not known.
        seconds: Sum of the seconds of all calls that were not cached.
        slowest: Seconds of the slowest of them.
        peak: Most calls in flight at once.
        gpu_seconds: Seconds in which a call was in flight, times the GPUs declared for
            the role (see :func:`combee_dspy.costs.share_gpu_seconds`), over all roles
            for which some are declared; ``None``, not zero, where there are none.
    """

    calls: int = 0
    errors: int = 0
    cached: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    known_dollars: float = 0.0
    unpriced: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    peak: int = 0
    gpu_seconds: float | None = None

    @property
    def sent(self) -> int:
        """Calls that went to the service."""
        return self.calls - self.cached

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens together."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def dollars(self) -> float | None:
        """What all calls cost; ``None``, not zero, where one of them has no known cost."""
        return None if self.unpriced else self.known_dollars

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain JSON data."""
        return {
            "calls": self.calls,
            "errors": self.errors,
            "cached": self.cached,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "dollars": self.dollars,
            "known_dollars": self.known_dollars,
            "unpriced": self.unpriced,
            "seconds": self.seconds,
            "slowest": self.slowest,
            "peak": self.peak,
            "gpu_seconds": self.gpu_seconds,
        }


@dataclass(frozen=True, slots=True)
class Totals:
    """What a ledger held at one moment.

    Attributes:
        seconds: Wall-clock seconds since the ledger was opened.
        total: Over all calls.
        by_role: Over the calls of each role.
        by_model: Over the calls of each (role, model).
    """

    seconds: float = 0.0
    total: Counts = field(default_factory=Counts)
    by_role: Mapping[str, Counts] = field(default_factory=dict)
    by_model: Mapping[tuple[str, str], Counts] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data: ``seconds``, ``total``, and ``by_role`` with ``models`` in each role."""
        roles = {role: {**counts.to_dict(), "models": {}} for role, counts in self.by_role.items()}
        for (role, model), counts in self.by_model.items():
            roles[role]["models"][model] = counts.to_dict()
        return {"seconds": self.seconds, "total": self.total.to_dict(), "by_role": roles}


class _Line:
    """Running sums of one key. Read and written under the ledger's lock."""

    __slots__ = ("gpu_seconds", "in_flight", "peak", "slowest", "sums")

    def __init__(self, gpu_seconds: float | None = None) -> None:
        self.gpu_seconds = gpu_seconds
        self.in_flight = 0
        self.peak = 0
        self.slowest = 0.0
        # calls, errors, cached, prompt tokens, completion tokens, picodollars, unpriced
        self.sums = [0, 0, 0, 0, 0, 0, 0, 0.0]

    def freeze(self) -> tuple[int, float, float | None, tuple[Any, ...]]:
        return self.peak, self.slowest, self.gpu_seconds, tuple(self.sums)


def _counts(peak: int, slowest: float, gpu_seconds: float | None, sums: tuple[Any, ...]) -> Counts:
    calls, errors, cached, prompt, completion, pico, unpriced, seconds = sums
    dollars = pico / _PICO
    return Counts(calls, errors, cached, prompt, completion, dollars, unpriced, seconds, slowest, peak, gpu_seconds)


class Ledger:
    """Counts every LM call of a run, by role and model.

    Thread-safe: the lock covers a few additions. Token and call counts and
    dollars are exact and do not depend on the order of calls.

    Args:
        prices: The prices that count; the built-in list prices by default.
        clock: Monotonic seconds.
        listeners: Called with every finished call, in the thread that made it,
            outside the lock. Must be quick and must not raise: DSPy reports an
            error of a callback as a warning and goes on.
        gpus: GPUs by role, for the roles that have some. A call counts as in flight
            from its beginning to its end, DSPy's own retries and their pauses
            included. What a cache answered is charged nothing.
    """

    def __init__(
        self,
        prices: PriceTable | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        listeners: Iterable[Callable[[LMCall], None]] = (),
        gpus: Mapping[Role, float] | None = None,
    ) -> None:
        self.prices = prices if prices is not None else PriceTable()
        self.clock = clock
        self._listeners = tuple(listeners)
        self._opened = clock()
        self._lock = threading.Lock()
        self._meters: dict[str, GpuMeter] = {role: GpuMeter(number) for role, number in (gpus or {}).items()}
        self._lines: dict[tuple[str, ...], _Line] = {(): _Line(0.0 if self._meters else None)}

    @property
    def gpu_roles(self) -> tuple[str, ...]:
        """The roles for which GPUs are declared."""
        return tuple(self._meters)

    def begin(self, role: str, model: str) -> float:
        """Note that a call is in flight. :meth:`finish` must follow.

        Returns:
            What :meth:`finish` needs for the GPU-seconds.
        """
        keys = ((), (role,), (role, model))
        with self._lock:
            for key in keys:
                line = self._lines.get(key)
                if line is None:
                    line = self._lines[key] = _Line(0.0 if role in self._meters else None)
                line.in_flight += 1
                line.peak = max(line.peak, line.in_flight)
            meter = self._meters.get(role)
            # Read under the lock, so that the meter's time never runs backwards.
            return 0.0 if meter is None else meter.start(self.clock())

    def finish(self, call: LMCall, gpu_started: float = 0.0) -> LMCall:
        """Add a call that :meth:`begin` announced, and tell the listeners.

        Args:
            call: The call.
            gpu_started: What :meth:`begin` returned.

        Returns:
            The call with its GPU-seconds.
        """
        pico = 0 if call.dollars is None else round(call.dollars * _PICO)
        seconds = 0.0 if call.cached else call.seconds
        amounts = (
            1,
            int(call.error is not None),
            int(call.cached),
            call.prompt_tokens,
            call.completion_tokens,
            pico,
            int(call.dollars is None),
            seconds,
        )
        keys = ((), (call.role,), (call.role, call.model))
        with self._lock:
            meter = self._meters.get(call.role)
            if meter is not None:
                share = meter.stop(gpu_started, self.clock())
                call = replace(call, gpu_seconds=0.0 if call.cached else share)
            for key in keys:
                line = self._lines[key]
                line.in_flight -= 1
                if call.gpu_seconds is not None:
                    line.gpu_seconds = (line.gpu_seconds or 0.0) + call.gpu_seconds
                line.slowest = max(line.slowest, seconds)
                sums = line.sums
                for position, amount in enumerate(amounts):
                    sums[position] += amount
        for listener in self._listeners:
            listener(call)
        return call

    def snapshot(self) -> Totals:
        """Return what has been counted so far. Cheap: copies a few numbers per role and model."""
        with self._lock:
            frozen = {key: line.freeze() for key, line in self._lines.items()}
        counts = {key: _counts(*values) for key, values in frozen.items()}
        return Totals(
            seconds=self.clock() - self._opened,
            total=counts[()],
            by_role={key[0]: value for key, value in counts.items() if len(key) == 1},
            by_model={(key[0], key[1]): value for key, value in counts.items() if len(key) == 2},
        )
