"""LMs that wait while a service is full, and repeat the one call that it refused."""

from __future__ import annotations

import copy
import functools
import random
from typing import Any

import dspy
from dspy.utils.callback import with_callbacks
from dspy.utils.exceptions import LMError, LMProviderError, LMRateLimitError, is_retryable_lm_error

from combee_dspy.costs import count_failed, count_repeated
from combee_dspy.rollouts._attempt import Attempt, Deadline, attempt_here
from combee_dspy.rollouts._jobs import InfrastructureFaultError
from combee_dspy.rollouts._replies import aask, ask, bounded

LONGEST_WAIT = 120.0
"""Longest pause in seconds, whatever a service asks for: one that asks for more is down."""

PATIENCE = 300.0
"""Seconds to wait for a service that is full or down: the default of Search(patience=…)."""

# Service unavailable, and overloaded: the service may be full, or down.
_OVERLOADED = (503, 529)
# By what an LM is called, and asks its service.
_CALLS = ("__call__", "acall", "forward", "aforward")
# These attributes grow with every call, and hold no predictor.
_RECORDS = frozenset({"callbacks", "demos", "history", "traces", "train"})


class Patience:
    """Counts the failures of one call, or of one effect, and says whether another attempt follows.

    Args:
        faults: Failures that are followed by another attempt. Rejections are not counted: they are
            waited for until the deadline.
        deadline: The effect's; by default :data:`PATIENCE` seconds.
    """

    def __init__(self, faults: int, deadline: Deadline | None = None) -> None:
        self._allowed = faults
        self._deadline = Deadline(PATIENCE) if deadline is None else deadline
        self._rejections = self._faults = 0

    def after(
        self, retry_after: float | None, *, rejected: bool, outage: bool = False
    ) -> float | None:
        """Return the seconds until the next attempt; ``None`` for no further attempt.

        An outage is waited for until the deadline, however many attempts fail.
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
    """Return the seconds to wait after ``count`` failures: 1, 2, 4 … 60, or what was asked for."""
    if retry_after is None:
        pause = min(2.0 ** min(count - 1, 6), 60.0)
    else:
        pause = min(retry_after, LONGEST_WAIT)
    # A service that asks for no time at all must not be asked in a busy loop.
    return max(pause, min(0.001 * 2.0 ** min(count, 11), 2.0))


def seconds_after(fault: InfrastructureFaultError, patience: Patience) -> float | None:
    """Return the seconds until an effect's next attempt; ``None`` for no further attempt."""
    if not fault.retryable:
        return None
    if fault.rejected:
        return patience.after(fault.retry_after, rejected=True)
    seconds = patience.after(None, rejected=False, outage=fault.outage)
    # Random, since an outage meets many effects at once; short where it may be no outage.
    least, most = (0.5, 1.0) if fault.outage else (0.0, 0.2)
    return None if seconds is None else random.uniform(least, most) * seconds  # noqa: S311


