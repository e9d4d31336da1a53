"""GEPA's reflective records: a call of a predictor, and the metric's feedback on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import dspy
from dspy.utils.exceptions import LMError

from combee_dspy._private import FailedPrediction, InstructionProposer, Type, history_text
from combee_dspy.evaluation import Judge
from combee_dspy.events import ErrorRaised
from combee_dspy.records import PredictorCall, Rollout, described
from combee_dspy.rollouts import await_here, output_of
from combee_dspy.search._candidates import Compilation, EffectPlace, Row
from combee_dspy.search._effects import Effects
from combee_dspy.search._keeper import UpdatePlan
from combee_dspy.search._recorded import Recorded
from combee_dspy.search._rollouts import Programs
from combee_dspy.streams import derive
from combee_dspy.traces import RECORD_TOKENS, Trace, read_inputs, read_others

Record = Mapping[str, object]


@dataclass(eq=False)
class Records:
    """Makes the records of a run. Lives on the search's loop."""

    task: Compilation
    effects: Effects
    recorded: Recorded

    async def make(
        self, plan: UpdatePlan, row: Row, rollout: Rollout, component: str
    ) -> Record | None:
        """Return a record; ``None`` where the rollout teaches nothing about the component."""
        if row.recorded is not None:
            return await self.recorded.record(row, row.recorded, component, plan.step)
        example = self.effects.texts.example(row.example)
        if component in self.task.code:
            return _code_record(example, rollout)
        call = self._call(rollout, component, plan.step, row)
        if call is None:
            return _failed_record(example, rollout)
        proposer = self.task.settings.instruction_proposer
        as_objects = isinstance(proposer, (InstructionProposer, type(None)))
        feedback = await self._feedback(plan, row, rollout, component, call)
        if proposer is None and self.task.settings.search.reads == "rollout":
            record = _whole_record(example, rollout, call)
        else:
            record = _shown_call(call, as_objects=as_objects)
        return {**record, "Feedback": feedback}

    def _call(self, rollout: Rollout, component: str, step: int, row: Row) -> PredictorCall | None:
        """Return the call of a predictor that its record is about; ``None`` where there is none.

        An answer that did not parse comes first where the user wants such answers shown; otherwise
        one call is drawn, as in GEPA.
        """
        calls = [call for call in rollout.calls if call.is_of(component)]
        unparsed = [call for call in calls if call.outputs is None]
        if unparsed and self.task.settings.add_format_failure_as_feedback:
            return unparsed[0]
        parsed = [call for call in calls if call.outputs is not None]
        stream = derive(self.task.settings.seed, "shown call", step, component, row.hash)
        return stream.choice(parsed) if parsed else None

    async def _feedback(
        self, plan: UpdatePlan, row: Row, rollout: Rollout, component: str, call: PredictorCall
    ) -> str:
        """Return the metric's feedback on one call of a predictor, which is one effect."""
        if rollout.failed_in == "metric":
            return _unscored(rollout)
        settings, effects = self.task.settings, self.effects
        # A judge gives every predictor the same feedback, and redacted answers are no answers to a
        # metric.
        whole = isinstance(effects.metric, Judge) or effects.texts.redacts
        if whole and rollout.prediction is not None:
            return rollout.feedback
        candidate, number = plan.parent.candidate, _place_of(call, rollout)
        place = EffectPlace("feedback", plan.step, component)
        key = f"feedback/{candidate.id}/{row.hash[:16]}/{component}/{number}"
        program = effects.programs.of(candidate)
        feedback: Mapping[str, Any] = await effects.work(
            effects.key(key, place),
            place,
            "evaluator",
            "feedback",
            partial(_ask_metric, program, effects.metric, row.example, rollout, call, component),
            partial(_feedback_failed, rollout),
        )
        if "error" in feedback:
            effects.emit(ErrorRaised("metric", feedback["error"]), step=plan.step)
        if settings.warn_on_score_mismatch and feedback["score"] not in (None, rollout.score):
            effects.warn(
                "The metric scores a predictor otherwise than the program: the program's score"
                " counts. warn_on_score_mismatch=False silences this."
            )
        return str(feedback["feedback"])


def _failed_record(example: dspy.Example, rollout: Rollout) -> Record | None:
    """Return the record of a rollout that failed before or in a predictor's only call; ``None`` for
    any other.
    """
    if rollout.error is None:
        return None
    return {
        "Inputs": {name: str(value) for name, value in example.inputs().items()},
        "Generated Outputs": "None: the program failed.",
        "Feedback": rollout.error,
    }


def _code_record(example: dspy.Example, rollout: Rollout) -> Record:
    """Return a record about the code of the program as a whole."""
    failed = f"(failed) {rollout.error}"
    outputs = failed if rollout.prediction is None else dict(rollout.prediction)
    feedback = _unscored(rollout) if rollout.failed_in == "metric" else _feedback_on(rollout)
    return {"Inputs": example.inputs().toDict(), "Generated Outputs": outputs, "Feedback": feedback}


def _feedback_on(rollout: Rollout) -> str:
    return rollout.feedback or f"The score was {rollout.score}."


