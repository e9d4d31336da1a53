"""The reducer alone, for those who stay on ``dspy.GEPA``, ``gepa.optimize`` or
``gepa.optimize_anything``.

    dspy.GEPA(metric=metric, reflection_lm=lm, instruction_proposer=CombeeProposer(), …)
    gepa.optimize(adapter=adapter, reflection_strategy=CombeeReflection(lm), …)
    optimize_anything(…,
    config=GEPAConfig(reflection=ReflectionConfig(reflection_strategy=CombeeReflection(lm))))

All replace the one call that reads a whole minibatch by an aggregator: ``union``, a map and a join
by code, or ``parallel-scan`` where it is named. Give the optimizer a larger minibatch
(``reflection_minibatch_size=40``): with its default of 3 there is nothing to divide.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import dspy

from combee_dspy import registry
from combee_dspy.aggregators import Aggregator
from combee_dspy.events import Event, WarningRaised
from combee_dspy.exceptions import ArgumentError, ArgumentTypeError, ArgumentValueError
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

logger = logging.getLogger("combee_dspy")

Records = Sequence[Mapping[str, Any]]
ReflectiveDataset = Mapping[str, Records]
Job = tuple[dict[str, str], ReflectiveDataset, list[str]]


@dataclass(slots=True)
class _Outcome:
    """What one job returns."""

    texts: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)


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

    def _reduced(self, jobs: Sequence[Job], lm: dspy.BaseLM | None) -> list[_Outcome]:
        """Reduce every component of every job at the same time."""
        outcomes = [_Outcome() for _ in jobs]
        tasks = [
            (candidate[component], component, dataset[component], outcome)
            for (candidate, dataset, components), outcome in zip(jobs, outcomes, strict=True)
            for component in components
            if component in candidate and dataset.get(component)
        ]

        async def every() -> None:
            async with open_slots(self._num_threads) as slots:
                await asyncio.gather(*(self._component(*task, slots, lm) for task in tasks))

        if tasks:
            in_own_loop(every)
        return outcomes

    async def _component(
        self,
        text: str,
        component: str,
        records: Records,
        outcome: _Outcome,
        slots: Slots,
        lm: dspy.BaseLM | None,
    ) -> None:
        adapter = self._adapter or adapter_for(lm)

        async def call(
            signature: type[dspy.Signature],
            inputs: Mapping[str, Any],
            place: tuple[str | int, ...],
            role: Role,
        ) -> dspy.Prediction | FailedCall:
            return (await slots.call(CallJob(signature, inputs, lm, adapter, role), (0,))).outcome

        def emit(event: Event) -> None:
            if isinstance(event, WarningRaised):
                logger.warning("%s: %s", component, event.text)

        context = StrategyContext(
            component,
            text,
            call,
            emit,
            seed=self._seed,
            place=(_digest(text, records),),
            joined_later=self._operator.joins_lessons,
        )
        try:
            result = await self._edit(text, records, context)
        except ArgumentError:
            raise  # the set-up is wrong: every other component would fail alike
        except Exception as error:  # noqa: BLE001 - logged with its reason; the other components go on
            result = Refusal(f"{type(error).__name__}: {error}")
        if isinstance(result, Refusal):
            logger.warning("%s keeps its text: %s", component, result.reason)
            outcome.metadata[f"combee:refused:{component}"] = result.reason
        elif result.instruction is not None:
            outcome.texts[component] = result.instruction

    async def _edit(self, text: str, records: Records, context: StrategyContext) -> Edit | Refusal:
        async def ready(reflection: Reflection) -> Reflection | None:
            return reflection

        reflections = [
            asyncio.ensure_future(ready(Reflection(index, record)))
            for index, record in enumerate(records)
        ]
        lessons = Lessons(context.component)
        if self._operator.needs_lessons:
            lessons = await self._aggregator.aggregate(reflections, context)
        return await self._operator.apply(
            OperatorInput(text, (), None, lessons), context.at("operator")
        )


def _digest(text: str, records: Records) -> str:
    """Return what tells this use apart from others: a host's iteration is not known here, but its
    material is.
    """
    content = json.dumps(
        [text, list(records)], skipkeys=True, default=lambda value: type(value).__name__
    )
    return hashlib.sha256(content.encode()).hexdigest()


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
        """Return the new text of every component that could be improved; the others are left out,
        with a log line.
        """
        return self._reduced([(candidate, reflective_dataset, components_to_update)], None)[0].texts


class CombeeReflection(_Reducer):
    """A ``reflection_strategy`` for ``gepa.optimize`` and ``gepa.optimize_anything``. Thread-safe;
    stateless.

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
        """Return one ``ReflectionProposal`` per job, all components of all jobs reduced at the same
        time.

        A component that fails or teaches nothing is left out of its proposal; the
        reason is logged and stands in the proposal's ``metadata``.
        """
        from gepa.proposer.reflective_mutation.reflection_lm import ReflectionProposal

        outcomes = self._reduced(jobs, self._lm)
        return [
            (ReflectionProposal(new_texts=outcome.texts, metadata=outcome.metadata), self)
            for outcome in outcomes
        ]