class PatientLM(dspy.LM):
    """A ``dspy.LM`` whose calls outlast a service that is full. Made by :func:`patient`.

    A rejection (HTTP 429) is reported to the slots and repeated after ``Retry-After``, or DSPy's
    own pauses, for as long as ``Search(patience=…)`` allows. Other transient errors are repeated
    ``num_retries`` times, as in DSPy; of them, HTTP 503 and 529 are reported as well. Callbacks and
    history see one call; the books count each attempt. DSPy's cache works as before.

    A call for several completions (``n``) is repeated whole. A call that streams keeps DSPy's own
    retries: a part of its answer is out already.
    """

    @with_callbacks
    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """Call the LM, and wait while its service is full."""
        if dspy.settings.send_stream is not None:
            return bounded(dspy.LM.__call__.__wrapped__(self, prompt, messages=messages, **kwargs))
        attempt = attempt_here()
        patience = Patience(self.num_retries, attempt.deadline)
        while True:
            try:
                answer = ask(self, prompt, messages, kwargs)
            except LMError as error:
                seconds = _pause(error, patience, attempt)
                if seconds is None or attempt.wait(seconds):
                    raise
                count_repeated()
            else:
                patience.answered()
                return answer

    @with_callbacks
    async def acall(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """Call the LM, and wait while its service is full, without blocking the loop."""
        if dspy.settings.send_stream is not None:
            stream = dspy.LM.acall.__wrapped__(self, prompt, messages=messages, **kwargs)
            return bounded(await stream)
        attempt = attempt_here()
        patience = Patience(self.num_retries, attempt.deadline)
        while True:
            try:
                answer = await aask(self, prompt, messages, kwargs)
            except LMError as error:
                seconds = _pause(error, patience, attempt)
                if seconds is None or await attempt.sleep(seconds):
                    raise
                count_repeated()
            else:
                patience.answered()
                return answer


def _pause(error: LMError, patience: Patience, attempt: Attempt) -> float | None:
    """Return the seconds until a failed call is sent again; ``None`` for not again."""
    count_failed(error)
    rejected = isinstance(error, LMRateLimitError)
    if not (rejected or may_pass(error)):
        return None
    seconds = patience.after(error.retry_after, rejected=rejected)
    if rejected or (seconds is not None and error.status in _OVERLOADED):
        attempt.rejected(error.retry_after)
    return seconds if seconds is not None and attempt.repeats.allow() else None


def may_pass(error: LMError) -> bool:
    """Return whether a failed call is the service's fault and may work later.

    DSPy's plain ``LMProviderError`` stands for a reply that is no answer of the API, such as a
    gateway's page with HTTP 200.
    """
    return is_retryable_lm_error(error) or type(error) is LMProviderError


def patient(lm: dspy.BaseLM | None) -> dspy.BaseLM | None:
    """Return a copy of an LM that outlasts a full service; any that calls in a way of its own as
    it is.

    The copy shares client, history and callbacks with the LM, and gives the same answers. A
    subclass of ``dspy.LM`` stays one. Test doubles and subclasses with a ``__call__``, ``acall``,
    ``forward`` or ``aforward`` of their own stay as they are: what they do when a call fails is
    theirs to decide. So do those that hear of their subclasses.
    """
    if not isinstance(lm, dspy.LM) or any(_is_own(lm, name) for name in _CALLS):
        return lm
    kind: Any = type(lm)
    if any("__init_subclass__" in vars(base) for base in kind.__mro__[:-1]):
        return lm
    copied = copy.copy(lm)
    copied.__class__ = _patient_kind(kind)
    return copied


def _is_own(lm: dspy.LM, name: str) -> bool:
    return name in vars(lm) or getattr(type(lm), name) is not getattr(dspy.LM, name)


@functools.cache
def _patient_kind(kind: Any) -> Any:
    """Return a class whose LMs differ from another's in their patience alone."""
    if kind is dspy.LM:
        return PatientLM

    def reduced(self: dspy.LM, protocol: object) -> object:
        # No module has this class: another process makes it anew.
        plain = copy.copy(self)
        plain.__class__ = kind
        return patient, (plain,)

    about = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind, PatientLM), {**about, "__reduce_ex__": reduced})


def patient_program(program: dspy.Module) -> dspy.Module:
    """Make every predictor's own LM :func:`patient`, in place, and return the program.

    Predictors that use DSPy's setting have none: the caller makes that one patient.
    """
    for predictor in _predictors(program):
        predictor.lm = patient(predictor.lm)
    return program


def lms_of(program: dspy.Module) -> list[dspy.BaseLM]:
    """Return the LMs that a program's predictors ask, each once; DSPy's setting where they have
    none.
    """
    lms = [predictor.lm or dspy.settings.lm for predictor in _predictors(program)]
    return list({id(lm): lm for lm in lms or [dspy.settings.lm] if lm is not None}.values())


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
