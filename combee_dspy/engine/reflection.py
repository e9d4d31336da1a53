"""gepa's reflection, done by the reducer: one scan per parent, minibatch and component."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from gepa.proposer.reflective_mutation.reflection_lm import ReflectionProposal

from combee_dspy.aggregators import Aggregator
from combee_dspy.engine.adapter import CombeeAdapter, ReflectiveDataset
from combee_dspy.engine.candidates import Candidate, candidate_id, demonstrations_key
from combee_dspy.engine.fanout import TaggedCandidate
from combee_dspy.engine.runs import predictor_runs
from combee_dspy.engine.state import RunState
from combee_dspy.events import CandidateProposed, CandidateRefused, ErrorRaised, Event
from combee_dspy.exceptions import ArgumentTypeError
from combee_dspy.operators import Operator, OperatorInput, decode_demonstrations, encode_demonstrations
from combee_dspy.records import Edit, Lessons, Reflection, Refusal
from combee_dspy.reducer_core import propose_component
from combee_dspy.reflections import estimate_record_tokens
from combee_dspy.strategies import PredictFn, StrategyContext

__all__ = ["ScanReflection"]

_ORCHESTRATORS = 8

Job = tuple[Candidate, ReflectiveDataset, list[str]]
Outcome = Edit | Refusal


@dataclass(slots=True)
class _Child:
    """What one job will return."""

    texts: dict[str, str] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)


class ScanReflection:
    """A gepa reflection strategy that reduces reflections with a scan.

    All components of all jobs are reduced at the same time, and jobs that share
    a parent and a minibatch share the scan. Never raises: gepa would buy every
    call a second time. What went wrong is kept in :attr:`failure`, which ends
    the run at its next check.

    Args:
        adapter: Knows the programs and ``dspy.Flex`` parts.
        aggregator: Turns reflections into lessons.
        operators: Each makes one child.
        predict: The way to the LM.
        emit: Where events go.
        state: The run's state.
        seed: The run's seed.
        perfect_score: The score of a success.
    """

    def __init__(  # noqa: PLR0913 - one wiring point, called once per run
        self,
        adapter: CombeeAdapter,
        aggregator: Aggregator,
        operators: Sequence[Operator],
        predict: PredictFn,
        emit: Callable[[Event], None],
        state: RunState,
        *,
        seed: int,
        perfect_score: float,
    ) -> None:
        self._adapter = adapter
        self._aggregator = aggregator
        self._operators = tuple(operators)
        self._predict = predict
        self._emit = emit
        self._state = state
        self._seed = seed
        self._perfect_score = perfect_score
        self.failure: Exception | None = None

    def reflect(
        self, candidate: Candidate, reflective_dataset: Any, components_to_update: list[str]
    ) -> tuple[ReflectionProposal, ScanReflection]:
        """Reflect on one job: a batch of one."""
        return self.reflect_many([(candidate, reflective_dataset, components_to_update)])[0]

    def reflect_many(self, jobs: list[Job]) -> list[tuple[ReflectionProposal, ScanReflection]]:
        """Return one proposal per job; without texts where every operator refused."""
        children = [_Child() for _ in jobs]
        try:
            self._reduce(children, jobs)
            for child, (candidate, _, _) in zip(children, jobs, strict=True):
                self._tell(child, candidate)
        except Exception as error:  # noqa: BLE001 - kept in `failure`: raising here would buy the calls again
            self._fail("reflection", error)
            children = [_Child() for _ in jobs]
        return [(ReflectionProposal(new_texts=child.texts), self) for child in children]

    def _reduce(self, children: Sequence[_Child], jobs: Sequence[Job]) -> None:
        groups: dict[int, list[int]] = {}
        for position, (_, dataset, _) in enumerate(jobs):
            groups.setdefault(id(dataset), []).append(position)
        flex = self._adapter.flex_components
        pool = ThreadPoolExecutor(_ORCHESTRATORS, thread_name_prefix="combee-scan")
        try:
            pending: list[tuple[list[int], str, Future[list[Outcome]]]] = []
            for number, members in enumerate(groups.values()):
                candidate, dataset, components = jobs[members[0]]
                operators = [self._operator_of(jobs[member][0]) for member in members]
                for component in [name for name in components if name not in flex]:
                    # A fresh copy per task: two threads may not run in one context.
                    run = contextvars.copy_context().run
                    task = pool.submit(
                        run, self._component, candidate, dataset, component, operators, f"group {number}"
                    )
                    pending.append((members, component, task))
            # DSPy promises a code proposer all components at once, in this thread; the scans run meanwhile.
            for members in groups.values():
                self._propose_code(children, jobs, members)
            for members, component, task in pending:
                self._collect(children, jobs, members, component, task)
        except BaseException:
            # An interrupt must not wait for scans that nobody will read.
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        pool.shutdown()

    def _propose_code(self, children: Sequence[_Child], jobs: Sequence[Job], members: Sequence[int]) -> None:
        """Let the code proposer edit a group's ``dspy.Flex`` parts: one edit, which the first child gets."""
        candidate, dataset, components = jobs[members[0]]
        code = [name for name in components if name in self._adapter.flex_components]
        if not code:
            return
        texts: dict[str, str] = {}
        reason = "no new code was proposed"
        try:
            texts = self._adapter.own_proposals(dict(candidate), dataset, code)
        except Exception as error:  # noqa: BLE001 - told: one bad answer of a code LM is no reason to end a run
            reason = f"{type(error).__name__}: {error}"
            self._emit(ErrorRaised(iteration=self._state.iteration, where="code proposer", error=reason, fatal=False))
        for component in code:
            first, *others = (children[member] for member in members)
            if texts.get(component, candidate[component]) == candidate[component]:
                first.refusals.append(f"{component}: {reason}")
            else:
                first.texts[component] = texts[component]
            for child in others:
                child.refusals.append(f"{component}: its one code edit belongs to the first operator")
        self._count(jobs[members[0]], code)

    def _fail(self, where: str, error: Exception) -> str:
        """Keep what ends the run, and tell of it."""
        self.failure = self.failure or error
        text = f"{type(error).__name__}: {error}"
        self._emit(ErrorRaised(iteration=self._state.iteration, where=where, error=text, fatal=True))
        return text

    def _count(self, job: Job, components: Sequence[str]) -> None:
        # In gepa's thread, and once per component rather than per child.
        for component in components:
            for record in job[1].get(component, ()):
                self._state.records += 1
                self._state.record_tokens += estimate_record_tokens(record)

    def _operator_of(self, candidate: Candidate) -> Operator:
        return self._operators[candidate.operator if isinstance(candidate, TaggedCandidate) else 0]

    def _component(
        self,
        candidate: Candidate,
        dataset: ReflectiveDataset,
        component: str,
        operators: Sequence[Operator],
        place: str,
    ) -> list[Outcome]:
        """Reduce one component and let each operator edit it."""
        records = dataset.get(component)
        if not records:
            return [Refusal(f"no trajectory says anything about {component}")] * len(operators)
        reflections = self._reflections(records, dataset)
        program = self._adapter.build_program(dict(candidate))
        predictor = dict(program.named_predictors())[component]
        given = OperatorInput(
            instruction=candidate[component],
            demonstrations=decode_demonstrations(candidate.get(demonstrations_key(component), "")),
            signature=predictor.signature,
            lessons=Lessons(component),
            runs=predictor_runs(predictor, dataset.rollouts, component),
            perfect_score=self._perfect_score,
        )
        context = StrategyContext(
            component=component,
            text=candidate[component],
            predict=self._predict,
            emit=self._emit,
            iteration=self._state.iteration,
            seed=self._seed,
            place=place,
        )
        return list(propose_component(self._aggregator, operators, reflections, given, context))

    def _reflections(self, records: Sequence[Mapping[str, Any]], dataset: ReflectiveDataset) -> list[Reflection]:
        # DSPy drops trajectories that say nothing about a component; only where it
        # dropped none do positions still tell which example a record is about.
        ids = [rollout.example_id for rollout in dataset.rollouts]
        known: Sequence[str | None] = ids if len(ids) == len(records) else [None] * len(records)
        return [
            Reflection(index, record, example_id)
            for index, (record, example_id) in enumerate(zip(records, known, strict=True))
        ]

    def _collect(
        self,
        children: Sequence[_Child],
        jobs: Sequence[Job],
        members: Sequence[int],
        component: str,
        task: Future[list[Outcome]],
    ) -> None:
        edits: list[_Child | Refusal]
        try:
            edits = [
                self._texts(outcome, component, jobs[member][0])
                for member, outcome in zip(members, task.result(), strict=True)
            ]
        except Exception as error:  # noqa: BLE001 - kept in `failure`, and told
            edits = [Refusal(self._fail(component, error))] * len(members)
        for member, edit in zip(members, edits, strict=True):
            if isinstance(edit, Refusal):
                children[member].refusals.append(edit.reason)
            else:
                children[member].texts.update(edit.texts)
                children[member].refusals.extend(edit.refusals)
        self._count(jobs[members[0]], [component])

    def _texts(self, outcome: Outcome, component: str, candidate: Candidate) -> _Child | Refusal:
        """Return an edit as components of the candidate.

        Raises:
            ArgumentTypeError: The edit holds demonstrations that are not JSON.
        """
        if isinstance(outcome, Refusal):
            return outcome
        made = _Child()
        if outcome.instruction is not None:
            made.texts[component] = outcome.instruction
        if outcome.demonstrations is not None:
            key = demonstrations_key(component)
            try:
                encoded = encode_demonstrations(outcome.demonstrations)
            except ArgumentTypeError as error:
                name = self._operator_of(candidate).name
                problem = f"returned demonstrations for {component} that are no plain JSON or do not come back from it"
                raise ArgumentTypeError(
                    f"operator {name!r}",
                    outcome,
                    problem,
                    "Use plain JSON values: lists rather than tuples, string keys, finite numbers.",
                ) from error
            if key in candidate:
                made.texts[key] = encoded
            else:
                made.refusals.append(f"{component} was started without demonstrations as a component")
        return made

    def _tell(self, child: _Child, candidate: Candidate) -> None:
        operator = self._operator_of(candidate).name
        parent = candidate_id(candidate)
        for reason in child.refusals:
            self._emit(
                CandidateRefused(iteration=self._state.iteration, parent_id=parent, operator=operator, reason=reason)
            )
        if child.texts:
            self._emit(
                CandidateProposed(
                    iteration=self._state.iteration,
                    candidate_id=candidate_id({**candidate, **child.texts}),
                    parent_id=parent,
                    operator=operator,
                    texts=dict(child.texts),
                )
            )
