"""The reducer alone, for those who stay on ``dspy.GEPA`` or ``gepa.optimize``.

    dspy.GEPA(metric=metric, reflection_lm=lm, instruction_proposer=CombeeProposer(), …)
    gepa.optimize(adapter=adapter, reflection_strategy=CombeeReflection(lm), …)

Both replace the one call that reads a whole minibatch by a parallel scan. Give
the optimizer a larger minibatch (``reflection_minibatch_size=40``): with its
default of 3 there is nothing to scan.
"""

from __future__ import annotations

import contextvars
import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, cast

import dspy

from combee_dspy import registry
from combee_dspy.aggregators import Aggregator
from combee_dspy.events import ErrorRaised, Event, ReflectionTrimmed, ScanFinished
from combee_dspy.exceptions import ArgumentError, ArgumentTypeError, ArgumentValueError
from combee_dspy.lms.port import LMPort
from combee_dspy.operators import Operator, OperatorInput
from combee_dspy.records import Edit, Lessons, Reflection, Refusal
from combee_dspy.reducer_core import propose_component
from combee_dspy.rollouts import Threads
from combee_dspy.strategies import PredictFn, StrategyContext

__all__ = ["CombeeProposer", "CombeeReflection"]

logger = logging.getLogger(__name__)

ReflectiveDataset = Mapping[str, Sequence[Mapping[str, Any]]]
Job = tuple[dict[str, str], ReflectiveDataset, list[str]]

# Orchestrating a component only waits for its LM calls, which run in the session's own workers.
_ORCHESTRATORS = 16


@dataclass(slots=True)
class _Outcome:
    """What one job returns."""

    texts: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)


class _Reducer:
    """Aggregator, operator and the pool that both hosts share. Thread-safe; holds no state between calls."""

    def __init__(
        self,
        aggregator: str | Aggregator,
        operator: str | Operator,
        seed: int,
        num_threads: int,
        adapter: dspy.Adapter | None,
        on_event: Callable[[Event], None] | None,
    ) -> None:
        self.aggregator = cast("Aggregator", registry.resolve("aggregator", aggregator))
        self.operator = cast("Operator", registry.resolve("operator", operator))
        if self.operator.edits_demonstrations or self.operator.edits_fields:
            problem = "edits more than instructions, which is all this host can carry"
            remedy = "Use combee_dspy.Combee, whose candidates hold the rest too, or operator='insert'."
            raise ArgumentValueError("operator", operator, problem, remedy)
        if num_threads < 1:
            raise ArgumentValueError("num_threads", num_threads, "is below 1", "Give at least one worker.")
        self.seed = seed
        self.num_threads = num_threads
        self.adapter = adapter
        self.on_event = on_event

    def run(self, jobs: Sequence[Job], lm: dspy.BaseLM | None) -> list[_Outcome]:
        """Reduce every component of every job at the same time."""
        outcomes = [_Outcome() for _ in jobs]
        tasks = [
            (number, component)
            for number, (candidate, dataset, components) in enumerate(jobs)
            for component in components
            if component in candidate and dataset.get(component)
        ]
        if not tasks:
            return outcomes
        session = Threads().start(self.num_threads)
        try:
            predict = LMPort(session, {"proposer": lm}, self.adapter).predict
            pool = ThreadPoolExecutor(min(len(tasks), _ORCHESTRATORS), thread_name_prefix="combee-reduce")
            try:
                pending = [
                    (number, component, self._submit(pool, jobs[number], component, predict, outcomes[number]))
                    for number, component in tasks
                ]
                for number, component, future in pending:
                    self._collect(outcomes[number], component, future)
            except BaseException:
                # An interrupt must not wait for scans that nobody will read.
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            pool.shutdown()
        finally:
            session.close()
        return outcomes

    def _submit(
        self, pool: ThreadPoolExecutor, job: Job, component: str, predict: PredictFn, outcome: _Outcome
    ) -> Future[Edit | Refusal]:
        # DSPy's settings live in context variables, which a thread does not inherit.
        run = contextvars.copy_context().run
        return pool.submit(run, self._component, job, component, predict, outcome)

    def _component(self, job: Job, component: str, predict: PredictFn, outcome: _Outcome) -> Edit | Refusal:
        candidate, dataset, _ = job
        records = dataset[component]
        context = StrategyContext(
            component=component,
            text=candidate[component],
            predict=predict,
            emit=lambda event: self._hear(event, outcome),
            seed=self.seed,
            place=_digest(candidate[component], records),
        )
        given = OperatorInput(
            instruction=candidate[component],
            demonstrations=(),
            signature=None,
            lessons=Lessons(component),
            runs=(),
        )
        reflections = [Reflection(index, record) for index, record in enumerate(records)]
        return propose_component(self.aggregator, [self.operator], reflections, given, context)[0]

    def _collect(self, outcome: _Outcome, component: str, future: Future[Edit | Refusal]) -> None:
        try:
            result = future.result()
        except ArgumentError:
            # The set-up is wrong: nothing was bought, and every other component would fail alike.
            raise
        except Exception as error:  # noqa: BLE001 - logged with its reason; the other components go on
            result = Refusal(f"{type(error).__name__}: {error}")
        if isinstance(result, Refusal):
            logger.warning("%s keeps its text: %s", component, result.reason)
            outcome.metadata[f"combee:refused:{component}"] = result.reason
        elif result.instruction is not None:
            outcome.texts[component] = result.instruction

    def _hear(self, event: Event, outcome: _Outcome) -> None:
        if isinstance(event, ReflectionTrimmed):
            logger.warning(
                "record %d of %s was %s: %d tokens of %d",
                event.index,
                event.component,
                event.action,
                event.tokens,
                event.limit,
            )
        elif isinstance(event, ErrorRaised):
            logger.warning("%s: %s", event.where, event.error)
        elif isinstance(event, ScanFinished):
            outcome.metadata[f"combee:scan:{event.component}"] = {
                "aggregator": event.aggregator,
                "nodes": len(event.nodes),
                "failed": [node.failed for node in event.nodes if node.failed],
                "lessons": list(event.lessons),
                "seconds": event.seconds,
            }
        if self.on_event is not None:
            self.on_event(event)


