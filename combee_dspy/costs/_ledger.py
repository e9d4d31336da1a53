"""The ledger: what every LM call of a run has cost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from combee_dspy.costs._gpu import GpuMeter
from combee_dspy.costs._prices import PriceTable
from combee_dspy.records import Role

__all__ = ["Counts", "LMCall", "Ledger", "Totals"]

# Dollars are added as whole picodollars, so that a sum does not depend on the order in which threads add.
_PICO = 10**12


class LMCall(NamedTuple):
    """One finished LM call. A tuple, because making one is part of what every call costs.

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


class _Flight:
    """How many calls of one key are in flight. Read and written under the ledger's lock."""

    __slots__ = ("in_flight", "peak")

    def __init__(self) -> None:
        self.in_flight = 0
        self.peak = 0

    def begin(self) -> None:
        self.in_flight += 1
        if self.in_flight > self.peak:
            self.peak = self.in_flight


class _Line(_Flight):
    """Running sums of one role and model, with what its role's calls have in common."""

    __slots__ = (
        "cached",
        "calls",
        "completion",
        "errors",
        "gpu_seconds",
        "meter",
        "of_role",
        "pico",
        "prompt",
        "seconds",
        "slowest",
        "unpriced",
    )

    def __init__(self, of_role: _Flight, meter: GpuMeter | None) -> None:
        super().__init__()
        self.of_role = of_role
        self.meter = meter
        self.calls = self.errors = self.cached = self.prompt = self.completion = self.pico = self.unpriced = 0
        self.seconds = self.slowest = 0.0
        self.gpu_seconds = None if meter is None else 0.0

    def freeze(self) -> _Sums:
        sums = (self.calls, self.errors, self.cached, self.prompt, self.completion, self.pico, self.unpriced)
        return sums, self.seconds, self.slowest, self.gpu_seconds


_Sums = tuple[tuple[int, ...], float, float, float | None]


def _counts(lines: Sequence[_Sums], peak: int, gpu_seconds: float | None = None) -> Counts:
    whole = (sum(line[0][at] for line in lines) for at in range(7))
    calls, errors, cached, prompt, completion, pico, unpriced = whole
    gpus = [line[3] for line in lines if line[3] is not None]
    return Counts(
        calls=calls,
        errors=errors,
        cached=cached,
        prompt_tokens=prompt,
        completion_tokens=completion,
        known_dollars=pico / _PICO,
        unpriced=unpriced,
        seconds=sum((line[1] for line in lines), 0.0),
        slowest=max((line[2] for line in lines), default=0.0),
        peak=peak,
        gpu_seconds=sum(gpus) if gpus else gpu_seconds,
    )


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
        self._all = _Flight()
        self._roles: dict[str, _Flight] = {}
        self._lines: dict[tuple[str, str], _Line] = {}

    @property
    def gpu_roles(self) -> tuple[str, ...]:
        """The roles for which GPUs are declared."""
        return tuple(self._meters)

    def begin(self, role: str, model: str) -> float:
        """Note that a call is in flight. :meth:`finish` must follow.

        Returns:
            What :meth:`finish` needs for the GPU-seconds.
        """
        with self._lock:
            line = self._lines.get((role, model))
            if line is None:
                of_role = self._roles.setdefault(role, _Flight())
                line = self._lines[role, model] = _Line(of_role, self._meters.get(role))
            line.begin()
            line.of_role.begin()
            self._all.begin()
            # Read under the lock, so that the meter's time never runs backwards.
            return 0.0 if line.meter is None else line.meter.start(self.clock())

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
        with self._lock:
            line = self._lines[call.role, call.model]
            if line.meter is not None:
                share = line.meter.stop(gpu_started, self.clock())
                call = call._replace(gpu_seconds=0.0 if call.cached else share)
            line.in_flight -= 1
            line.of_role.in_flight -= 1
            self._all.in_flight -= 1
            line.calls += 1
            line.errors += call.error is not None
            line.cached += call.cached
            line.prompt += call.prompt_tokens
            line.completion += call.completion_tokens
            line.pico += pico
            line.unpriced += call.dollars is None
            line.seconds += seconds
            if seconds > line.slowest:
                line.slowest = seconds
            if call.gpu_seconds is not None:
                line.gpu_seconds = (line.gpu_seconds or 0.0) + call.gpu_seconds
        for listener in self._listeners:
            listener(call)
        return call

    def snapshot(self) -> Totals:
        """Return what has been counted so far. Cheap: copies a few numbers per role and model."""
        with self._lock:
            lines = {key: (line.freeze(), line.peak) for key, line in self._lines.items()}
            roles = {role: flight.peak for role, flight in self._roles.items()}
            peak = self._all.peak
        by_role = {role: [sums for (whose, _), (sums, _) in lines.items() if whose == role] for role in roles}
        return Totals(
            seconds=self.clock() - self._opened,
            total=_counts([sums for sums, _ in lines.values()], peak, 0.0 if self._meters else None),
            by_role={role: _counts(sums, roles[role]) for role, sums in by_role.items()},
            by_model={key: _counts([sums], highest) for key, (sums, highest) in lines.items()},
        )
