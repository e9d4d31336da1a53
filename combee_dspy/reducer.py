"""The reducer alone, for those who stay on ``dspy.GEPA``, ``gepa.optimize`` or
``gepa.optimize_anything``.

::

    dspy.GEPA(metric=metric, reflection_lm=lm, instruction_proposer=CombeeProposer(), …)
    gepa.optimize(adapter=adapter, reflection_strategy=CombeeReflection(lm), …)
    optimize_anything(…,
    config=GEPAConfig(reflection=ReflectionConfig(reflection_strategy=CombeeReflection(lm))))

All replace the one call that reads a whole minibatch by an aggregator: ``union``, a map and a join
by code, or any other by its name. Give the optimizer a larger minibatch
(``reflection_minibatch_size=40``): with its default of 3 there is nothing to divide.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import dspy

from combee_dspy import registry
from combee_dspy.aggregators import Aggregator
from combee_dspy.events import Event, WarningRaised
from combee_dspy.exceptions import ArgumentError, ArgumentTypeError, ArgumentValueError
from combee_dspy.hashing import canonical_json
from combee_dspy.lms import adapter_for
from combee_dspy.operators import Operator, OperatorInput
from combee_dspy.options import positive
from combee_dspy.records import Edit, FailedCall, Lessons, Reflection, Refusal, Role
from combee_dspy.rollouts import CallJob, Slots, open_slots
from combee_dspy.search import in_own_loop
from combee_dspy.strategies import StrategyContext

if TYPE_CHECKING:
    from gepa.proposer.reflective_mutation.reflection_lm import ReflectionProposal

__all__ = ["CombeeProposer", "CombeeReflection"]

_logger = logging.getLogger("combee_dspy")

Records: TypeAlias = Sequence[Mapping[str, Any]]
ReflectiveDataset: TypeAlias = Mapping[str, Records]
Job: TypeAlias = tuple[dict[str, str], ReflectiveDataset, list[str]]
Results: TypeAlias = dict[str, str | Refusal]
"""The new text of each component, or why it keeps its own."""


class _Reducer:
    """Aggregator, operator and how many calls may be in flight. Holds no state between calls."""

    def __init__(
        self,
        aggregator: str | Aggregator = "union",
        operator: str | Operator = "insert",
        seed: int = 0,
        num_threads: int | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        self._aggregator = cast("Aggregator", registry.resolve("aggregator", aggregator))
        self._operator = cast("Operator", registry.resolve("operator", operator))
        if self._operator.edits_demonstrations or self._operator.edits_fields:
            problem = "edits more than instructions, which is all this host can carry"
            remedy = (
                "Use combee_dspy.Combee, whose candidates hold the rest too, or operator='insert'."
            )
            raise ArgumentValueError("operator", operator, problem, remedy)
        positive("num_threads", num_threads)
        self._seed, self._num_threads, self._adapter = seed, num_threads, adapter

    def _reduce(self, jobs: Sequence[Job], lm: dspy.BaseLM | None) -> list[Results]:
        """Reduce every component of every job at the same time; return the results by job."""

        async def reduce_job(job: Job, slots: Slots) -> Results:
            candidate, dataset, components = job
            names = [name for name in components if name in candidate and dataset.get(name)]
            contexts = [
                self._context(name, candidate[name], dataset[name], slots, lm) for name in names
            ]
            texts = map(self._new_text, contexts, map(dataset.__getitem__, names))
            return dict(zip(names, await asyncio.gather(*texts), strict=True))

        async def reduce_all() -> list[Results]:
            async with open_slots(self._num_threads) as slots:
                return await asyncio.gather(*(reduce_job(job, slots) for job in jobs))

        return in_own_loop(reduce_all)

    def _context(
        self, component: str, text: str, records: Records, slots: Slots, lm: dspy.BaseLM | None
    ) -> StrategyContext:
        adapter = self._adapter or adapter_for(lm)

        async def call(
            signature: type[dspy.Signature],
            inputs: Mapping[str, object],
            place: tuple[str | int, ...],
            role: Role,
        ) -> dspy.Prediction | FailedCall:
            return (await slots.call(CallJob(signature, inputs, lm, adapter, role), (0,))).outcome

        def emit(event: Event) -> None:
            if isinstance(event, WarningRaised):
                _logger.warning("%s: %s", component, event.text)

        # A host's iteration is not known here. Its material tells one use from another.
        place = (canonical_json([text, list(records)]),)
        joins = self._operator.joins_lessons
        return StrategyContext(
            component, text, call, emit, seed=self._seed, place=place, joined_later=joins
        )

    async def _new_text(self, context: StrategyContext, records: Records) -> str | Refusal:
        try:
            edit = await self._edit(context, records)
        except ArgumentError:
            raise  # the set-up is wrong: every other component would fail alike
        except Exception as error:  # noqa: BLE001 - logged with its reason; the other components go on
            edit = Refusal(f"{type(error).__name__}: {error}")
        if isinstance(edit, Edit):
            return context.text if edit.instruction is None else edit.instruction
        _logger.warning("%s keeps its text: %s", context.component, edit.reason)
        return edit

    async def _edit(self, context: StrategyContext, records: Records) -> Edit | Refusal:
        async def ready(reflection: Reflection) -> Reflection | None:
            return reflection

        lessons = Lessons(context.component)
        if self._operator.needs_lessons:
            reflections = [
                asyncio.ensure_future(ready(Reflection(index, record)))
                for index, record in enumerate(records)
            ]
            lessons = await self._aggregator.aggregate(reflections, context)
        material = OperatorInput(context.text, (), None, lessons)
        return await self._operator.apply(material, context.at("operator"))


class CombeeProposer(_Reducer):
    """An instruction proposer for ``dspy.GEPA(instruction_proposer=…)``.

    Uses the reflection LM that ``dspy.GEPA`` sets while it proposes. Thread-safe.
    Note that ``dspy.GEPA`` turns values into strings for any proposer but its
    own, DSPy types such as images excepted.

    Args:
        aggregator: Name or object.
        operator: Name or object; it must edit instructions.
        seed: Where chance comes from: the same seed, text and records give the same plan.
        num_threads: LM calls in flight at once; ``None`` for as many as the service takes.
        adapter: For the proposer's calls; ``None`` for the one in DSPy's settings, else its
            default.

    Raises:
        ArgumentTypeError: ``aggregator`` or ``operator`` is of another kind.
        ArgumentValueError: A name is unknown, the operator edits demonstrations, or ``num_threads``
            is below 1.
    """

    def __call__(
        self,
        candidate: dict[str, str],
        reflective_dataset: ReflectiveDataset,
        components_to_update: list[str],
    ) -> dict[str, str]:
        """Return the new text of every component that could be improved.

        The others are left out, with a log line.
        """
        (results,) = self._reduce([(candidate, reflective_dataset, components_to_update)], None)
        return {name: text for name, text in results.items() if isinstance(text, str)}


class CombeeReflection(_Reducer):
    """A ``reflection_strategy`` for ``gepa.optimize`` and ``gepa.optimize_anything``.

    Thread-safe and stateless.

    Args:
        lm: A ``dspy.LM`` or a model's name.
        aggregator: As for :class:`CombeeProposer`.
        operator: As for :class:`CombeeProposer`.
        seed: As for :class:`CombeeProposer`.
        num_threads: LM calls in flight at once, over all jobs and components; ``None`` for as many
            as the service takes.
        adapter: As for :class:`CombeeProposer`.

    Raises:
        ArgumentTypeError: ``lm`` is neither, or a strategy is of another kind.
        ArgumentValueError: As for :class:`CombeeProposer`.
    """

    def __init__(
        self,
        lm: str | dspy.BaseLM,
        aggregator: str | Aggregator = "union",
        operator: str | Operator = "insert",
        seed: int = 0,
        num_threads: int | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        if not isinstance(lm, (str, dspy.BaseLM)):
            raise ArgumentTypeError("lm", lm, "is no LM", "Give a dspy.LM or a model's name.")
        super().__init__(aggregator, operator, seed, num_threads, adapter)
        self._lm = dspy.LM(lm) if isinstance(lm, str) else lm

    def reflect(
        self,
        candidate: dict[str, str],
        reflective_dataset: ReflectiveDataset,
        components_to_update: list[str],
    ) -> tuple[ReflectionProposal, CombeeReflection]:
        """Return a ``ReflectionProposal`` for one job: a batch of one."""
        return self.reflect_many([(candidate, reflective_dataset, components_to_update)])[0]

    def reflect_many(self, jobs: list[Job]) -> list[tuple[ReflectionProposal, CombeeReflection]]:
        """Return one ``ReflectionProposal`` a job; all are made at the same time.

        A component that fails or teaches nothing is left out of its proposal. The reason is logged
        and is in the proposal's ``metadata``.
        """
        return [(_to_proposal(results), self) for results in self._reduce(jobs, self._lm)]


def _to_proposal(results: Results) -> ReflectionProposal:
    from gepa.proposer.reflective_mutation.reflection_lm import ReflectionProposal

    proposal = ReflectionProposal(new_texts={}, metadata={})
    for name, result in results.items():
        if isinstance(result, Refusal):
            proposal.metadata[f"combee:refused:{name}"] = result.reason
        else:
            proposal.new_texts[name] = result
    return proposal
