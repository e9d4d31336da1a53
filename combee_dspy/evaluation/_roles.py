"""Who judges: roles that stay apart."""

from __future__ import annotations

from typing import Any

from combee_dspy.costs import Totals
from combee_dspy.exceptions import ArgumentValueError

__all__ = ["check_roles", "check_roles_heard", "evaluator_lms", "same_model"]

_REMEDY = (
    "Give the judge another LM than reflection_lm, or calibration=Calibration(reference=…) with a metric that is "
    "trusted: code, or a judge with another LM."
)


def same_model(first: Any, second: Any) -> bool:
    """Return whether two LMs are one model.

    They are where they are one object, or where their names agree but for case
    and provider: ``openai/gpt-5`` and ``openrouter/openai/GPT-5`` are one model,
    and a copy with another temperature is too. Two services that give different
    models one name count as one: rename one of them, or calibrate.

    Args:
        first: An LM, or a model's name; ``None`` is no model.
        second: Another.
    """
    names = _name(first), _name(second)
    if first is not None and first is second:
        return True
    return bool(names[0]) and names[0] == names[1]


def _name(lm: Any) -> str:
    name = lm if isinstance(lm, str) else getattr(lm, "model", "")
    return str(name or "").strip().rsplit("/", 1)[-1].lower()


def evaluator_lms(metric: Any, default: Any = None) -> tuple[Any, ...]:
    """Return the LMs that a metric says it judges with.

    Args:
        metric: A metric. One with an attribute ``lm`` judges with it; one that is a
            ``dspy.Module`` with those of its predictors. A function says nothing: see
            :func:`check_roles_heard`.
        default: What takes the place of an LM that is ``None``: DSPy's setting.
    """
    inner = getattr(metric, "judges", None)
    if callable(inner):
        return tuple(lm for part in inner() for lm in evaluator_lms(part, default))
    if hasattr(metric, "lm") and not hasattr(metric, "predictors"):
        found = [metric.lm]
    elif callable(getattr(metric, "predictors", None)):
        found = [predictor.lm for predictor in metric.predictors()]
    else:
        found = []
    return tuple(lm for lm in (default if one is None else one for one in found) if lm is not None)


def check_roles(metric: Any, proposer: Any, *, calibration: Any = None, default: Any = None) -> None:
    """Refuse a judge that is its own proposer, unless it is calibrated against another.

    Args:
        metric: The metric.
        proposer: The proposer's LM.
        calibration: A :class:`~combee_dspy.evaluation.Calibration`, or ``None``.
        default: DSPy's ``settings.lm``, which a judge or proposer without an LM of its own uses.

    Raises:
        ArgumentValueError: The judge's LM is the proposer's and nothing calibrates it, or the
            reference of the calibration is judged by the proposer's LM too.
    """
    proposer = default if proposer is None else proposer
    judged_by = [lm for lm in evaluator_lms(metric, default) if same_model(lm, proposer)]
    if judged_by and calibration is None:
        problem = "is judged by the model that proposes: it would be its own examiner"
        raise ArgumentValueError("metric", _name(judged_by[0]), problem, _REMEDY)
    if calibration is None:
        return
    for lm in evaluator_lms(calibration.reference, default):
        if same_model(lm, proposer):
            problem = "has a reference that is judged by the model that proposes"
            raise ArgumentValueError("calibration", _name(lm), problem, _REMEDY)


def check_roles_heard(totals: Totals, proposer: Any) -> None:
    """Refuse a metric that has been heard to judge with the proposer's model.

    A function does not say which LM it calls; the ledger has heard it. To be
    asked between iterations where no calibration runs.

    Args:
        totals: The ledger's totals.
        proposer: The proposer's LM, or its name.

    Raises:
        ArgumentValueError: A call in the role ``evaluator`` went to the proposer's model.
    """
    for role, model in totals.by_model:
        if role == "evaluator" and same_model(model, proposer):
            problem = "has called the model that proposes: it would be its own examiner"
            raise ArgumentValueError("metric", model, problem, _REMEDY)
