"""Runs one LM call of a strategy."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager

import dspy
from dspy.utils.exceptions import AdapterParseError

from combee_dspy.costs import Meter
from combee_dspy.records import FailedCall
from combee_dspy.rollouts._attempt import is_own_cancellation, note_meter
from combee_dspy.rollouts._fence import fenced, without_marks
from combee_dspy.rollouts._jobs import Answer, CallJob
from combee_dspy.rollouts._loose_answers import read_loosely
from combee_dspy.rollouts._run import described_safely, is_interrupt, raise_fault


def run_call(job: CallJob) -> Answer:
    """Ask an LM. An answer that does not parse is asked for once more, as another draw.

    Raises:
        InfrastructureFaultError: The service is to blame, or nobody can tell.
    """
    call = _Call(job)
    with call.context():
        try:
            try:
                prediction = call.predictor(**call.inputs)
            except AdapterParseError as error:
                prediction = read_loosely(error) or call.predictor(
                    **call.inputs, config=call.another_draw()
                )
            return call.answer(prediction)
        except BaseException as error:
            if is_interrupt(error):
                raise
            return call.failed(error)


async def arun_call(job: CallJob) -> Answer:
    """Do what :func:`run_call` does on an event loop."""
    call = _Call(job)
    with call.context():
        try:
            try:
                prediction = await call.predictor.acall(**call.inputs)
            except AdapterParseError as error:
                prediction = read_loosely(error) or await call.predictor.acall(
                    **call.inputs, config=call.another_draw()
                )
            return call.answer(prediction)
        except BaseException as error:
            if is_own_cancellation(error):
                raise
            return call.failed(error)


class _Call:
    """One attempt at an LM call while it runs; ends in an answer or a fault."""

    def __init__(self, job: CallJob) -> None:
        self.job = job
        self.meter = Meter(job.tariff, job.role)
        config = {} if job.temperature is None else {"temperature": job.temperature}
        signature, self.inputs = fenced(job.signature, job.inputs)
        self.predictor = dspy.Predict(signature, **config)
        self.started = time.monotonic()
        note_meter(self.meter)

    def context(self) -> AbstractContextManager[None]:
        """Return the DSPy context of the call.

        It has no trace: the call is no part of a program around it. What is fenced is text,
        whatever type its field has, so mismatches of types are no warning.
        """
        parts = {"lm": self.job.lm, "adapter": self.job.adapter}
        settings = {name: part for name, part in parts.items() if part is not None}
        context: AbstractContextManager[None] = dspy.context(
            trace=None, warn_on_type_mismatch=False, **settings, **self.meter.settings()
        )
        return context

    def another_draw(self) -> dict[str, object]:
        """Return what makes DSPy's cache, and an LM at temperature 0, give another answer."""
        kwargs = getattr(self.job.lm or dspy.settings.lm, "kwargs", None) or {}
        kwargs = {**kwargs, **self.predictor.config}
        number = kwargs.get("rollout_id")
        config: dict[str, object] = {"rollout_id": (number if isinstance(number, int) else 0) + 1}
        return {**config, "temperature": 1.0} if kwargs.get("temperature") == 0 else config

    def answer(self, outcome: dspy.Prediction | FailedCall) -> Answer:
        return Answer(without_marks(outcome), self.meter.usage(), time.monotonic() - self.started)

    def failed(self, error: BaseException) -> Answer:
        """Return the answer that there is none, or raise where the service is to blame."""
        raise_fault(error, self.meter)
        return self.answer(FailedCall(described_safely(error, self.meter)))
