"""Buys one LM call of a strategy, or one run of a function of the user's."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import dspy
from dspy.utils.exceptions import LMError

from combee_dspy.costs import Tariff, metered
from combee_dspy.journal import Effect
from combee_dspy.records import CallUsage, FailedCall, Role, described
from combee_dspy.rollouts import (
    Answer,
    CallJob,
    Check,
    RolloutTimeoutError,
    decode_answer,
    encode_answer,
    may_pass,
    note_meter,
    raise_fault,
)
from combee_dspy.search._amounts import largest_call
from combee_dspy.search._buyer import Buyer, WorkError
from combee_dspy.search._privacy import Texts

Priority = tuple[int, ...]


def call_effect(
    signature: type[dspy.Signature],
    place: tuple[str | int, ...],
    role: Role,
    question: str,
    step: int,
) -> Effect:
    """Return the row of an LM call before it is made; ``question`` is all that is asked."""
    digest = hashlib.blake2b(question.encode(), digest_size=8).hexdigest()
    key = f"call/{step}/{'/'.join(map(str, place))}/{role}/{digest}"
    component = str(place[0]) if place else ""
    return Effect(key, "call", {}, role, signature.__name__, step, component)


async def buy_call(
    buyer: Buyer, effect: Effect, job: CallJob, question: str, priority: Priority
) -> Answer:
    """Make an LM call, and commit its answer."""
    lm = job.lm or dspy.settings.lm
    answer, effect = await buyer.buy(
        effect,
        lambda check: buyer.slots.call(job, priority, check),
        lambda: largest_call([lm], [question], job.tariff),
    )
    effect, answer = scrubbed_answer(effect, answer, buyer.texts)
    await buyer.commit(effect, answer)
    return answer


def scrubbed_answer(effect: Effect, answer: Answer, texts: Texts) -> tuple[Effect, Answer]:
    """Return the row of an LM call with its answer, and the answer, both scrubbed."""
    value = texts.scrubbed(encode_answer(answer))
    outcome = answer.outcome
    error = texts.scrub(outcome.error) if isinstance(outcome, FailedCall) else None
    return replace(effect, value=value, error=error), decode_answer(value) or answer


@dataclass(frozen=True, slots=True)
class UserWork:
    """A function of the user's that may call LMs, such as a metric.

    Attributes:
        make: Returns JSON values.
        role: Whom its LM calls are made for.
        tariff: What they are charged by.
        seconds: How long it may take; ``None`` for no limit.
        late: Returns what stands in where it takes longer, from the error.
    """

    make: Callable[[], Any]
    role: Role
    tariff: Tariff
    seconds: float | None = None
    late: Callable[[str], Any] | None = None

    def run(self) -> WorkResult:
        """Call it in this thread, and count its LM calls.

        Raises:
            InfrastructureFaultError: A service that failed may work later.
            WorkError: It raised.
        """
        with metered(self.tariff, self.role) as meter:
            note_meter(meter)
            try:
                return WorkResult(self.make(), meter.usage())
            except Exception as error:
                if isinstance(error, LMError) and may_pass(error):
                    raise_fault(error, meter)
                raise WorkError(error, meter.usage()) from error
            except BaseException as error:
                # No exit of the user's code ends a worker.
                raise WorkError(RuntimeError(described(error)), meter.usage()) from error


@dataclass(frozen=True, slots=True)
class WorkResult:
    """What a function of the user's returned, with the LM calls that it made."""

    value: Any
    usage: tuple[CallUsage, ...] = ()


async def buy_work(
    buyer: Buyer, effect: Effect, work: UserWork, priority: Priority
) -> dict[str, Any]:
    """Run a function of the user's in a worker thread, and commit what it returns."""

    async def send(check: Check) -> WorkResult:
        try:
            return await buyer.slots.run(work.run, priority, check, work.seconds)
        except RolloutTimeoutError as error:
            if work.late is None:
                raise
            buyer.warn(f"The metric's feedback was given up: {error}")
            return WorkResult(work.late(described(error)), error.usage)

    result, effect = await buyer.buy(effect, send)
    value = {"value": buyer.texts.scrubbed(result.value)}
    await buyer.commit(replace(effect, value=value), value)
    return value
