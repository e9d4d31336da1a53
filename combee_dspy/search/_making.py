"""The keeper of a run."""

from __future__ import annotations

from combee_dspy._private import make_adapter
from combee_dspy.search._books import ServedBooks
from combee_dspy.search._contexts import Contexts
from combee_dspy.search._custom import CustomProposer
from combee_dspy.search._gepa import GepaParts
from combee_dspy.search._growing import Growing
from combee_dspy.search._pareto import Pareto
from combee_dspy.search._propose import Proposer

__all__ = ["make_keeper"]


def make_keeper(contexts: Contexts, gepa: GepaParts) -> Growing | Pareto:
    """Return what keeps what a run learns."""
    task, effects, pool = contexts.task, contexts.effects, contexts.pool
    if task.is_trunk:
        proposer = Proposer(contexts) if task.edits_instructions else ServedBooks(contexts.books)
        return Growing(task, effects, pool, contexts.books, proposer)
    custom, settings = None, task.settings
    if task.proposes_itself:
        adapter = make_adapter(
            task.student,
            settings.metric,
            reflection_lm=settings.reflection_lm,
            custom_instruction_proposer=settings.instruction_proposer,
            custom_code_proposer=settings.code_proposer,
        )
        custom = CustomProposer(adapter, effects)
    return Pareto(task, effects, pool, gepa, Proposer(contexts), custom)