def _unscored(rollout: Rollout) -> str:
    return f"The metric could not score this, which says nothing about the answer: {rollout.error}"


def _shown_call(call: PredictorCall, *, as_objects: bool) -> Record:
    """Return a record's ``"Inputs"`` and ``"Generated Outputs"``.

    Values stay what they are where DSPy's own proposer gets them (``as_objects``); otherwise they
    become texts, except for DSPy's types such as images. Histories come first.
    """
    inputs: dict[str, object] = {}
    for value in call.inputs.values():
        if isinstance(value, dspy.History):
            inputs["Context"] = value if as_objects else history_text(value)
    for name, value in call.inputs.items():
        if not isinstance(value, dspy.History):
            inputs[name] = value if as_objects or isinstance(value, Type) else str(value)
    outputs: object
    if call.outputs is None:
        outputs = (
            "The answer did not have the fields that were asked for. As the model wrote"
            f" it:\n{call.completion}\n"
        )
    else:
        outputs = {
            name: value if as_objects else str(value) for name, value in call.outputs.items()
        }
    return {"Inputs": inputs, "Generated Outputs": outputs}


def _place_of(call: PredictorCall, rollout: Rollout) -> int:
    """Return the position of a rollout's call, by identity: arrays do not say if they are equal."""
    return next(place for place, each in enumerate(rollout.calls) if each is call)


def _whole_record(example: dspy.Example, rollout: Rollout, call: PredictorCall) -> Record:
    """Return a record of a call, and of what the other calls of its rollout did."""
    subject = _place_of(call, rollout)
    inputs = dict(example.inputs().items())
    trace = Trace(rollout.example_id, inputs, rollout.prediction, rollout.calls)
    record = _shown_call(replace(call, inputs=read_inputs(trace.calls, subject)), as_objects=True)
    return {**record, **read_others(trace, subject, record, RECORD_TOKENS)}


def _ask_metric(
    program: dspy.Module,
    metric: Callable[..., Any],
    example: dspy.Example,
    rollout: Rollout,
    call: PredictorCall,
    component: str,
) -> Record:
    """Ask GEPA's metric for its feedback on one call of a predictor.

    Runs in a worker thread: the metric may call an LM.

    Returns:
        ``feedback``, and the ``score`` that came with it (``None`` where the metric was not called,
        or failed with ``error``).
    """
    predictors = dict(program.named_predictors())
    predictor = predictors[component]
    if call.outputs is None:
        return {"score": None, "feedback": f"{rollout.error}\n{_structure_of(predictor)}"}
    if rollout.prediction is None:
        return {"score": None, "feedback": f"After this step the program failed: {rollout.error}"}
    trace = [_traced(predictors, each) for each in rollout.calls]
    try:
        called = [(predictor, *_traced(predictors, call)[1:])]
        return _read(await_here(metric(example, output_of(rollout), trace, component, called)))
    except LMError:
        raise  # a service that fails says nothing about the metric, and ends the run
    except BaseException as error:  # noqa: BLE001 - it may fail in any way: the rollout it scored still teaches
        return _feedback_failed(rollout, described(error))


def _structure_of(predictor: dspy.Predict) -> str:
    """Return feedback on an answer of a predictor that did not parse."""
    structure = "".join(
        f"{message['role']}: {message['content']}\n"
        for message in dspy.ChatAdapter().format(predictor.signature, [], {})
    )
    return f"The answer could not be read. It must have this structure:\n{structure}"


def _read(output: Any) -> Record:
    """Return score and feedback of what a metric returned for a predictor."""
    has_feedback = hasattr(output, "feedback")
    has_score = has_feedback or isinstance(output, dspy.Prediction)
    value = output["score"] if has_score else output
    score = None if value is None else float(value)
    feedback = output["feedback"] if has_feedback else None
    return {
        "score": score,
        "feedback": f"The score was {score}." if feedback is None else str(feedback),
    }


def _feedback_failed(rollout: Rollout, error: str) -> Record:
    """Return feedback in the place of a metric that failed on one predictor."""
    return {"score": None, "feedback": _feedback_on(rollout), "error": error}


def _traced(
    predictors: Mapping[str, dspy.Module], call: PredictorCall
) -> tuple[dspy.Module | None, Mapping[str, object], dspy.Prediction | FailedPrediction]:
    prediction = (
        FailedPrediction(completion_text=call.completion)
        if call.outputs is None
        else dspy.Prediction(**call.outputs)
    )
    return predictors.get(call.predictor), call.inputs, prediction


def trajectories(
    programs: Programs, plan: UpdatePlan, rollouts: Sequence[Rollout]
) -> list[dict[str, Any]]:
    """Return an update's rollouts as DSPy's trajectories, for gepa's parts that look at them."""
    predictors = dict(programs.of(plan.parent.candidate).named_predictors())
    return [
        {
            "example_ind": number,
            "example": row.example,
            "prediction": (
                FailedPrediction(completion_text=rollout.error or "")
                if rollout.prediction is None
                else output_of(rollout)
            ),
            "trace": [_traced(predictors, call) for call in rollout.calls],
            "score": rollout.score,
        }
        for number, (row, rollout) in enumerate(zip(plan.rows, rollouts, strict=True))
    ]