def _digest(text: str, records: Sequence[Mapping[str, Any]]) -> str:
    """Return what tells this use apart from others: a host's iteration is not known here, but its material is."""
    content = json.dumps([text, list(records)], skipkeys=True, default=lambda value: type(value).__name__)
    return hashlib.sha256(content.encode()).hexdigest()


class CombeeProposer:
    """An instruction proposer for ``dspy.GEPA(instruction_proposer=…)``.

    Uses the reflection LM that ``dspy.GEPA`` sets while it proposes. Thread-safe.
    Note that ``dspy.GEPA`` turns values into strings for any proposer but its
    own, DSPy types such as images excepted.

    Args:
        aggregator: Name or object.
        operator: Name or object; it must edit instructions.
        seed: Where chance comes from: the same seed, text and records give the same plan.
        num_threads: LM calls in flight at once.
        adapter: For the proposer's calls; ``None`` for the one in DSPy's settings, else ``dspy.JSONAdapter()``.
        on_event: Receives every event, from several threads; ``None`` to log what needs attention only.

    Raises:
        ArgumentTypeError: ``aggregator`` or ``operator`` is of another kind.
        ArgumentValueError: A name is unknown, the operator edits demonstrations, or ``num_threads`` is below 1.
    """

    def __init__(
        self,
        aggregator: str | Aggregator = "union",
        operator: str | Operator = "insert",
        seed: int = 0,
        num_threads: int = 16,
        adapter: dspy.Adapter | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        self._reducer = _Reducer(aggregator, operator, seed, num_threads, adapter, on_event)

    def __call__(
        self,
        candidate: dict[str, str],
        reflective_dataset: ReflectiveDataset,
        components_to_update: list[str],
    ) -> dict[str, str]:
        """Return the new text of every component that could be improved; the others are left out, with a log line.

        Raises:
            ArgumentValueError: No LM is set.
        """
        return self._reducer.run([(candidate, reflective_dataset, components_to_update)], None)[0].texts


class CombeeReflection:
    """A reflection strategy for ``gepa.optimize(reflection_strategy=…)``. Thread-safe; stateless.

    Args:
        lm: A ``dspy.LM`` or a model's name.
        aggregator: As for :class:`CombeeProposer`.
        operator: As for :class:`CombeeProposer`.
        seed: As for :class:`CombeeProposer`.
        num_threads: LM calls in flight at once, over all jobs and components.
        adapter: As for :class:`CombeeProposer`.
        on_event: As for :class:`CombeeProposer`.

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
        num_threads: int = 16,
        adapter: dspy.Adapter | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        if not isinstance(lm, (str, dspy.BaseLM)):
            raise ArgumentTypeError("lm", lm, "is no LM", "Give a dspy.LM or a model's name.")
        self._lm = dspy.LM(lm) if isinstance(lm, str) else lm
        self._reducer = _Reducer(aggregator, operator, seed, num_threads, adapter, on_event)

    def reflect(
        self, candidate: dict[str, str], reflective_dataset: ReflectiveDataset, components_to_update: list[str]
    ) -> tuple[Any, CombeeReflection]:
        """Return a ``ReflectionProposal`` for one job: a batch of one."""
        return self.reflect_many([(candidate, reflective_dataset, components_to_update)])[0]

    def reflect_many(self, jobs: list[Job]) -> list[tuple[Any, CombeeReflection]]:
        """Return one ``ReflectionProposal`` per job, all components of all jobs reduced at the same time.

        A component that fails or teaches nothing is left out of its proposal; the
        reason is logged and stands in the proposal's ``metadata``.
        """
        from gepa.proposer.reflective_mutation.reflection_lm import ReflectionProposal

        outcomes = self._reducer.run(jobs, self._lm)
        return [(ReflectionProposal(new_texts=outcome.texts, metadata=outcome.metadata), self) for outcome in outcomes]
