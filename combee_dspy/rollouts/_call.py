"""Carries out one LM call of a strategy: returns the answer, or raises where the service is to
blame.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError

from combee_dspy.costs import Meter
from combee_dspy.records import FailedCall
from combee_dspy.rollouts._fence import fenced, without_marks
from combee_dspy.rollouts._gepa_answers import read_as_gepa
from combee_dspy.rollouts._in_time import is_ours
from combee_dspy.rollouts._jobs import Answer, CallJob
from combee_dspy.rollouts._patient import note_meter
from combee_dspy.rollouts._run import described_safely, raise_fault


def run_call(job: CallJob) -> Answer:
    """Ask an LM. An answer that does not parse is asked for once more, as another draw.

    Raises:
        InfrastructureFaultError: The service is to blame, or nobody can tell.
    """
    call = _Call(job)
    with call.context():
        try:
            try:
                return call.ended(call.predictor(**call.inputs))
            except AdapterParseError as error:
                prediction = read_as_gepa(error)
                if prediction is None:
                    prediction = call.predictor(**call.inputs, config=call.another_draw())
                return call.ended(prediction)
        except BaseException as error:
            if (
                isinstance(error, KeyboardInterrupt)
                and threading.current_thread() is threading.main_thread()
            ):
                raise
            return call.failed(error)


async def arun_call(job: CallJob) -> Answer:
    """Do what :func:`run_call` does on an event loop."""
    call = _Call(job)
    with call.context():
        try:
            try:
                return call.ended(await call.predictor.acall(**call.inputs))
            except AdapterParseError as error:
                prediction = read_as_gepa(error)
                if prediction is None:
                    prediction = await call.predictor.acall(
                        **call.inputs, config=call.another_draw()
                    )
                return call.ended(prediction)
        except BaseException as error:
            if is_ours(error):
                raise
            return call.failed(error)


class _Call:
    """What one attempt at an LM call knows; ends in an answer or a fault."""

    def __init__(self, job: CallJob) -> None:
        self.job = job
        self.meter = Meter(job.tariff, job.role)
        config = {} if job.temperature is None else {"temperature": job.temperature}
        signature, self.inputs = fenced(job.signature, job.inputs)
        self.predictor: Any = dspy.Predict(signature, **config)
        self.started = time.monotonic()
        note_meter(self.meter)

    def context(self) -> Any:
        named = ("lm", self.job.lm), ("adapter", self.job.adapter)
        settings = {name: part for name, part in named if part is not None}
        # No trace: these calls are no part of the program that may surround them. What is fenced is
        # text, whatever type its field has.
        return dspy.context(
            trace=None, warn_on_type_mismatch=False, **settings, **self.meter.settings()
        )

    def another_draw(self) -> Mapping[str, Any]:
        """Return what makes DSPy's cache, and an LM at temperature 0, give another answer."""
        kwargs = {
            **(getattr(self.job.lm or dspy.settings.lm, "kwargs", None) or {}),
            **self.predictor.config,
        }
        own = kwargs.get("rollout_id")
        config = {"rollout_id": (own if isinstance(own, int) else 0) + 1}
        return {**config, "temperature": 1.0} if kwargs.get("temperature") == 0 else config

    def ended(self, outcome: dspy.Prediction | FailedCall) -> Answer:
        return Answer(without_marks(outcome), self.meter.usage(), time.monotonic() - self.started)

    def failed(self, error: BaseException) -> Answer:
        raise_fault(error, self.meter)
        return self.ended(FailedCall(described_safely(error, self.meter)))
