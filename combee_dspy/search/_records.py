"""GEPA's reflective record: what one rollout has to say about one predictor."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dspy
from dspy.utils.exceptions import LMError

from combee_dspy._private import FailedPrediction, Type, history_text
from combee_dspy.records import PredictorCall, Rollout, described
from combee_dspy.rollouts import await_here, output_of

__all__ = ["call_to_show", "code_record", "predictor_feedback", "shown_call", "trajectories"]


def call_to_show(
    rollout: Rollout, component: str, stream: random.Random, *, format_failures: bool
) -> PredictorCall | None:
    """Return the call of a predictor that its record is about, or ``None`` where there is none to
    show.

    An answer that did not parse comes first where such answers are shown (``format_failures``);
    otherwise one call is drawn, as in GEPA.
    """
    calls = [call for call in rollout.calls if call.is_of(component)]
    unparsed = [call for call in calls if call.outputs is None]
    if unparsed and format_failures:
        return unparsed[0]
    parsed = [call for call in calls if call.outputs is not None]
    return stream.choice(parsed) if parsed else None


def failed_record(example: dspy.Example, rollout: Rollout) -> dict[str, Any] | None:
    """Return the record of a rollout that failed before or in a predictor's only call; ``None`` for
    any other.
    """
    if rollout.error is None:
        return None
    inputs = {name: str(value) for name, value in example.inputs().items()}
    return {
        "Inputs": inputs,
        "Generated Outputs": "None: the program failed.",
        "Feedback": rollout.error,
    }


def code_record(example: dspy.Example, rollout: Rollout) -> dict[str, Any]:
    """Return what a rollout says about the code of the program as a whole."""
    outputs: Any = (
        dict(rollout.prediction) if rollout.prediction is not None else f"(failed) {rollout.error}"
    )
    scored = rollout.feedback or f"The score was {rollout.score}."
    feedback = unscored(rollout) if rollout.failed_in == "metric" else scored
    return {"Inputs": example.inputs().toDict(), "Generated Outputs": outputs, "Feedback": feedback}


def unscored(rollout: Rollout) -> str:
    """Return the feedback on a rollout that the metric could not score."""
    return f"The metric could not score this, which says nothing about the answer: {rollout.error}"


def shown_call(call: PredictorCall, *, as_objects: bool) -> dict[str, Any]:
    """Return a record's ``"Inputs"`` and ``"Generated Outputs"``.

    Values stay what they are where DSPy's own proposer gets them (``as_objects``); otherwise they
    become texts, except for DSPy's types such as images.
    """
    inputs: dict[str, Any] = {}
    for value in call.inputs.values():
        if isinstance(value, dspy.History):
            inputs["Context"] = value if as_objects else history_text(value)
    for name, value in call.inputs.items():
        if not isinstance(value, dspy.History):
            inputs[name] = value if as_objects or isinstance(value, Type) else str(value)
    outputs: Any
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


def predictor_feedback(
    program: dspy.Module,
    metric: Callable[..., Any],
    example: dspy.Example,
    rollout: Rollout,
    call: PredictorCall,
    component: str,
) -> Mapping[str, Any]:
    """Ask GEPA's metric for its feedback on one call of a predictor.

    Runs in a worker thread: the metric may call an LM.

    Returns:
        ``feedback``, and the ``score`` that came with it (``None`` where the metric was not asked,
        or failed: ``error`` says how).
    """
    predictors = dict(program.named_predictors())
    predictor = predictors[component]
    if call.outputs is None:
        structure = "".join(
            f"{message['role']}: {message['content']}\n"
            for message in dspy.ChatAdapter().format(predictor.signature, [], {})
        )
        lacking = (
            f"{rollout.error}\nThe answer could not be read. It must have this"
            f" structure:\n{structure}"
        )
        return {"score": None, "feedback": lacking}
    if rollout.prediction is None:
        return {"score": None, "feedback": f"After this step the program failed: {rollout.error}"}
    trace = [_traced(predictors, each) for each in rollout.calls]
    try:
        called = [(predictor, *_traced(predictors, call)[1:])]
        output = await_here(metric(example, output_of(rollout), trace, component, called))
        score = (
            output["score"]
            if isinstance(output, dspy.Prediction) or hasattr(output, "feedback")
            else output
        )
        feedback = output["feedback"] if hasattr(output, "feedback") else None
        return {
            "score": None if score is None else float(score),
            "feedback": f"The score was {score}." if feedback is None else str(feedback),
        }
    except LMError:
        raise  # a service that fails says nothing about the metric, and ends the run
    except BaseException as error:  # noqa: BLE001 - it may fail in any way: the rollout it scored still teaches
        return feedback_failed(rollout, described(error))


def feedback_failed(rollout: Rollout, error: str) -> Mapping[str, Any]:
    """Return what stands in for the feedback of a metric that failed on one predictor."""
    feedback = rollout.feedback or f"The score was {rollout.score}."
    return {"score": None, "feedback": feedback, "error": error}


def _traced(
    predictors: Mapping[str, Any], call: PredictorCall
) -> tuple[Any, Mapping[str, Any], Any]:
    prediction: Any = FailedPrediction(completion_text=call.completion)
    if call.outputs is not None:
        prediction = dspy.Prediction(**call.outputs)
    return predictors.get(call.predictor), call.inputs, prediction


def trajectories(
    program: dspy.Module, examples: Sequence[dspy.Example], rollouts: Sequence[Rollout]
) -> list[dict[str, Any]]:
    """Return rollouts as DSPy's trajectories, for parts of gepa's that look at them."""
    predictors = dict(program.named_predictors())

    def predicted(rollout: Rollout) -> Any:
        if rollout.prediction is None:
            return FailedPrediction(completion_text=rollout.error or "")
        return output_of(rollout)

    return [
        {
            "example_ind": number,
            "example": example,
            "prediction": predicted(rollout),
            "trace": [_traced(predictors, call) for call in rollout.calls],
            "score": rollout.score,
        }
        for number, (example, rollout) in enumerate(zip(examples, rollouts, strict=True))
    ]
