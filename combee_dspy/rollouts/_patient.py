"""LMs that wait for as long as a service is too busy, instead of failing a rollout.

``dspy.LM`` repeats a rejected request by itself, ``num_retries`` times (3 by default), and nobody
hears of it. So a run would learn that a service is full only when a call has failed four times, and
with it the rollout, whose earlier calls are then bought again. The LMs here make one attempt at a
time, tell of each rejection, and repeat the attempt alone: no call that was answered is asked
again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import dspy
from dspy.utils.callback import with_callbacks
from dspy.utils.exceptions import LMError, LMProviderError, LMRateLimitError, is_retryable_lm_error

from combee_dspy.costs import CallRefusedError, Meter, count_failed, count_repeated
from combee_dspy.records import CallUsage, Rollout
from combee_dspy.rollouts._attempts import aask, ask, bounded
from combee_dspy.rollouts._jobs import InfrastructureFaultError
from combee_dspy.rollouts._repeats import REPEATS, Repeats

_logger = logging.getLogger("combee_dspy")

LONGEST_WAIT = 120.0
"""Seconds before another attempt at most, whatever a service asks for: who asks for more is down,
and not coming back within a run. Attempts are bounded as well.
"""

PATIENCE = 300.0
"""Seconds that a call or rollout waits for a service that is full or down: the default of
Search(patience=…).
"""

# "Service unavailable", and what some services say instead: pressure, but perhaps an outage, so not
# for minutes.
_OVERLOADED = (503, 529)
# These grow with every call, and hold no part of a program.
_RECORDS = frozenset({"callbacks", "demos", "history", "traces", "train"})


class Halt(threading.Event):
    """Once set, ends every wait for a service, in any thread and on any loop: nobody wants what was
    waited for.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sleepers: set[Callable[[], Any]] = set()

    async def sleep(self, seconds: float) -> bool:
        """Do what :meth:`wait` does without blocking the loop."""
        woken = asyncio.Event()
        wake = partial(asyncio.get_running_loop().call_soon_threadsafe, woken.set)
        self._sleepers.add(wake)
        try:
            with suppress(TimeoutError):
                if not self.is_set():
                    await asyncio.wait_for(woken.wait(), seconds)
        finally:
            self._sleepers.discard(wake)
        return self.is_set()

    def set(self) -> None:
        """End all waits."""
        super().set()
        for wake in tuple(self._sleepers):
            with suppress(RuntimeError):  # its loop is closed: nobody sleeps there any more
                wake()


NEVER = Halt()

_now = time.monotonic


@dataclass(slots=True)
class Deadline:
    """When an effect gives a service up: so many seconds after the first trouble since the
    service's last answer.
    """

    patience: float
    until: float | None = None

    def allows(self, seconds: float) -> bool:
        """Return whether another attempt may be made after so many seconds."""
        now = _now()
        if self.until is None:
            self.until = now + self.patience
        return now + seconds <= self.until


@dataclass(slots=True)
class Surroundings:
    """What an LM call knows of the attempt at an effect that it is part of. Set by slots, used from
    any thread.

    Attributes:
        rejected: Hears of rejections.
        halt: Ends waits; :data:`NEVER` once the attempt has ended. A thread that a program has
            abandoned may go on: nobody could hear its error, except who reads it on a terminal.
        deadline: When the effect gives up, whatever its attempts; ``None`` outside of one.
        waits: Hears of each wait for a service, and for how long, before it begins.
        meters: What counts the attempt's calls, the outermost first.
        failed: Returns the rollout as it failed with an error by now; ``None`` where no rollout has
            begun.
        given_up: Whether nobody waits for the attempt any more.
        repeats: Says whether a call that failed may be sent again, and hears of lost answers.
    """

    rejected: Callable[[float | None], None] = lambda retry_after: None
    halt: Halt = NEVER
    deadline: Deadline | None = None
    waits: Callable[[float], None] = lambda seconds: None
    meters: list[Meter] = field(default_factory=list)
    failed: Callable[[BaseException], Rollout] | None = None
    given_up: bool = False
    repeats: Repeats = field(default_factory=REPEATS.get)

    def wait(self, seconds: float) -> bool:
        """Wait, and return whether the attempt is to end instead of going on.

        Raises:
            CallRefusedError: It was given up meanwhile.
        """
        self.waits(seconds)
        halt = self.halt
        halted = halt.wait(seconds) and self.halt is halt
        self._check()
        return halted

    async def sleep(self, seconds: float) -> bool:
        """Do what :meth:`wait` does without blocking the loop."""
        self.waits(seconds)
        halt = self.halt
        halted = await halt.sleep(seconds) and self.halt is halt
        self._check()
        return halted

    def _check(self) -> None:
        if self.given_up:
            raise CallRefusedError

    def add(self, meter: Meter) -> None:
        """Note what counts the attempt's calls from here on; the outermost tells of lost
        answers.
        """
        if not self.meters:
            meter.lose = self.repeats.lose
        self.meters.append(meter)
        if self.given_up:
            meter.close()

    def give_up(self) -> tuple[CallUsage, ...]:
        """Refuse every later LM call of the attempt, and return what it has cost by now."""
        self.given_up = True
        usages = [meter.close() for meter in self.meters]
        return usages[0] if usages else ()


