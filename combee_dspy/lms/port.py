"""The way from a strategy to an LM."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError, is_retryable_lm_error

from combee_dspy.costs import role_scope
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.lms.redact import scrub, secrets_of
from combee_dspy.records import FailedCall, Role
from combee_dspy.rollouts import ExecutorSession, current_session

__all__ = ["LMPort"]


class LMPort:
    """Makes the LM calls of strategies: :meth:`predict` is their ``PredictFn``.

    All inputs of one call are in flight at once, up to the session's workers.
    A worker of the session that calls ``predict`` works on its own inputs
    until the others are taken, so nested calls never wait for each other.

    The adapter is the one given here, else the one in DSPy's settings, else
    ``dspy.JSONAdapter()``: the default of DSPy's own instruction proposer,
    which keeps typed and multi-modal values and asks for structured output
    where the service has it.

    What fails is tried again, up to ``max_attempts``:

    - An answer that does not parse is drawn anew: with another ``rollout_id``,
      so that DSPy's cache does not repeat it, and at temperature 1 where the
      LM's own is 0, since a greedy answer would repeat itself.
    - A transient LM error (rate limit, timeout, server, connection) is tried
      again as it was. ``dspy.LM`` has waited and retried by itself before.
    - Any other error is final.

    Thread-safe.

    Args:
        session: Where the calls are carried out. Borrowed.
        lms: LM by role; a role that is missing or ``None`` uses DSPy's ``settings.lm``.
        adapter: How prompts are written and answers read.
        max_attempts: How often one input may be tried, at least 1.

    Raises:
        ArgumentTypeError: ``adapter`` is no ``dspy.Adapter``.
        ArgumentValueError: ``max_attempts`` is below 1.
    """

    def __init__(
        self,
        session: ExecutorSession,
        lms: Mapping[Role, dspy.BaseLM | None],
        adapter: dspy.Adapter | None = None,
        max_attempts: int = 2,
    ) -> None:
        if adapter is not None and not isinstance(adapter, dspy.Adapter):
            remedy = "Give an object such as dspy.JSONAdapter()."
            raise ArgumentTypeError("adapter", adapter, "is no dspy.Adapter", remedy)
        if max_attempts < 1:
            raise ArgumentValueError("max_attempts", max_attempts, "is below 1", "Give at least one attempt.")
        self._session = session
        self._lms = dict(lms)
        self._adapter = adapter
        self._max_attempts = max_attempts

    def predict(
        self,
        signature: type[dspy.Signature],
        inputs: Sequence[dict[str, Any]],
        *,
        role: Role = "proposer",
    ) -> tuple[dspy.Prediction | FailedCall, ...]:
        """Ask an LM once per input.

        Args:
            signature: What is asked.
            inputs: Values of its input fields, one mapping per call.
            role: Who the calls are made for: chooses the LM and is named in the ledger.

        Returns:
            One prediction, or the failure of the last attempt, per input, in the
            order of the inputs. Keys are removed from error messages.

        Raises:
            ArgumentValueError: There is no LM for this role.
        """
        lm = self._lms.get(role) or dspy.settings.lm
        if lm is None:
            remedy = "Give the LM, or call dspy.configure(lm=dspy.LM(…)) first."
            raise ArgumentValueError("lm", None, f"is missing for role {role!r}", remedy)
        adapter = self._adapter or dspy.settings.adapter or dspy.JSONAdapter()
        # One module for all calls: making one draws from the global random state.
        predictor = dspy.Predict(signature)

        def task(values: dict[str, Any]) -> dspy.Prediction | FailedCall:
            # A trace of its own: these calls are no part of the program that may surround them.
            with dspy.context(lm=lm, adapter=adapter, trace=[]), role_scope(role):
                return self._attempt(predictor, lm, values)

        return self._all_at_once(task, inputs)

    def _attempt(self, predictor: Any, lm: Any, values: dict[str, Any]) -> dspy.Prediction | FailedCall:
        config: dict[str, Any] = {}
        for attempt in range(1, self._max_attempts + 1):
            try:
                return predictor(**values, config=config)
            except Exception as error:  # noqa: BLE001 - whatever a call fails with is returned, with its reason
                if isinstance(error, AdapterParseError):
                    config = _another_draw(lm, attempt)
                elif not is_retryable_lm_error(error):
                    return _failed(error, lm)
                last = error
        return _failed(last, lm)

    def _all_at_once(
        self, task: Callable[[dict[str, Any]], dspy.Prediction | FailedCall], inputs: Sequence[dict[str, Any]]
    ) -> tuple[dspy.Prediction | FailedCall, ...]:
        futures = [self._session.submit(task, values) for values in inputs]
        own: dict[int, dspy.Prediction | FailedCall] = {}
        try:
            if current_session() is self._session:
                # This thread is one of the pool's. If all of them waited here for calls that
                # none is left to make, the run would hang: what has not started is done here.
                for index in reversed(range(len(futures))):
                    if futures[index].cancel():
                        own[index] = task(inputs[index])
            return tuple(own[index] if index in own else future.result() for index, future in enumerate(futures))
        finally:
            for future in futures:
                future.cancel()


def _another_draw(lm: Any, attempt: int) -> dict[str, Any]:
    kwargs = getattr(lm, "kwargs", None) or {}
    first = kwargs.get("rollout_id")
    config: dict[str, Any] = {"rollout_id": (first if isinstance(first, int) else 0) + attempt}
    if kwargs.get("temperature") == 0:
        config["temperature"] = 1.0
    return config


def _failed(error: Exception, lm: Any) -> FailedCall:
    return FailedCall(scrub(f"{type(error).__name__}: {error}", secrets_of(lm)))
