"""What a search works on: rows and candidates, known by their content, and the whole task."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import dspy

from combee_dspy._private import AUTO_CANDIDATES, GEPA_MINIBATCH, auto_budget, flex_sources
from combee_dspy.costs import Tariff
from combee_dspy.evaluation import Heldout
from combee_dspy.events import CandidateProposed
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.hashing import row_hash
from combee_dspy.journal import Cache, Journal
from combee_dspy.json_texts import sound
from combee_dspy.operators import visible
from combee_dspy.rollouts import Slots, note_classes
from combee_dspy.settings import Settings
from combee_dspy.stopping import Limits
from combee_dspy.streams import derive
from combee_dspy.traces import Recording, Selected, Selection

# Updates of a trunk beyond its staleness whose validations may be under way while others begin; 1
# at least, since an update that has only proposed is released already.
_TRUNK_LAG = 2
# What a budget in rollouts pays at least: the student's validation, the last text's, and twice as
# much to learn from. Fewer rows than eight compare nothing.
LEAST_VALIDATIONS, _FEWEST_ROWS = 4, 8


Split = Literal["train", "validation", "heldout"]

CALLS, ROLLOUTS, VALIDATION = 0, 1, 2
"""Lanes, the most urgent first: what many rollouts wait for goes before what few wait for."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program's texts by component.

    Attributes:
        texts: Not to be changed. What a model wrote with half a character in it is mended: no
            program can hold it.
        id: Content hash, 16 hex digits: the same for the same texts.
    """

    texts: Mapping[str, str]
    id: str = field(init=False, compare=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "texts", {name: sound(text) for name, text in self.texts.items()})
        canonical = json.dumps(
            dict(self.texts), sort_keys=True, ensure_ascii=False, separators=(",", ":")
        )
        digest = hashlib.sha256(canonical.encode()).hexdigest()[:16]
        object.__setattr__(self, "id", digest)

    def __hash__(self) -> int:
        return hash(self.id)

    def edited(self, texts: Mapping[str, str]) -> Candidate:
        """Return this candidate with some components replaced."""
        return Candidate({**self.texts, **texts})

    def proposed(
        self, parents: tuple[str, ...], operator: str, components: tuple[str, ...] = ()
    ) -> CandidateProposed:
        """Return the event that this candidate was proposed, with the ids of its parents."""
        return CandidateProposed(self.id, self.texts, parents, operator, components)


@dataclass(frozen=True, slots=True)
class Row:
    """One example of a split, not to be changed.

    Attributes:
        index: Its position there, which is gepa's id of it.
        hash: SHA-256 of its content.
        recorded: What answers for its rollout, where that happened elsewhere.
    """

    split: Split
    index: int
    example: dspy.Example
    hash: str
    recorded: Recording | None = None

    def check_unchanged(self) -> None:
        """Refuse an example that a metric or a program has changed: it would be another row.

        Raises:
            ArgumentValueError: It is not what it was.
        """
        if row_hash(self.example) != self.hash:
            name = f"{self.split}[{self.index}]"
            remedy = "Let the metric and the program copy what they change."
            problem = "or the program changes an example"
            raise ArgumentValueError("metric", name, problem, remedy)

    def rollout_key(self, candidate: Candidate, replicate: int) -> str:
        """Return the key of a candidate's rollout: the same in every split and update."""
        return f"rollout/{candidate.id}/{self.hash[:16]}/{replicate}"

    @property
    def fields(self) -> Mapping[str, Any]:
        """Its values by name, inputs and labels."""
        return dict(self.example.items())


Scores = Mapping[int, float]
"""Score by position in the validation set."""


def paired(before: Scores, after: Scores) -> tuple[list[float], list[float]]:
    """Return both scores of the rows that two texts have in common, in their order."""
    rows = sorted(before.keys() & after.keys())
    return [before[row] for row in rows], [after[row] for row in rows]


