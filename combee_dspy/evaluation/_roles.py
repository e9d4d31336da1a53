"""Who judges: roles that stay apart."""

from __future__ import annotations

import functools
import inspect
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
            ``dspy.Module`` with those of its predictors. A function judges with the LMs, and with those
            of the judges and modules, that it refers to by name; what it reaches otherwise, or under a
            ``dspy.context`` of its own, it does not say: see :func:`check_roles_heard`.
        default: What takes the place of an LM that is ``None``: DSPy's setting.
    """
    if isinstance(metric, functools.partial):
        given = (metric.func, *metric.args, *metric.keywords.values())
        return tuple(lm for one in given for lm in evaluator_lms(one, default))
    if inspect.ismethod(metric):
        metric = metric.__func__
    if inspect.isfunction(metric):
        # An LM of a module that is None may be set where the function calls it: only what is certain counts.
        return tuple(lm for one in _referred(metric) for lm in (_lms_of(one) if one is not metric else ()))
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


def _lms_of(found: object) -> tuple[Any, ...]:
    import dspy

    if isinstance(found, dspy.BaseLM):
        return (found,)
    if isinstance(found, type) or not (isinstance(found, dspy.Module) or hasattr(found, "criteria")):
        return ()
    return evaluator_lms(found)


def _referred(function: Any) -> tuple[object, ...]:
    """Return the values of the names that a function refers to, as far as they have any yet."""
    try:
        found = inspect.getclosurevars(function)
    except (TypeError, ValueError):
        return ()
    return (*found.nonlocals.values(), *found.globals.values())


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
