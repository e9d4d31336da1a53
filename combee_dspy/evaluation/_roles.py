"""Who judges: roles that stay apart."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable
from typing import Any

import dspy

from combee_dspy.evaluation._calibration import Calibration
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import CallUsage

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
    return (first is not None and first is second) or (_name(first) == _name(second) != "")


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
        names = inspect.getclosurevars(metric)
        return tuple(lm for one in (*names.nonlocals.values(), *names.globals.values()) for lm in _referred(one))
    if isinstance(metric, dspy.Module):
        found = [predictor.lm for predictor in metric.predictors()]
    else:
        found = [metric.lm] if hasattr(metric, "lm") else []
    return tuple(lm for lm in (default if one is None else one for one in found) if lm is not None)


def _referred(value: object) -> tuple[Any, ...]:
    if isinstance(value, dspy.BaseLM):
        return (value,)
    # An LM that is None may be set where the function calls it: only what is certain counts.
    judges = isinstance(value, dspy.Module) or (hasattr(value, "criteria") and not isinstance(value, type))
    return evaluator_lms(value) if judges else ()


def check_roles(metric: Any, proposer: Any, *, calibration: Calibration | None = None, default: Any = None) -> None:
    """Refuse a judge that is its own proposer, unless it is calibrated against another.

    Args:
        metric: The metric.
        proposer: The proposer's LM.
        calibration: The calibration, or ``None``.
        default: DSPy's ``settings.lm``, which a judge or proposer without an LM of its own uses.

    Raises:
        ArgumentValueError: The judge's LM is the proposer's and nothing calibrates it, or the
            reference of the calibration is judged by the proposer's LM too.
    """
    proposer = default if proposer is None else proposer
    argument, judge = ("metric", metric) if calibration is None else ("calibration", calibration.reference)
    for lm in evaluator_lms(judge, default):
        if same_model(lm, proposer):
            who = "is" if calibration is None else "has a reference that is"
            problem = f"{who} judged by the model that proposes: it would be its own examiner"
            raise ArgumentValueError(argument, _name(lm), problem, _REMEDY)


def check_roles_heard(usage: Iterable[CallUsage], proposer: Any) -> None:
    """Refuse a metric that has been heard to judge with the proposer's model.

    A function does not say which LM it calls; the books have it. To be asked
    between updates where no calibration runs.

    Args:
        usage: What rollouts have used.
        proposer: The proposer's LM, or its name.

    Raises:
        ArgumentValueError: A call in the role ``evaluator`` went to the proposer's model.
    """
    for one in usage:
        if one.role == "evaluator" and same_model(one.model, proposer):
            problem = "has called the model that proposes: it would be its own examiner"
            raise ArgumentValueError("metric", one.model, problem, _REMEDY)
