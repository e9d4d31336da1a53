"""Which of the two ways to keep what was learned a run's settings ask for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from combee_dspy.artifacts import Instruction
from combee_dspy.diversity import Diversity
from combee_dspy.options import Search, Validation
from combee_dspy.search._gepa import ONLY_PARETO

__all__ = ["keeps", "of_no_use_to_a_trunk"]

_MERGES = 5  # GEPA's default


def keeps(settings: Any) -> Literal["pareto", "trunk"]:
    """Return what the settings of a run, a teleprompter, ask for.

    One text grows by default. Where something is set that only GEPA's search can use, that search
    goes on as before.
    """
    chosen: Literal["pareto", "trunk"] | None = settings.search.keep
    if chosen is not None:
        return chosen
    if not isinstance(settings.artifact, Instruction):
        return "trunk"
    return "pareto" if of_no_use_to_a_trunk(settings) or _compares_candidates(settings) else "trunk"


def of_no_use_to_a_trunk(settings: Any) -> str:
    """Return the first argument that a trunk, which has one text and nothing to choose from, would
    ignore.
    """
    is_set = {
        "guards.anchors": bool(settings.guards.anchors),
        "instruction_proposer": settings.custom_instruction_proposer is not None,
        "candidate_selection_strategy": settings.candidate_selection_strategy != "pareto",
        "component_selector": not isinstance(settings.component_selector, str),
        **{f"gepa_kwargs[{name!r}]": name in settings.gepa_kwargs for name in ONLY_PARETO},
    }
    return next((name for name, there in is_set.items() if there), "")


def _compares_candidates(settings: Any) -> bool:
    """Return whether operators edit more than lessons, or an option is about gepa's parts, children
    or finalists.

    A trunk runs any operator, but each after the other and unscreened: such edits are better
    compared.
    """
    search = settings.search
    return (
        bool(settings.gepa_kwargs)  # stoppers, too, count by gepa's iterations
        or not all(operator.serves_book for operator in settings.operators)
        or search.children is not None
        or search.screen != Search().screen
        or settings.validation.finalists != Validation().finalists
        or settings.diversity.restart is not None
        or _sets_likeness(settings.diversity)
        or settings.max_merge_invocations != _MERGES
    )


def _sets_likeness(diversity: Diversity) -> bool:
    """Return whether somebody chose how alike candidates may be; one text is compared with none."""
    usual = replace(Diversity(), temperature=diversity.temperature, restart=diversity.restart)
    return diversity.embedder is not None and diversity != usual