@dataclass(frozen=True, slots=True)
class Member:
    """A validated candidate.

    Attributes:
        index: Its position in the pool, and in gepa's state.
        parents: Positions of its parents; empty for the seed.
        step: The update that made it; −1 for the seed.
    """

    index: int
    candidate: Candidate
    parents: tuple[int, ...]
    step: int
    scores: Scores

    @property
    def mean(self) -> float:
        """Mean validation score; NaN where nothing was validated."""
        return math.fsum(self.scores.values()) / len(self.scores) if self.scores else math.nan


@dataclass(frozen=True, slots=True)
class TraceRows:
    """The traces that a run learns from, and what became of the others.

    Attributes:
        rows: The chosen ones, in the order in which they are read.
        selection: How they were chosen.
        selected: Those, and why others were not chosen.
        seen: How many the source held.
        shared: Traces that were left out since valset or heldout has their inputs.
        unmatched: Traces that were left out since they call no predictor.
        foreign: Chosen ones that another prompt or model answered: they teach, and are compared
            with nothing.
        nameless: Chosen ones of which nobody knows who answered.
    """

    rows: tuple[Row, ...]
    selection: Selection
    selected: Selected
    seen: int = 0
    shared: int = 0
    unmatched: int = 0
    foreign: int = 0
    nameless: int = 0

    def __str__(self) -> str:
        """Describe them in a sentence."""
        share = f"{self.foreign / max(1, len(self.rows)):.0%}"
        counts = {
            "have inputs of valset or heldout": self.shared,
            "call no predictor": self.unmatched,
            f"({share} of those read) were answered by another prompt or model": self.foreign,
            "do not say who answered": self.nameless,
        }
        parts = [f"{count} {what}" for what, count in counts.items() if count]
        return ", ".join([str(self.selected), *parts])


@dataclass(frozen=True, slots=True)
class Splits:
    """The data of a run, checked and pinned by row hashes.

    Attributes:
        train: What is learned from by running it; empty where all is learned from traces.
        validation: What candidates are compared on; the train rows where the user gave none.
        heldout: What is read once at the end; may be empty.
        digests: SHA-256 per split, over its row hashes in their order.
        full_eval: Rows of what GEPA counts as one: those to train on, and those to validate on
            where any were given.
        warnings: What makes the run unfit for claims, in sentences.
        traces: What is learned from before, without running it; ``None`` for nothing.
    """

    train: tuple[Row, ...]
    validation: tuple[Row, ...]
    heldout: tuple[Row, ...]
    digests: Mapping[str, str]
    full_eval: int
    warnings: tuple[str, ...] = ()
    traces: TraceRows | None = None

    @property
    def learned(self) -> tuple[Row, ...]:
        """All that is learned from."""
        return (*self.train, *(self.traces.rows if self.traces else ()))


@dataclass(frozen=True, slots=True)
class EffectPlace:
    """What an effect is for; see :class:`combee_dspy.journal.Effect`."""

    purpose: str
    step: int = -1
    component: str = ""


@dataclass(frozen=True, slots=True)
class SharedParts:
    """What several searches may share.

    Attributes:
        cache: Rollouts shared with other runs.
        workers: Effects in flight at most.
        on_limit: Called with a new limit of the slots and the reason; each search adds its own.
    """

    journal: Journal
    slots: Slots
    tariff: Tariff
    cache: Cache | None
    workers: int
    on_limit: list[Callable[[int, str], None]]