SURROUNDINGS: ContextVar[Surroundings | None] = ContextVar("combee_surroundings", default=None)
_NONE = Surroundings()
# A setting of DSPy's, beside the variable: it goes where those go, into the threads of
# dspy.Parallel.
_CARRIED = "combee_surroundings"


def carried() -> dict[str, Any]:
    """Return what to give to a program's ``dspy.context``, so that its calls in threads of DSPy's
    know them too.
    """
    return {_CARRIED: SURROUNDINGS.get()}


def _surroundings() -> Surroundings:
    here: Surroundings = SURROUNDINGS.get() or dspy.settings.get(_CARRIED) or _NONE
    return here


def note_meter(meter: Meter) -> None:
    """Have a meter closed when the effect that runs here is given up. Outside of an effect nothing
    happens.
    """
    if (here := SURROUNDINGS.get()) is not None:
        here.add(meter)


def tell_rejected(retry_after: float | None) -> None:
    """Say that a service rejected a request (HTTP 429) of the effect that runs here, once for each
    rejected attempt.

    ``retry_after`` is in seconds, ``None`` where the service named none. Outside of an effect
    nothing happens.
    """
    _surroundings().rejected(retry_after)


class Patience:
    """How long one call, or one effect, goes on after what went wrong. Used by one thread or task.

    Args:
        faults: Faults that may pass and are followed by another attempt. Rejections are no
            attempts: they are waited for until the deadline.
        deadline: Of the effect; by default one of :data:`PATIENCE` seconds.
    """

    def __init__(self, faults: int, deadline: Deadline | None = None) -> None:
        self._allowed = faults
        self._deadline = Deadline(PATIENCE) if deadline is None else deadline
        self._rejections = self._faults = 0

    def after(
        self, retry_after: float | None, *, rejected: bool, outage: bool = False
    ) -> float | None:
        """Return the seconds until the next attempt, ``None`` where there is to be none.

        An outage of the service is waited for until the deadline as well, whatever the number of
        attempts.
        """
        if rejected:
            self._rejections += 1
            seconds = pause_after(retry_after, self._rejections)
            return seconds if self._deadline.allows(seconds) else None
        self._faults += 1
        seconds = pause_after(retry_after, self._faults)
        waits = self._deadline.allows(seconds) and outage
        return seconds if waits or self._faults <= self._allowed else None

    def answered(self) -> None:
        """Note an answer of the service."""
        self._deadline.until = None


def pause_after(retry_after: float | None, count: int) -> float:
    """Return the seconds until the next attempt after so many failed ones: 1, 2, 4 … 60, or what
    was asked for.
    """
    pause = (
        min(2.0 ** min(count - 1, 6), 60.0)
        if retry_after is None
        else min(retry_after, LONGEST_WAIT)
    )
    # A service that asks for no time at all must not be asked without end in no time.
    return max(pause, min(0.001 * 2.0 ** min(count, 11), 2.0))


