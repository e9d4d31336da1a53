"""A rollout as JSON, and back on the program at hand."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import chain, repeat
from typing import Any

import dspy

from combee_dspy.records import Rollout
from combee_dspy.rollouts._codec import NotStorableError, decode, encode_checked

__all__ = ["read_prediction", "read_rollout", "write_prediction", "write_rollout"]

_FAULTS = (None, "program", "metric")


def write_rollout(rollout: Rollout, program: dspy.Module) -> str:
    """Return a rollout as JSON text, without its example.

    Args:
        rollout: A rollout that is worth keeping.
        program: The program that was run, or one with the same predictors.

    Raises:
        NotStorableError: It holds a value that would not come back as it was.
    """
    predictors = list(program.named_predictors())
    steps = []
    for (caller, inputs, outputs), path in zip(rollout.trace, chain(rollout.callers, repeat("")), strict=False):
        # Reflection knows a step by its signature: any predictor of the program with an equal one will do.
        like = path or next((name for name, one in predictors if one.signature.equals(caller.signature)), "")
        steps.append(
            {
                "caller": path,
                "like": like,
                "signature": None if like else _signature(caller.signature),
                "inputs": encode_checked(dict(inputs)),
                "outputs": encode_checked(outputs),
            }
        )
    return _dump(
        {
            "score": rollout.score,
            "feedback": rollout.feedback,
            "objectives": dict(rollout.objective_scores),
            "error": rollout.error,
            "failed_in": rollout.failed_in,
            "seconds": rollout.seconds,
            "prediction": encode_checked(rollout.prediction),
            "metric_output": encode_checked(rollout.metric_output),
            "callers": list(rollout.callers),
            "prompt_hash": rollout.prompt_hash,
            "trace": steps,
        }
    )


def read_rollout(text: str, example_id: str, example: dspy.Example, program: dspy.Module) -> Rollout:
    """Return the rollout that :func:`write_rollout` wrote.

    Args:
        text: JSON, checked here: it may come from anyone who can write the file.
        example_id: The example's row hash.
        example: The example it was run on.
        program: Its predictors stand in the trace.

    Raises:
        NotStorableError: It is no rollout, or not one of this program.
    """
    data = _load(text)
    try:
        predictors = dict(program.named_predictors())
        trace = tuple(
            (
                predictors[step["like"]] if step["like"] else dspy.Predict(_remake(step["signature"])),
                _mapping(decode(step["inputs"])),
                decode(step["outputs"]),
            )
            for step in data["trace"]
        )
        if data["failed_in"] not in _FAULTS:
            raise NotStorableError(f"{data['failed_in']!r} is no fault of a program or a metric")
        return Rollout(
            example_id,
            example,
            decode(data["prediction"]),
            trace,
            _finite(data["score"]),
            feedback=str(data["feedback"]),
            objective_scores={str(name): _finite(score) for name, score in data["objectives"].items()},
            error=None if data["error"] is None else str(data["error"]),
            failed_in=data["failed_in"],
            metric_output=decode(data["metric_output"]),
            seconds=_finite(data["seconds"]),
            callers=tuple(str(path) for path in data["callers"]),
            # It made no call in this run.
            usage=(),
            prompt_hash=str(data["prompt_hash"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NotStorableError(f"no rollout of this program: {type(error).__name__}: {error}") from error


def write_prediction(prediction: dspy.Prediction) -> str:
    """Return the answer of one LM call as JSON text.

    Raises:
        NotStorableError: It holds a value that would not come back as it was.
    """
    return _dump({"prediction": encode_checked(prediction)})


def read_prediction(text: str) -> dspy.Prediction:
    """Return the answer that :func:`write_prediction` wrote.

    Raises:
        NotStorableError: It is none.
    """
    found = decode(_load(text).get("prediction"))
    if not isinstance(found, dspy.Prediction):
        raise NotStorableError("no prediction")
    return found


def _dump(data: Mapping[str, Any]) -> str:
    try:
        return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise NotStorableError(str(error)) from error


def _load(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise NotStorableError(f"no JSON: {error}") from error
    return _mapping(found)


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise NotStorableError(f"a {type(value).__name__} where a mapping is needed")
    return value


def _finite(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise NotStorableError(f"{value!r} is no finite number")
    return float(value)


def _signature(signature: Any) -> dict[str, Any]:
    fields = [[name, name in signature.input_fields] for name in signature.fields]
    return {"instructions": str(signature.instructions), "fields": fields}


def _remake(data: Any) -> Any:
    """Return a signature to be looked at: the names and instructions of the step's own, values as text."""
    fields = {
        str(name): (str, dspy.InputField() if given else dspy.OutputField())
        for name, given in data["fields"]
        if str(name).isidentifier()
    }
    return dspy.Signature(fields, str(data["instructions"]))