@dataclass(frozen=True)
class Compilation:
    """What one compilation works on, and what follows from it.

    Attributes:
        settings: What the run is asked to do; ``keep`` is final.
        heldout: The held-out set as the user gave it; ``None`` for none.
        name: The run's name in its journal.
        number: Tells the search apart from others that share the slots.
    """

    settings: Settings
    student: dspy.Module
    splits: Splits
    heldout: Heldout | None
    name: str = "main"
    number: int = 0

    def __post_init__(self) -> None:
        note_classes(self.student)

    @cached_property
    def seed(self) -> Candidate:
        """The candidate that is the student itself."""
        return Candidate(self.settings.artifact.seed(self.student))

    @cached_property
    def components(self) -> tuple[str, ...]:
        """The components that an update may be about."""
        return visible(self.seed.texts)

    @cached_property
    def code(self) -> frozenset[str]:
        """Components that are the source code of a ``dspy.Flex``."""
        return frozenset(flex_sources(self.student))

    @property
    def edits_instructions(self) -> bool:
        """Whether operators or proposers edit texts; otherwise the artifact serves lessons."""
        return self.settings.edits_instructions

    @property
    def proposes_itself(self) -> bool:
        """Whether a proposer of GEPA's kind replaces aggregator and operators."""
        return self.settings.instruction_proposer is not None or bool(self.code)

    @property
    def is_trunk(self) -> bool:
        """Whether all lessons join one text."""
        return self.settings.keep == "trunk"

    @property
    def is_serial(self) -> bool:
        """Whether updates go one after another behind the student's validation, as in GEPA."""
        return bool(self.settings.in_gepas_order)

    @property
    def children(self) -> int:
        """Children of an update; 0 where one text grows."""
        if self.is_trunk:
            return 0
        if self.proposes_itself:
            return 1
        return self.settings.search.children or len(self.settings.operators)

    @property
    def behind(self) -> int:
        """Update i knows of the validations of updates up to i − behind, and of no later one."""
        lag = _TRUNK_LAG if self.is_trunk else 0
        return 1 + self.settings.staleness + lag

    @property
    def takes_turns(self) -> bool:
        """Whether each update of a trunk edits one component, and the next update another."""
        return self.edits_instructions and self.settings.component_selector != "all"

    def texts_known(self, step: int) -> int:
        """Return how many updates of a trunk have made the text that update ``step`` runs.

        The first update of each component knows those of the components before it, whatever the
        staleness: else it would learn from inputs that nothing has mended yet.
        """
        first_round = len(self.components) - 1 if self.takes_turns else 0
        return max(step - self.settings.staleness, min(step, first_round))

    def draw_validation(self, count: int | None) -> tuple[Row, ...]:
        """Return the validation rows that candidates are compared on, in the order of their draw.

        A trunk whose budget in rollouts is below four validations takes as many as it pays four
        times: else it would buy the student's and learn next to nothing, or compare nothing.

        Args:
            count: How many an earlier part of the run has drawn; ``None`` for the first.
        """
        rows, limit = self.splits.validation, self.limits.rollouts
        if count is None and limit is not None and self.is_trunk:
            draws = self.settings.validation.draws
            count = max(limit // (LEAST_VALIDATIONS * draws), _FEWEST_ROWS)
        if count is None or count >= len(rows):
            return rows
        drawn = list(rows)
        derive(self.settings.seed, "validation").shuffle(drawn)
        return tuple(drawn[:count])

    @cached_property
    def limits(self) -> Limits:
        """The hard limits of the run: the user's, and what GEPA's names for budgets come to."""
        settings, splits = self.settings, self.splits
        limits = Limits() if settings.budget is None else settings.budget.limits()
        rollouts = settings.max_metric_calls
        if settings.auto is not None:
            components = max(len(settings.artifact.components(self.student)), 1)
            rollouts = auto_budget(
                components, AUTO_CANDIDATES[settings.auto], len(splits.validation)
            )
        elif settings.max_full_evals is not None:
            rollouts = self._full_evaluations(settings.max_full_evals * splits.full_eval)
        limits = limits | Limits(rollouts=rollouts)
        if limits == Limits() and not (self.edits_instructions and splits.validation):
            # A playbook reads its trainset once by default; so does a run that
            # learns from traces alone and compares nothing.
            limits = Limits(epochs=1.0)
        return limits

    def _full_evaluations(self, rollouts: int) -> int:
        """Return passes in rollouts; where they end in the first update, enough to carry it out.

        ``dspy.GEPA`` looks at its budget between iterations, and so carries out the one that it
        ends in.
        """
        validation = len(self.splits.validation) * self.settings.validation.draws
        if rollouts <= validation:
            return rollouts
        size = self.settings.reflection_minibatch_size or GEPA_MINIBATCH
        minibatch = min(size, len(self.splits.train))
        return max(rollouts, 2 * (validation + minibatch))