class PatientLM(dspy.LM):
    """A ``dspy.LM`` whose calls outlast a service that is full. Made by :func:`patient`.

    A rejection (HTTP 429) is told and tried again after ``Retry-After``, or DSPy's own pauses, for
    as long as ``Search(patience=…)`` says. Other transient errors are tried again ``num_retries``
    times, as DSPy does; of them, HTTP 503 and 529 (overloaded) are told as well. Callbacks and
    history see one call, whatever the number of attempts; the books count each. Answers come from
    DSPy's cache and go there as before.

    A call for several completions (``n``) is repeated whole: where DSPy makes a request of each,
    what had been answered is bought again, and is in the books both times. One that streams is left
    to DSPy's own retries: a part of its answer has been shown already.
    """

    @with_callbacks
    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """Call the LM, and wait while its service is full."""
        if dspy.settings.send_stream is not None:
            return bounded(dspy.LM.__call__.__wrapped__(self, prompt, messages=messages, **kwargs))
        here = _surroundings()
        patience = Patience(self.num_retries, here.deadline)
        while True:
            try:
                answer = ask(self, prompt, messages, kwargs)
                patience.answered()
                return answer
            except LMError as error:
                seconds = _seconds(error, patience)
                if seconds is None or not here.repeats.allow() or here.wait(seconds):
                    raise
            count_repeated()

    @with_callbacks
    async def acall(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """Call the LM, and wait while its service is full, without blocking the loop."""
        if dspy.settings.send_stream is not None:
            return bounded(
                await dspy.LM.acall.__wrapped__(self, prompt, messages=messages, **kwargs)
            )
        here = _surroundings()
        patience = Patience(self.num_retries, here.deadline)
        while True:
            try:
                answer = await aask(self, prompt, messages, kwargs)
                patience.answered()
                return answer
            except LMError as error:
                seconds = _seconds(error, patience)
                if seconds is None or not here.repeats.allow() or await here.sleep(seconds):
                    raise
            count_repeated()


def is_passing(error: LMError) -> bool:
    """Return whether a failed call is the service's fault and may pass.

    That is what DSPy tries again, and a reply that is none of the API's, such as a gateway's page
    with HTTP 200: DSPy raises the plain ``LMProviderError`` for it.
    """
    return is_retryable_lm_error(error) or type(error) is LMProviderError


def _seconds(error: LMError, patience: Patience) -> float | None:
    count_failed(error)
    rejected = isinstance(error, LMRateLimitError)
    if not (rejected or is_passing(error)):
        return None
    seconds = patience.after(error.retry_after, rejected=rejected)
    if rejected or (seconds is not None and error.status in _OVERLOADED):
        tell_rejected(error.retry_after)
    return seconds


def patient(lm: dspy.BaseLM | None) -> dspy.BaseLM | None:
    """Return an LM that outlasts a service that is full; what is no plain ``dspy.LM`` is returned
    as it is.

    The copy shares the LM's client, history and callbacks, and nothing that tells its answers apart
    is changed. Legacy subclasses and test doubles have their own ``forward`` and are left alone,
    and so is ``None``.
    """
    if lm is None or type(lm) is not dspy.LM or "forward" in vars(lm) or "aforward" in vars(lm):
        return lm
    copied = object.__new__(PatientLM)
    # What dspy.LM's own __copy__ does: every attribute is shared, the history too.
    copied.__dict__.update(vars(lm))
    return copied


def patient_program(program: dspy.Module) -> dspy.Module:
    """Make every predictor's own LM :func:`patient`, in place, and return the program, a copy of
    the caller's own.

    Predictors that use DSPy's setting are left alone: the setting is the caller's to change.
    """
    for predictor in _predictors(program):
        predictor.lm = patient(predictor.lm)
    return program


def lms_of(program: dspy.Module) -> list[dspy.BaseLM]:
    """Return the LMs that a program's predictors ask, DSPy's setting where it has none; each
    once.
    """
    lms = [predictor.lm or dspy.settings.lm for predictor in _predictors(program)] or [
        dspy.settings.lm
    ]
    return list({id(lm): lm for lm in lms if lm is not None}.values())


def _predictors(program: dspy.Module) -> list[Any]:
    """Return every predictor of a program, those of frozen parts too, each once."""
    seen: dict[int, Any] = {}
    queue: list[Any] = [program]
    while queue:
        item = queue.pop()
        if id(item) in seen:
            continue
        seen[id(item)] = item
        if isinstance(item, dspy.Module):
            queue.extend(value for name, value in vars(item).items() if name not in _RECORDS)
        elif isinstance(item, (list, tuple, dict)):
            queue.extend(item.values() if isinstance(item, dict) else item)
    return [item for item in seen.values() if isinstance(item, dspy.Predict)]


def seconds_after(fault: InfrastructureFaultError, patience: Patience) -> float | None:
    """Return the seconds until an effect's next attempt, ``None`` where there is to be none."""
    if not fault.retryable:
        return None
    if fault.rejected:
        return patience.after(fault.retry_after, rejected=True)
    seconds = patience.after(None, rejected=False, outage=fault.outage)
    # Random: an outage meets many effects at once. Where it is perhaps none, short.
    least, most = (0.5, 1.0) if fault.outage else (0.0, 0.2)
    return None if seconds is None else random.uniform(least, most) * seconds  # noqa: S311
