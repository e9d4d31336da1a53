"""LMs that wait for as long as a service is too busy, instead of failing a rollout.

``dspy.LM`` repeats a rejected request by itself, ``num_retries`` times (3 by
default), after the service's ``Retry-After`` or 1, 2, 4 … seconds. Nobody
hears of it: its callbacks see a call begin and end, not its attempts. So a
run learns that a service is full only when a call has failed four times, and
with it the rollout, whose earlier calls are then bought again.

The LMs here make one attempt at a time and repeat the attempt alone: no call
that was answered is asked again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import dspy
import tenacity
from dspy.utils.callback import with_callbacks
from dspy.utils.exceptions import LMError, LMRateLimitError, is_retryable_lm_error

from combee_dspy.rollouts._pressure import LONGEST_WAIT, tell_pressure
from combee_dspy.rollouts._replicates import predictors_of

__all__ = [
    "PATIENCE",
    "Patience",
    "PatientLM",
    "patient",
    "patient_program",
    "patient_rules",
    "rate_limit_of",
]

PATIENCE = 600.0
"""Seconds that one call, or one rollout, is kept waiting by a service that rejects it."""

_LONGEST_PAUSE = 60.0
# "Service unavailable", and what some services say instead: pressure, but perhaps an outage, so not for minutes.
_OVERLOADED = (503, 529)
_DEEPEST_CAUSE = 16
_ONE_ATTEMPT: ContextVar[bool] = ContextVar("combee_one_attempt", default=False)


@dataclass(slots=True)
class Patience:
    """Decides, for one call or rollout, whether to try again and when. Used by one thread or task.

    Attributes:
        retries: Further attempts after a transient error that is no rejection.
        tells: Whether rejections are told here; an engine that tells them itself would count them twice.
        started: When the call began, monotonic seconds.
        rejections: Rejections so far.
        faults: Other transient errors so far.
    """

    retries: int = 0
    tells: bool = True
    started: float = field(default_factory=time.monotonic)
    rejections: int = 0
    faults: int = 0

    def after(self, error: LMError) -> float:
        """Return the seconds until the next attempt.

        Raises:
            LMError: The error, where it is not worth another attempt.
        """
        if isinstance(error, LMRateLimitError):
            return self.rejected(error)
        if self.faults >= self.retries or not is_retryable_lm_error(error):
            raise error
        if error.status in _OVERLOADED:
            tell_pressure(error.retry_after)
        self.faults += 1
        return min(_seconds(error, self.faults), LONGEST_WAIT)

    def rejected(self, error: LMRateLimitError) -> float:
        """Tell of a rejection, and return the seconds until the next attempt.

        Raises:
            LMRateLimitError: The rejection, where the patience is used up.
        """
        if self.tells:
            tell_pressure(error.retry_after)
        self.rejections += 1
        # A service that asks for no time at all must not be asked without end in no time.
        seconds = max(_seconds(error, self.rejections), min(0.001 * 2.0 ** min(self.rejections, 10), 0.1))
        if time.monotonic() + seconds > self.started + PATIENCE:
            raise error
        return seconds


def _seconds(error: LMError, count: int) -> float:
    """Return what the service asked for, else DSPy's own pauses."""
    asked = error.retry_after
    return float(asked) if asked is not None else min(2.0 ** min(count - 1, 6), _LONGEST_PAUSE)


