"""LMs that wait for as long as a service is too busy, instead of failing a rollout.

``dspy.LM`` repeats a rejected request by itself, ``num_retries`` times (3 by default), and nobody hears of it. So a
run would learn that a service is full only when a call has failed four times, and with it the rollout, whose
earlier calls are then bought again. The LMs here make one attempt at a time, tell of each rejection, and repeat the
attempt alone: no call that was answered is asked again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import dspy
from dspy.utils.callback import with_callbacks
from dspy.utils.exceptions import LMError, LMRateLimitError, is_retryable_lm_error

from combee_dspy.rollouts._retries import PATIENCE, pause_after

REJECTED: ContextVar[Callable[[float | None], None] | None] = ContextVar("combee_rejected", default=None)
"""Hears, from any thread, that a service rejected a request of the effect that runs here. Set by slots."""

# "Service unavailable", and what some services say instead: pressure, but perhaps an outage, so not for minutes.
_OVERLOADED = (503, 529)
_ONE_ATTEMPT: ContextVar[bool] = ContextVar("combee_one_attempt", default=False)
# These grow with every call, and hold no part of a program.
_RECORDS = frozenset({"callbacks", "demos", "history", "traces", "train"})


def tell_rejected(retry_after: float | None) -> None:
    """Say that a service rejected a request (HTTP 429) of the effect that runs here, once for each rejected attempt.

    Never raises for what a service sent; outside of an effect nothing happens.

    Args:
        retry_after: Seconds that the service asked to wait, ``None`` where it named none.
    """
    hears = REJECTED.get()
    if hears is not None:
        hears(retry_after)


class PatientLM(dspy.LM):
    """A ``dspy.LM`` whose calls outlast a service that is full. Made by :func:`patient`.

    A rejection (HTTP 429) is told and tried again after ``Retry-After``, or DSPy's own pauses, for ten minutes in
    all. Other transient errors are tried again ``num_retries`` times, as DSPy does; of them, HTTP 503 and 529
    (overloaded) are told as well. Callbacks, usage and history see one call, whatever the number of attempts;
    answers come from DSPy's cache and go there as before.

    A call for several completions, and one that streams, is left to DSPy's own
    retries: a part of its answer may be there already.
    """

    _allowed: int
    _tells: bool

    @property
    def num_retries(self) -> int:
        """What the user allowed; 0 for DSPy's own loop while this class repeats attempts."""
        return 0 if _ONE_ATTEMPT.get() else self._allowed

    @num_retries.setter
    def num_retries(self, value: int) -> None:
        self._allowed = value

    @with_callbacks
    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """Call the LM, and wait while its service is full."""
        patience = self._patience(kwargs)
        while True:
            token = _ONE_ATTEMPT.set(patience.one_attempt)
            try:
                return dspy.LM.__call__.__wrapped__(self, prompt, messages=messages, **kwargs)
            except LMError as error:
                seconds = patience.after(error)
            finally:
                _ONE_ATTEMPT.reset(token)
            time.sleep(seconds)

    @with_callbacks
    async def acall(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """Call the LM, and wait while its service is full, without blocking the loop."""
        patience = self._patience(kwargs)
        while True:
            token = _ONE_ATTEMPT.set(patience.one_attempt)
            try:
                return await dspy.LM.acall.__wrapped__(self, prompt, messages=messages, **kwargs)
            except LMError as error:
                seconds = patience.after(error)
            finally:
                _ONE_ATTEMPT.reset(token)
            await asyncio.sleep(seconds)

    def _patience(self, kwargs: Mapping[str, Any]) -> _Patience:
        several = ({**self.kwargs, **kwargs}.get("n") or 1) != 1
        return _Patience(self._allowed, self._tells, not several and dspy.settings.send_stream is None)


class _Patience:
    """Decides, for one call, whether to try again and when. Used by one thread or task."""

    def __init__(self, retries: int, tells: bool, one_attempt: bool) -> None:
        self.one_attempt = one_attempt
        self._retries = retries
        self._tells = tells
        self._started = time.monotonic()
        self._rejections = self._faults = 0

    def after(self, error: LMError) -> float:
        """Return the seconds until the next attempt; raise the error where it is not worth one."""
        if not self.one_attempt:
            raise error
        if isinstance(error, LMRateLimitError):
            if self._tells:
                tell_rejected(error.retry_after)
            self._rejections += 1
            seconds = pause_after(error.retry_after, self._rejections)
            if time.monotonic() + seconds > self._started + PATIENCE:
                raise error
            return seconds
        if self._faults >= self._retries or not is_retryable_lm_error(error):
            raise error
        if self._tells and error.status in _OVERLOADED:
            tell_rejected(error.retry_after)
        self._faults += 1
        return pause_after(error.retry_after, self._faults)


def patient(lm: Any) -> Any:
    """Return an LM that outlasts a service that is full; what is no plain ``dspy.LM`` is returned as it is.

    The copy shares the LM's client, history and callbacks, and nothing that tells its answers apart is changed.
    Legacy subclasses and test doubles have their own ``forward`` and are left alone.

    Args:
        lm: An LM, or ``None``. An engine with a true attribute ``tells_pressure`` tells rejections itself.
    """
    if type(lm) is not dspy.LM or "forward" in vars(lm) or "aforward" in vars(lm):
        return lm
    made = object.__new__(PatientLM)
    # What dspy.LM's own __copy__ does: every attribute is shared, the history too.
    tells = not getattr(lm.engine, "tells_pressure", False)
    made.__dict__.update(vars(lm), _allowed=lm.num_retries, _tells=tells)
    return made


def patient_program(program: dspy.Module) -> dspy.Module:
    """Make every predictor's own LM :func:`patient`, in place, and return the program.

    Args:
        program: A copy that belongs to the caller. Predictors that use DSPy's
            setting are left alone: the setting is the caller's to change.
    """
    for predictor in predictors_of(program):
        predictor.lm = patient(predictor.lm)
    return program


def predictors_of(program: dspy.Module) -> list[Any]:
    """Return every predictor of a program, those of frozen parts too, each once."""
    found: list[Any] = []
    queue: list[Any] = [program]
    seen: set[int] = set()
    while queue:
        item = queue.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, dspy.Predict):
            found.append(item)
        if isinstance(item, dspy.Module):
            queue.extend(value for name, value in vars(item).items() if name not in _RECORDS)
        elif isinstance(item, (list, tuple, dict)):
            queue.extend(item.values() if isinstance(item, dict) else item)
    return found


def lms_of(program: dspy.Module) -> list[Any]:
    """Return the LMs that a program's predictors ask, DSPy's setting where it has none; each once."""
    lms = [predictor.lm or dspy.settings.lm for predictor in predictors_of(program)] or [dspy.settings.lm]
    return list({id(lm): lm for lm in lms if lm is not None}.values())
