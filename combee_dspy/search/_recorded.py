"""Reads rollouts that happened elsewhere in the place of rollouts of this run."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import dspy
from dspy.utils.exceptions import LMError

from combee_dspy.evaluation import Judge, perfect_score_of
from combee_dspy.events import ErrorRaised
from combee_dspy.journal import Effect
from combee_dspy.records import Metric, Rollout, described
from combee_dspy.rollouts import await_here, decode_rollout, encode_rollout, read_score
from combee_dspy.search._candidates import Compilation, EffectPlace, Row
from combee_dspy.search._effects import Effects
from combee_dspy.search._privacy import inputs_text
from combee_dspy.search._traces import make_scrub
from combee_dspy.traces import (
    RECORD_TOKENS,
    Recording,
    Selection,
    Trace,
    as_example,
    describe_outcome,
    is_right,
    read_call,
    read_trace,
)


class Recorded:
    """Makes rollouts of traces. Lives on the search's loop.

    The metric scores recorded outputs where the trace has an expected answer, or nobody has judged
    it; else the recorded verdict counts. Nothing is run, but the metric may call LMs.
    """

    def __init__(self, task: Compilation, effects: Effects) -> None:
        settings, traces = task.settings, task.splits.traces
        self._effects = effects
        self._metric: Metric = settings.metric
        self._perfect_score, self._failure_score = settings.perfect_score, settings.failure_score
        self._predictors = {path for path, _ in task.student.named_predictors()}
        self._selection = Selection() if traces is None else traces.selection
        self._scrub = make_scrub(settings)

    def rollout(self, row: Row, recording: Recording, step: int) -> Awaitable[Rollout]:
        """Return the recorded rollout that an update learns from."""
        key = f"recorded/{row.hash[:16]}"
        make = partial(self._read, key, row, recording, step)
        return self._effects.once(key, decode_rollout, make)

    async def record(
        self, row: Row, recording: Recording, component: str, step: int
    ) -> Mapping[str, object] | None:
        """Return a reader's record: a predictor's call among the others, or the whole trajectory.

        ``None`` where the predictor was not called.
        """
        trace, perfect = await self._judged(row, recording, step)
        if component not in self._predictors:
            return read_trace(trace, RECORD_TOKENS, perfect=perfect).record
        call = read_call(trace, component, RECORD_TOKENS, perfect)
        return None if call is None else call.record

    async def _read(self, key: str, row: Row, recording: Recording, step: int) -> Rollout:
        trace, perfect = await self._judged(row, recording, step)
        rollout = Rollout(
            trace.id,
            self._score(trace, perfect),
            describe_outcome(trace, perfect),
            error=trace.error or None,
            prediction=trace.outputs,
            calls=trace.calls,
        )
        origin = {"trace": trace.id, "prompt": trace.prompt, "model": trace.model}
        inputs, now = inputs_text(row.example), time.time()
        effect = Effect(
            key,
            "recorded",
            {**encode_rollout(rollout), "inputs": inputs, "origin": {**origin, "time": trace.time}},
            purpose="train",
            step=step,
            candidate=trace.prompt,
            example=trace.id,
            split="train",
            score=trace.score,
            error=rollout.error,
            started=now,
            ended=now,
        )
        await self._effects.buyer.commit(effect, rollout)
        return rollout

    def _score(self, trace: Trace, perfect: float) -> float:
        """Return a score on the metric's scale: people and judges may have another one."""
        if is_right(trace, perfect):
            return self._perfect_score
        score = self._failure_score if trace.score is None else trace.score
        return score if score < self._perfect_score else self._failure_score

    async def _judged(self, row: Row, recording: Recording, step: int) -> tuple[Trace, float]:
        """Return a trace with the metric's verdict, and the score of a success."""
        trace, original = recording.redacted, recording.original
        is_open = bool(original.expected) or not original.judged
        if original.outputs is None or original.error or not is_open:
            return trace, self._selection.perfect
        place, key = EffectPlace("feedback", step), f"feedback/recorded/{row.hash[:16]}"
        # A judge is an LM: it reads what other readers may see.
        seen = trace if isinstance(self._metric, Judge) else original
        make = partial(_score_outputs, self._metric, seen, seen.outputs or {})
        verdict = await self._effects.work(key, place, "evaluator", "feedback", make, _failed)
        if "error" in verdict:
            self._effects.emit(ErrorRaised("metric", verdict["error"]), step=step)
            return trace, self._selection.perfect
        score, feedback = verdict["score"], self._scrub(verdict["feedback"])
        if trace.feedback not in feedback:
            feedback = f"{feedback}\n{trace.feedback}".strip()
        perfect = perfect_score_of(self._perfect_score, [score])
        return replace(trace, score=score, feedback=feedback), perfect


def _score_outputs(metric: Metric, trace: Trace, outputs: Mapping[str, object]) -> dict[str, Any]:
    """Return the metric's score of recorded outputs and its feedback, or the error that it raised.

    Runs in a worker thread: it may ask an LM.
    """
    prediction = dspy.Prediction()
    for name, value in outputs.items():
        prediction[name] = value
    try:
        output = metric(as_example(trace), prediction, None, None, None)
        score, feedback, _ = read_score(await_here(output))
    except LMError:
        raise  # a service that fails says nothing about the metric, and ends the run
    except Exception as error:  # noqa: BLE001 - it may fail in any way: the recorded verdict still teaches
        return _failed(described(error))
    return {"score": score, "feedback": feedback}


def _failed(error: str) -> dict[str, Any]:
    return {"error": error}
