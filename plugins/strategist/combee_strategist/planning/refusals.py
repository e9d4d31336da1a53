"""What is not honest is refused: by what a search and a report are.

A proposer that judges itself, patience on the training score, and a held-out set that changed after
it was read are refused by :class:`~combee_dspy.Combee` itself; a promotion by
:func:`combee_strategist.canary.promote` alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dspy

from combee_dspy.arguments import check_wide
from combee_dspy.controllers import Static
from combee_dspy.evaluation import check_roles
from combee_dspy.exceptions import RefusedError
from combee_dspy.hashing import row_hash
from combee_dspy.search import check_verdict
from combee_dspy.stopping import require_validation
from combee_strategist.diagnosis import Diagnosis

if TYPE_CHECKING:
    from combee_dspy.combee import Combee
    from combee_dspy.report import CombeeReport

__all__ = ["check_converged", "check_headline", "check_search"]

_WORDS = 3

HOLD_OUT = "Compile with heldout=…, rows that nothing has learned from."


def check_converged(diagnosis: Diagnosis | None) -> None:
    """Refuse parallelism before convergence.

    Raises:
        RefusedError: There is no diagnosis, or it is no go.
    """
    remedy = (
        "Run combee diagnose on a serial search of this task."
        if diagnosis is None
        else diagnosis.advice
    )
    check_verdict(None if diagnosis is None else diagnosis.verdict, remedy)


def check_search(
    combee: Combee,
    *,
    trainset: Sequence[Any] = (),
    valset: Sequence[Any] | None = None,
    workers: int | None = None,
    reasons: Mapping[str, str] | None = None,
) -> None:
    """Refuse choices of a search that would spoil what is claimed of it.

    Args:
        combee: The optimizer, as it will compile.
        trainset: What it will learn from.
        valset: What it will compare candidates on.
        workers: Rollouts that the service takes; ``num_threads`` has been checked where the
            optimizer was made.
        reasons: Why ``"cache"`` is off, or the ``"controller"`` is static, where one of them is, in
            a few words.

    Raises:
        RefusedError: A wide search with diversity off, a cache that is off or a static batch
            without a reason, patience or a target on scores of the training examples.
        ArgumentValueError: The judge is the proposer, and nothing calibrates it.
    """
    reasoned = {
        name: why for name, why in (reasons or {}).items() if len({*why.lower().split()}) >= _WORDS
    }
    check_wide(workers, combee.settings.diversity)
    if combee.settings.cache is False and "cache" not in reasoned:
        reason = "the same rollout is bought twice, and cost per point counts it twice"
        raise RefusedError("a cache that is off without a reason", reason, _say("cache"))
    controller = combee.settings.controller
    if (
        isinstance(controller, Static)
        and "controller" not in reasoned
        and not _reasoned(controller)
    ):
        reason = "the size decides what a scan keeps and how long an update takes"
        raise RefusedError("a static batch without a reason", reason, _say("controller"))
    settings = combee.settings
    calibration = settings.validation.calibration
    check_roles(
        settings.metric,
        settings.reflection_lm,
        calibration=calibration,
        default=dspy.settings.lm,
    )
    if trainset:
        learned, compared = ({row_hash(row) for row in rows} for rows in (trainset, valset or ()))
        require_validation(settings.budget, learned=learned, compared=compared)


def _say(name: str) -> str:
    return f"Say why in a few words, in reasons[{name!r}] or the specification's overrides.{name}."


def _reasoned(controller: Static) -> bool:
    # The package's own words for a size that somebody gave say nothing of why.
    return (
        len({*controller.reason.lower().split()}) >= _WORDS and "was given" not in controller.reason
    )


def check_headline(report: CombeeReport) -> None:
    """Refuse a headline figure that this machine has not measured against anything.

    Args:
        report: Of the run that the headline is about; its ``per_point`` is the headline.

    Raises:
        RefusedError: There is no baseline, it was not measured here on the same held-out rows with
            the same models, or the run supports no claim.
    """
    if report.heldout is None:
        reason = "the run was compared on rows that it chose by, or learned from"
        raise RefusedError("a headline without held-out rows", reason, HOLD_OUT)
    if report.warnings:
        raise RefusedError(
            "a headline of a run that supports no claim",
            report.warnings[0].rstrip("."),
            "Mend that.",
        )
    remedy = (
        "Search serially on this hardware and split, and give its log_dir: Heldout(baseline=…)."
    )
    if report.per_point is None:
        raise RefusedError(
            "a headline without a baseline", "a gain is a gain over something", remedy
        )
    if report.per_point.versus is None:
        reason = "figures of a paper were measured elsewhere, with another model, service or split"
        raise RefusedError("a paper's number as a headline", reason, remedy)
