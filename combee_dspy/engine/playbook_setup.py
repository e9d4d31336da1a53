"""What a playbook run and a served stream have in common: checks, order, wiring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import dspy

from combee_dspy.artifacts import PlaybookArtifact, Sharding
from combee_dspy.diversity import Diversity
from combee_dspy.engine._private import flex_sources
from combee_dspy.engine.evaluator import Evaluator
from combee_dspy.engine.judging import Judging
from combee_dspy.engine.playbook_learning import PlaybookLearner
from combee_dspy.engine.playbook_outages import Outages
from combee_dspy.engine.playbook_program import PlaybookProgram
from combee_dspy.engine.sampling import EpochStream
from combee_dspy.engine.services import Services
from combee_dspy.engine.settings import Settings
from combee_dspy.engine.state import RunState
from combee_dspy.events import Event
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.guards import Guards
from combee_dspy.operators import Insert

__all__ = ["Draw", "Wired", "check_playbook_settings", "drawing", "wired"]

# What Combee takes where nobody says anything else, of what a playbook's loop does not read.
_DEFAULTS: Mapping[str, Any] = {
    "operators": (Insert(),),
    "children": None,
    "guards": Guards(),
    "diversity": Diversity(),
    "screen": 8,
    "finalists": 3,
    "speculation": 0.1,
    "lesson_ledger": True,
    "candidate_selection_strategy": "pareto",
    "component_selector": "round_robin",
    # Without merges a playbook does what it says: use_merge=False is kept.
    "max_merge_invocations": 5,
}

Draw = Callable[[int, int], tuple[tuple[int, ...], int]]
"""From a cursor and a count to positions and the cursor after them."""


@dataclass(frozen=True, slots=True)
class Wired:
    """The working parts of one run.

    Attributes:
        evaluator: Buys rollouts.
        learner: Makes steps.
    """

    evaluator: Evaluator
    learner: PlaybookLearner


def wired(  # noqa: PLR0913 - one wiring point
    settings: Settings,
    program: PlaybookProgram,
    services: Services,
    state: RunState,
    judging: Judging,
    keep_traces: frozenset[str],
    emit: Callable[[Event], None] | None = None,
    *,
    outages: Outages | None = None,
) -> Wired:
    """Wire what makes the steps of a run.

    Args:
        settings: The run's settings.
        program: The student and the artifact.
        services: What lives as long as the run.
        state: The run's state.
        judging: Who scores.
        keep_traces: Row hashes whose rollouts are reflected on.
        emit: Where rollouts are told; the run's bus by default.
        outages: What failed before; nothing by default.

    Raises:
        ArgumentValueError: The aggregator cannot be used with a playbook.
    """
    evaluator = Evaluator(
        program.build,
        judging.metric,
        settings.failure_score,
        services.session,
        judging.listening(emit or services.bus.emit, services.ledger.snapshot),
        memoize=settings.memoize,
        cache=services.cache,
        keep_traces=keep_traces,
        look=services.bus.raise_ending,
    )
    learner = PlaybookLearner(
        program,
        Sharding.of(settings.aggregator),
        evaluator,
        services.session,
        services.port.predict,
        services.bus.emit,
        state,
        seed=settings.seed,
        perfect_score=settings.perfect_score,
        observe=judging.observe,
        outages=outages,
    )
    return Wired(evaluator, learner)


def drawing(artifact: PlaybookArtifact, size: int, seed: int) -> Draw:
    """Return what draws the next examples: shuffled epochs, or the order of a stream.

    Args:
        artifact: Says which.
        size: Training examples.
        seed: The run's seed.
    """
    if artifact.mode == "offline":
        return EpochStream(size, seed).draw

    def draw(cursor: int, count: int) -> tuple[tuple[int, ...], int]:
        drawn = tuple(range(cursor, min(cursor + count, size)))
        return drawn, cursor + len(drawn)

    return draw


def check_playbook_settings(settings: Settings, student: dspy.Module) -> None:
    """Refuse what a playbook run would silently ignore.

    Raises:
        ArgumentValueError: One of these is set, or the student has ``dspy.Flex`` parts.
    """
    if flex_sources(student):
        raise ArgumentValueError("student", student, "has dspy.Flex parts", "A playbook edits no code.")
    Sharding.of(settings.aggregator)
    stale = getattr(getattr(settings, "artifact", None), "staleness", 0)
    if stale and (settings.ceiling is not None or settings.calibration is not None):
        problem = "overlaps minibatches, and calibration and ceiling decide while nothing is in flight"
        raise ArgumentValueError("staleness", stale, problem, "Give 0, or leave calibration and ceiling out.")
    if settings.staleness:
        remedy = "Give artifact=PlaybookArtifact(staleness=1) instead, which predicts one minibatch ahead."
        raise ArgumentValueError("staleness", settings.staleness, "of Combee does nothing for a playbook", remedy)
    remedy = 'Leave it out, or learn instructions: artifact="instruction".'
    unused: dict[str, Any] = {
        "instruction_proposer": settings.custom_instruction_proposer,
        "code_proposer": settings.custom_code_proposer,
        "anchors": settings.anchors or None,
        "fallback": settings.fallback,
        "rescue": settings.rescue or None,
        "gepa_kwargs": settings.gepa_kwargs or None,
    }
    unused |= {name: value for name, default in _DEFAULTS.items() if (value := getattr(settings, name)) != default}
    for name, value in unused.items():
        if value is not None:
            raise ArgumentValueError(name, value, "does nothing for a playbook", remedy)
