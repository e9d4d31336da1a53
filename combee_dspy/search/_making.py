"""The keeper of a run, wired by its settings."""

from __future__ import annotations

from dataclasses import dataclass

from combee_dspy._private import make_adapter
from combee_dspy.guards import check_program
from combee_dspy.operators import decode_fields
from combee_dspy.records import fields_key
from combee_dspy.search._books import Books, Serving
from combee_dspy.search._candidates import Compilation
from combee_dspy.search._custom import CustomProposer
from combee_dspy.search._effects import Effects
from combee_dspy.search._gepa import Gepa
from combee_dspy.search._growing import Growing
from combee_dspy.search._pareto import Pareto
from combee_dspy.search._pool import Pool
from combee_dspy.search._propose import Proposer
from combee_dspy.search._proving import Proving
from combee_dspy.search._telling import Telling
from combee_dspy.search._update import Learner

__all__ = ["Parts", "make_keeper"]


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """What a keeper is made of."""

    task: Compilation
    effects: Effects
    pool: Pool
    gepa: Gepa
    books: Books
    learner: Learner


def make_keeper(parts: Parts) -> Growing | Pareto:
    """Return what keeps what a run learns."""
    return _make_growing(parts) if parts.task.is_trunk else _make_pareto(parts)


def _make_growing(parts: Parts) -> Growing:
    task, settings, names = parts.task, parts.task.settings, parts.task.components
    at_once = settings.component_selector == "all" or not task.edits_instructions
    proposer = _make_proposer(parts) if task.edits_instructions else Serving(parts.books)

    def components(step: int) -> tuple[str, ...]:
        return names if at_once else (names[step % len(names)],)

    proving = Proving(
        parts.effects, parts.pool, parts.books, settings.perfect_score, proposer.allows
    )
    return Growing(
        parts.effects,
        parts.pool,
        parts.books,
        proposer,
        proving,
        seed=task.seed,
        components=components,
        staleness=settings.staleness,
        skips_perfect=settings.skip_perfect_score,
    )


def _make_pareto(parts: Parts) -> Pareto:
    task, settings, effects = parts.task, parts.task.settings, parts.effects
    custom = None
    if task.proposes_itself:
        adapter = make_adapter(
            task.student,
            settings.metric,
            reflection_lm=settings.reflection_lm,
            custom_instruction_proposer=settings.instruction_proposer,
            custom_code_proposer=settings.code_proposer,
        )
        custom = CustomProposer(adapter, effects)
    return Pareto(
        effects,
        parts.pool,
        parts.gepa,
        _make_proposer(parts),
        custom=custom,
        seed=task.seed,
        telling=Telling(effects, parts.pool, parts.gepa, task.splits.train),
        selects=settings.component_selector,
        screen=settings.search.screen,
        anchors=frozenset(row.hash for row in task.anchors),
        run_seed=settings.seed,
        staleness=settings.staleness,
        is_serial=task.is_serial,
        restart=settings.diversity.restart,
    )


def _make_proposer(parts: Parts) -> Proposer:
    task, settings, texts = parts.task, parts.task.settings, parts.task.seed.texts
    described = {name: decode_fields(texts.get(fields_key(name), "")) for name in task.components}
    check_program(settings.guards, {name: texts[name] for name in described}, described)
    return Proposer(
        task.student,
        task.seed,
        settings.operators,
        settings.guards,
        settings.diversity,
        parts.learner,
        parts.effects.log.emit,
        run_seed=settings.seed,
        perfect_score=settings.perfect_score,
        books=parts.books,
    )