class PatientLM(dspy.LM):
    """A ``dspy.LM`` whose calls outlast a service that is full. Made by :func:`patient`.

    A rejection (HTTP 429) is told to the session of the worker
    (:func:`~combee_dspy.rollouts.tell_pressure`) and tried again after
    ``Retry-After``, or DSPy's own pauses, for ten minutes in all. Other
    transient errors are tried again ``num_retries`` times, as DSPy does; of
    them, HTTP 503 and 529 (overloaded) are told as well.
    Callbacks, usage and history see one call, whatever the number of attempts;
    answers come from DSPy's cache and go there as before.

    A call for several completions, and one that streams, is left to DSPy's own
    retries: a part of its answer may be there already. DSPy waits for as long as
    ``Retry-After`` says, a day if it says so: no bound of this class holds for
    such a call, nor for an LM that :func:`patient` leaves alone. The engines of
    :func:`~combee_dspy.lms.pooled` say two minutes at most.
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
            token = _ONE_ATTEMPT.set(patience is not None)
            try:
                return dspy.LM.__call__.__wrapped__(self, prompt, messages=messages, **kwargs)
            except LMError as error:
                seconds = _pause(patience, error)
            finally:
                _ONE_ATTEMPT.reset(token)
            time.sleep(seconds)

    @with_callbacks
    async def acall(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """Call the LM, and wait while its service is full, without blocking the loop."""
        patience = self._patience(kwargs)
        while True:
            token = _ONE_ATTEMPT.set(patience is not None)
            try:
                return await dspy.LM.acall.__wrapped__(self, prompt, messages=messages, **kwargs)
            except LMError as error:
                seconds = _pause(patience, error)
            finally:
                _ONE_ATTEMPT.reset(token)
            await asyncio.sleep(seconds)

    def _patience(self, kwargs: Mapping[str, Any]) -> Patience | None:
        several = ({**self.kwargs, **kwargs}.get("n") or 1) != 1
        if several or dspy.settings.get("send_stream") is not None:
            return None
        return Patience(self._allowed, self._tells)


def _pause(patience: Patience | None, error: LMError) -> float:
    if patience is None:
        raise error
    return patience.after(error)


def patient(lm: Any) -> Any:
    """Return an LM that outlasts a service that is full; what is no plain ``dspy.LM`` is returned as it is.

    The copy shares the LM's client, history and callbacks, and nothing that
    tells its answers apart is changed. Legacy subclasses and test doubles have their own
    ``forward`` and are left alone.

    Args:
        lm: An LM, or ``None``. An engine with a true attribute ``tells_pressure`` tells rejections itself.
    """
    if type(lm) is not dspy.LM or "forward" in vars(lm) or "aforward" in vars(lm):
        return lm
    tells = not getattr(lm.engine, "tells_pressure", False)
    made = object.__new__(PatientLM)
    # What dspy.LM's own __copy__ does: every attribute is shared, the history too.
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


def rate_limit_of(error: BaseException | None) -> LMRateLimitError | None:
    """Return the rejection that an error comes from, ``None`` where it comes from none."""
    seen = 0
    while error is not None and seen < _DEEPEST_CAUSE:
        if isinstance(error, LMRateLimitError):
            return error
        error, seen = error.__cause__, seen + 1
    return None


def patient_rules(
    attempts: int, may_pass: Callable[[BaseException], bool], started: float | None = None
) -> dict[str, Any]:
    """Return arguments of ``tenacity.Retrying`` (or ``AsyncRetrying``) for one rollout.

    It runs again a few times after a fault, and for a time after rejections. A
    rejection that reaches this place comes from an LM that is not :func:`patient`,
    or has outlasted its patience. It is told to the session, waits for
    ``Retry-After``, and is bounded by :data:`PATIENCE` seconds in all, not by
    attempts; those are counted for other errors alone.

    Args:
        attempts: Attempts that may end with an error that is no rejection, at least 1.
        may_pass: Whether trying again may help.
        started: When the first attempt began, monotonic seconds; now by default.
    """
    patience = Patience(attempts) if started is None else Patience(attempts, started=started)
    after_fault = tenacity.wait_random_exponential(multiplier=0.2, max=10)
    over = False

    def wait(state: tenacity.RetryCallState) -> float:
        # tenacity asks for the pause first, and then whether to stop: once each per attempt.
        nonlocal over
        rejection = rate_limit_of(None if state.outcome is None else state.outcome.exception())
        if rejection is None:
            patience.faults += 1
            over = patience.faults >= attempts
            return after_fault(state)
        try:
            return patience.rejected(rejection)
        except LMRateLimitError:
            over = True
            return 0.0

    return {
        "stop": lambda state: over,
        "wait": wait,
        "retry": tenacity.retry_if_exception(may_pass),
        "reraise": True,
    }
