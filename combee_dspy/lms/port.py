"""The way from a strategy to an LM."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import dspy
from dspy.utils.exceptions import AdapterParseError, LMRateLimitError, is_retryable_lm_error

from combee_dspy.costs import role_scope
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.lms.redact import scrub, secrets_of
from combee_dspy.records import FailedCall, Role
from combee_dspy.rollouts import (
    EvaluationCache,
    ExecutorSession,
    Patience,
    call_fingerprint,
    current_place,
    current_session,
    patient,
    placed,
)
from combee_dspy.strategies import PredictFn

__all__ = ["LMPort"]

_LANE = "reflection"

Job = TypeVar("Job")


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
    - "Too many requests" is told to the session and tried again after
      ``Retry-After``, for ten minutes in all: it is no attempt.
    - Another transient LM error (timeout, server, connection) is tried again as
      it was. ``dspy.LM`` has waited and retried by itself before.
    - Any other error is final.

    With a cache that has a file, an answer that a run before has paid for is
    not bought again: the k-th identical request of this port gets the k-th
    answer in the file. A failure is never kept.

    Thread-safe.

    Args:
        session: Where the calls are carried out. Borrowed.
        lms: LM by role; a role that is missing or ``None`` uses DSPy's ``settings.lm``.
        adapter: How prompts are written and answers read.
        max_attempts: How often one input may be tried, at least 1.
        cache: Keeps answers where it has a file. Borrowed.
        scrub: Takes keys out of the texts of answers: what follows from them stands in checkpoints and files.

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
        cache: EvaluationCache | None = None,
        scrub: Callable[[str], str] | None = None,
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
        self._scrub = scrub
        self._cache = cache if cache is not None and cache.path is not None else None
        self._draws: Counter[str] = Counter()
        self._lock = threading.Lock()

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
        return self._predict(signature, inputs, role=role)

    def at(self, temperature: float | None) -> PredictFn:
        """Return :meth:`predict` at another temperature than the LM's own; ``None`` for the LM's own."""
        return self.predict if temperature is None else partial(self._predict, temperature=temperature)

    def _predict(
        self,
        signature: type[dspy.Signature],
        inputs: Sequence[dict[str, Any]],
        *,
        role: Role = "proposer",
        temperature: float | None = None,
    ) -> tuple[dspy.Prediction | FailedCall, ...]:
        lm = self._lms.get(role) or dspy.settings.lm
        if lm is None:
            remedy = "Give the LM, or call dspy.configure(lm=dspy.LM(…)) first."
            raise ArgumentValueError("lm", None, f"is missing for role {role!r}", remedy)
        adapter = self._adapter or dspy.settings.adapter or dspy.JSONAdapter()
        # What identifies a call, and whose keys are removed from errors, is the LM itself.
        patient_lm = patient(lm)
        # One module for all calls: making one draws from the global random state.
        predictor = dspy.Predict(signature)

        def task(values: dict[str, Any]) -> dspy.Prediction | FailedCall:
            # A trace of its own: these calls are no part of the program that may surround them.
            with dspy.context(lm=patient_lm, adapter=adapter, trace=[]), role_scope(role):
                return self._scrubbed(self._attempt(predictor, lm, values, temperature))

        name = f"{role}/{predictor.signature.__name__}"
        cache = self._cache
        if cache is None:
            return self._all_at_once(task, inputs, inputs, name)
        slots = [self._slot(call_fingerprint(signature, values, lm, adapter, temperature)) for values in inputs]
        known = {index: answer for index, slot in enumerate(slots) if (answer := cache.answer(*slot)) is not None}
        missing = [index for index in range(len(slots)) if index not in known]

        def bought(index: int) -> dspy.Prediction | FailedCall:
            answer = task(inputs[index])
            if not isinstance(answer, FailedCall):
                cache.keep_answer(*slots[index], answer, secrets_of(lm))
            return answer

        asked = self._all_at_once(bought, missing, [inputs[index] for index in missing], name)
        answers = {**known, **dict(zip(missing, asked, strict=True))}
        return tuple(answers[index] for index in range(len(slots)))

    def _scrubbed(self, answer: dspy.Prediction | FailedCall) -> dspy.Prediction | FailedCall:
        if self._scrub is not None and isinstance(answer, dspy.Prediction):
            for name, value in answer.items():
                answer[name] = _strings(value, self._scrub)
        return answer

    def _slot(self, key: str) -> tuple[str, int]:
        with self._lock:
            draw = self._draws[key]
            self._draws[key] += 1
        return key, draw

    def _attempt(
        self, predictor: Any, lm: Any, values: dict[str, Any], temperature: float | None
    ) -> dspy.Prediction | FailedCall:
        config: dict[str, Any] = {} if temperature is None else {"temperature": temperature}
        patience = Patience()
        attempt = 1
        while True:
            try:
                return predictor(**values, config=config)
            except LMRateLimitError as rejection:
                try:
                    pause = patience.rejected(rejection)
                except LMRateLimitError:
                    return _failed(rejection, lm)
                time.sleep(pause)
                continue
            except Exception as error:  # noqa: BLE001 - whatever a call fails with is returned, with its reason
                if attempt == self._max_attempts:
                    return _failed(error, lm)
                if isinstance(error, AdapterParseError):
                    config = _another_draw(lm, attempt, config)
                elif not is_retryable_lm_error(error):
                    return _failed(error, lm)
                attempt += 1

    def _all_at_once(
        self,
        task: Callable[[Job], dspy.Prediction | FailedCall],
        jobs: Sequence[Job],
        inputs: Sequence[Mapping[str, Any]],
        name: str,
    ) -> tuple[dspy.Prediction | FailedCall, ...]:
        here, futures = current_place(), []
        for job, values in zip(jobs, inputs, strict=True):
            # Known by what it asks, not by when: the same call of another run has the same key.
            key = f"{here.key or 'reflection'}/{name}/{_digest(values)}"
            with placed(replace(here, lane=_LANE, key=key, prefix=name)):
                futures.append(self._session.submit(task, job))
        own: dict[int, dspy.Prediction | FailedCall] = {}
        try:
            if current_session() is self._session:
                # This thread is one of the pool's. If all of them waited here for calls that
                # none is left to make, the run would hang: what has not started is done here.
                for index in reversed(range(len(futures))):
                    if futures[index].cancel():
                        own[index] = task(jobs[index])
            return tuple(own[index] if index in own else future.result() for index, future in enumerate(futures))
        finally:
            for future in futures:
                future.cancel()


def _strings(value: Any, change: Callable[[str], str]) -> Any:
    if type(value) is str:
        return change(value)
    if type(value) is list:
        return [_strings(one, change) for one in value]
    if type(value) is dict:
        return {key: _strings(one, change) for key, one in value.items()}
    return value


def _digest(values: Mapping[str, Any]) -> str:
    text = "\0".join(f"{name}\0{values[name]!r}" for name in sorted(values))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _another_draw(lm: Any, attempt: int, config: Mapping[str, Any]) -> dict[str, Any]:
    kwargs = {**(getattr(lm, "kwargs", None) or {}), **config}
    own = (getattr(lm, "kwargs", None) or {}).get("rollout_id")
    config = {**config, "rollout_id": (own if isinstance(own, int) else 0) + attempt}
    if kwargs.get("temperature") == 0:
        config["temperature"] = 1.0
    return config


def _failed(error: Exception, lm: Any) -> FailedCall:
    return FailedCall(scrub(f"{type(error).__name__}: {error}", secrets_of(lm)))
