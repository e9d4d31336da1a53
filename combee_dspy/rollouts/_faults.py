"""What an error says: about the program, or about the service that it asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dspy.utils.exceptions import (
    LMAuthError,
    LMBillingError,
    LMConfigurationError,
    LMError,
    LMRateLimitError,
    LMUnexpectedError,
    is_retryable_lm_error,
)

from combee_dspy.costs import Meter
from combee_dspy.lms.redact import scrub, secrets_of
from combee_dspy.records import Rollout
from combee_dspy.rollouts._jobs import InfrastructureFaultError

_FATAL = (LMAuthError, LMBillingError, LMConfigurationError)
_DEEPEST_CAUSE = 16


def described(error: BaseException, meter: Meter) -> str:
    """Return ``"ClassName: message"`` without the keys of any LM that was asked."""
    secrets = [key for lm in meter.lms.values() for key in secrets_of(lm)]
    return scrub(f"{type(error).__name__}: {error}", secrets)


def raise_fault(error: Exception, meter: Meter, scored: Callable[[], Rollout] | None = None) -> None:
    """Raise where an LM call or an environment failed for a reason that says nothing about program or metric.

    Args:
        error: What a program, a metric or an LM call has raised.
        meter: What the attempt has cost.
        scored: Makes the failed rollout, for a failure that nobody can assign: it is tried again, and one
            example that keeps failing must not end the run.

    Raises:
        InfrastructureFaultError: It did.
    """
    if isinstance(error, InfrastructureFaultError):
        error.usage = meter.usage()
        raise error
    found = next((one for one in _chain(error) if isinstance(one, LMError)), None)
    if found is None:
        return
    passing, unknown = is_retryable_lm_error(found), isinstance(found, LMUnexpectedError)
    if passing or unknown or isinstance(found, _FATAL):
        raise InfrastructureFaultError(
            described(found, meter),
            retryable=passing or unknown,
            rejected=passing and isinstance(found, LMRateLimitError),
            retry_after=found.retry_after,
            usage=meter.usage(),
            rollout=scored() if unknown and not passing and scored is not None else None,
        ) from error


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what it was raised from: a program may wrap what its LM failed with."""
    found: BaseException | None = error
    for _ in range(_DEEPEST_CAUSE):
        if found is None:
            return
        yield found
        found = found.__cause__
