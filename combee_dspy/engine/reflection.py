"""gepa's reflection, done by the reducer: one scan per parent, minibatch and component."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from gepa.proposer.reflective_mutation.reflection_lm import ReflectionProposal

from combee_dspy.engine.adapter import CombeeAdapter, ReflectiveDataset
from combee_dspy.engine.breeding import Breeder, Child, ComponentError
from combee_dspy.engine.candidates import Candidate, TaggedCandidate, candidate_id
from combee_dspy.engine.early_scans import place_of
from combee_dspy.engine.fallback import BestNode
from combee_dspy.engine.guarding import Guarding
from combee_dspy.engine.lost import joined_lost
from combee_dspy.engine.scanning import Scanned, Scanner
from combee_dspy.engine.settings import Settings
from combee_dspy.engine.state import Proposed, RunState
from combee_dspy.engine.streaming import Stream, Streams, stream_key
from combee_dspy.events import CandidateProposed, CandidateRefused, ErrorRaised, Event, RetentionMeasured
from combee_dspy.records import Lessons
from combee_dspy.reflections import estimate_record_tokens
from combee_dspy.retention import tokens_per_level
from combee_dspy.strategies import PredictFn

__all__ = ["ScanReflection"]

_ORCHESTRATORS = 8

Job = tuple[Candidate, ReflectiveDataset, list[str]]


@dataclass(slots=True)
class _Group:
    """Jobs that share a parent and a minibatch, and so a scan."""

    candidate: Candidate
    dataset: ReflectiveDataset
    components: list[str]
    jobs: list[int]
    children: list[Child]
    scans: dict[str, Future[Scanned]]

    @property
    def place(self) -> str:
        return place_of(self.dataset.number)


class ScanReflection:
    """A gepa reflection strategy that reduces reflections with a scan.

    All components of all jobs are reduced at the same time, and jobs that share
    a parent and a minibatch share the scan. Never raises: gepa would buy every
    call a second time. What went wrong is kept in :attr:`failure`, which ends
    the run at its next check.

    Args:
        adapter: Knows the programs and ``dspy.Flex`` parts, and buys screens.
        settings: The run's settings: aggregator, operators, guards, diversity.
        guarding: What no child may break.
        predict: Makes the way to the LM, at a temperature or at the LM's own.
        emit: Where events go.
        state: The run's state.
        scanner: Reduces a component's reflections.
        streams: Scans that have begun already.
    """

    def __init__(  # noqa: PLR0913 - one wiring point, called once per run
        self,
        adapter: CombeeAdapter,
        settings: Settings,
        guarding: Guarding,
        predict: Callable[[float | None], PredictFn],
        emit: Callable[[Event], None],
        state: RunState,
        scanner: Scanner,
        streams: Streams,
    ) -> None:
        self._adapter = adapter
        self._settings = settings
        self._operators = settings.operators
        self._guarding = guarding
        self._predict = predict
        self._emit = emit
        self._state = state
        self._scanner = scanner
        self._streams = streams
        self.failure: Exception | None = None

    def reflect(
        self, candidate: Candidate, reflective_dataset: Any, components_to_update: list[str]
    ) -> tuple[ReflectionProposal, ScanReflection]:
        """Reflect on one job: a batch of one."""
        return self.reflect_many([(candidate, reflective_dataset, components_to_update)])[0]

    def reflect_many(self, jobs: list[Job]) -> list[tuple[ReflectionProposal, ScanReflection]]:
        """Return one proposal per job; without texts where every operator refused."""
        texts: dict[int, dict[str, str]] = {}
        try:
            for group in self._reduce(jobs):
                for job, child in zip(group.jobs, group.children, strict=True):
                    texts[job] = child.texts
                    self._tell(child)
        except Exception as error:  # noqa: BLE001 - kept in `failure`: raising here would buy the calls again
            self._fail("reflection", error)
            texts = {}
        return [(ReflectionProposal(new_texts=texts.get(number, {})), self) for number in range(len(jobs))]

    def _reduce(self, jobs: Sequence[Job]) -> list[_Group]:
        groups = self._groups(jobs)
        pool = ThreadPoolExecutor(_ORCHESTRATORS, thread_name_prefix="combee-scan")
        try:
            for group in groups:
                self._start_scans(group, pool)
            # DSPy promises a code proposer all components at once, in this thread; the scans run meanwhile.
            for group in groups:
                self._propose_code(group)
            if any(group.scans for group in groups):
                # What measuring the scans takes, done while their calls are on their way.
                self._state.retention.prepare()
            made: list[Mapping[str, str]] = []
            for group in groups:
                self._breed(group, pool, made)
                made.extend(child.candidate for child in group.children if child.texts)
        except BaseException:
            # An interrupt must not wait for scans that nobody will read.
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        pool.shutdown()
        return groups

    def _groups(self, jobs: Sequence[Job]) -> list[_Group]:
        found: dict[int, _Group] = {}
        for number, (candidate, dataset, components) in enumerate(jobs):
            group = found.get(id(dataset))
            if group is None:
                group = _Group(candidate, dataset, list(components), [], [], {})
                found[id(dataset)] = group
            group.jobs.append(number)
            operator = candidate.operator if isinstance(candidate, TaggedCandidate) else 0
            group.children.append(Child(dict(candidate), operator))
        return list(found.values())

    def _start_scans(self, group: _Group, pool: ThreadPoolExecutor) -> None:
        needed = any(self._operators[child.operator].needs_lessons for child in group.children)
        for component in group.components:
            if component in self._adapter.flex_components:
                continue
            # One group rescues what was lost: offered to all, it would be offered more than once.
            # Where nothing is said about the component no scan runs, and they wait on.
            runs = needed and bool(group.dataset.get(component))
            stream = self._stream(group, component) if runs else None
            offers = runs and stream is None and self._settings.rescue
            again = self._state.lost.pop(component, ()) if offers else ()
            group.scans[component] = pool.submit(
                # A fresh copy per task: two threads may not run in one context.
                contextvars.copy_context().run,
                self._scan,
                group,
                component,
                again,
                needed,
                stream,
            )

    def _stream(self, group: _Group, component: str) -> Stream | None:
        found = self._streams.get(stream_key(candidate_id(group.candidate), group.dataset.rollouts))
        return found if found is not None and component in found.components else None

    def _scan(self, group: _Group, component: str, again: Any, needed: bool, stream: Stream | None) -> Scanned:
        return self._scanner.scan(
            group.candidate,
            group.dataset,
            component,
            self._predict(self._state.temperature_of(0)),
            iteration=self._state.iteration,
            place=group.place,
            again=again,
            lessons_needed=needed,
            stream=stream,
        )

    def _breed(self, group: _Group, pool: ThreadPoolExecutor, made: Sequence[Mapping[str, str]]) -> None:
        """Let the operators make a group's children, judged beside those made before."""
        scanned: dict[str, Scanned] = {}
        for component, scan in group.scans.items():
            try:
                found = scan.result()
            except Exception as error:  # noqa: BLE001 - kept in `failure`, and told
                self._refuse(group, self._fail(component, error))
                continue
            if not found.reflections:
                self._refuse(group, f"no trajectory says anything about {component}")
                continue
            scanned[component] = self._noted(found)
        self._count(group, scanned)
        if not scanned:
            return
        breeder = Breeder(
            self._operators,
            self._guarding.edit,
            self._guarding.text,
            lambda draw: self._predict(self._state.temperature_of(draw)),
            draws=self._guarding.draws,
            seed=self._settings.seed,
            pool=pool,
            scrub=self._adapter.scrubbed,
        )
        try:
            breeder.breed(
                group.children,
                scanned,
                self._state.weights,
                iteration=self._state.iteration,
                place=group.place,
                started=made,
            )
            if self._settings.fallback is not None:
                fallback = BestNode(self._adapter, breeder, self._operators, self._guarding, self._emit, self._settings)
                fallback.stand_in(group.children, scanned, group.dataset.rollouts, self._state.iteration)
        except ComponentError as failed:
            reason = self._fail(failed.component, failed.error)
            for child in group.children:
                child.texts = {key: text for key, text in child.texts.items() if key in self._adapter.flex_components}
            self._refuse(group, reason)

    def _noted(self, found: Scanned) -> Scanned:
        """Enter a scan's lessons in the ledger, and add those that the parent lacks from before."""
        self._say_retention(found)
        component, lessons = found.context.component, found.given.lessons
        if self._settings.rescue and found.lost:
            self._state.lost[component] = joined_lost(self._state.lost.get(component, ()), found.lost)
        if not self._settings.lesson_ledger or lessons.rewrite is not None or not _scanned(lessons):
            return found
        offered = self._state.lessons.offer(component, found.given.instruction, lessons.lessons)
        self._state.lessons.add(lessons, self._state.iteration, [one.example_id for one in found.reflections])
        joined = replace(lessons, lessons=(*lessons.lessons, *offered))
        return replace(found, given=replace(found.given, lessons=joined))

    def _say_retention(self, found: Scanned) -> None:
        """Say what the scan kept, beside what the run's earlier scans let expect."""
        if not found.retained:
            return
        expected = self._state.retention.expect(found.scan.nodes)
        self._state.retention.add(found.samples)
        self._emit(
            RetentionMeasured(
                iteration=self._state.iteration,
                component=found.context.component,
                aggregator=self._settings.aggregator.name,
                reflections=found.retained,
                tokens_per_level=tokens_per_level(found.scan.nodes),
                rescued=found.again,
                expected=None if expected is None else (expected.survival, expected.low, expected.high),
            )
        )

    def _propose_code(self, group: _Group) -> None:
        """Let the code proposer edit a group's ``dspy.Flex`` parts: one edit, which the first child gets."""
        code = [name for name in group.components if name in self._adapter.flex_components]
        if not code:
            return
        texts: dict[str, str] = {}
        reason = "no new code was proposed"
        try:
            texts = self._adapter.own_proposals(dict(group.candidate), group.dataset, code)
        except Exception as error:  # noqa: BLE001 - told: one bad answer of a code LM is no reason to end a run
            reason = f"{type(error).__name__}: {error}"
            self._emit(ErrorRaised(iteration=self._state.iteration, where="code proposer", error=reason, fatal=False))
        first, *others = group.children
        for component in code:
            if texts.get(component, group.candidate[component]) == group.candidate[component]:
                first.refusals.append((self._name(first), f"{component}: {reason}"))
            else:
                first.texts[component] = texts[component]
            for child in others:
                child.refusals.append(
                    (self._name(child), f"{component}: its one code edit belongs to the first operator")
                )
        self._count(group, code)

    def _refuse(self, group: _Group, reason: str) -> None:
        for child in group.children:
            child.refusals.append((self._name(child), reason))

    def _name(self, child: Child) -> str:
        return self._operators[child.operator].name

    def _fail(self, where: str, error: Exception) -> str:
        """Keep what ends the run, and tell of it."""
        self.failure = self.failure or error
        text = f"{type(error).__name__}: {error}"
        self._emit(ErrorRaised(iteration=self._state.iteration, where=where, error=text, fatal=True))
        return text

    def _count(self, group: _Group, components: Any) -> None:
        # In gepa's thread, and once per component rather than per child.
        for component in components:
            for record in group.dataset.get(component, ()):
                self._state.records += 1
                self._state.record_tokens += estimate_record_tokens(record)

    def _tell(self, child: Child) -> None:
        """Announce a child, or why there is none."""
        iteration, parent = self._state.iteration, candidate_id(child.parent)
        for operator, reason in child.refusals:
            self._emit(CandidateRefused(iteration=iteration, parent_id=parent, operator=operator, reason=reason))
        if not child.texts:
            self._state.refused(child.tried)
            return
        identity, name = candidate_id(child.candidate), self._name(child)
        self._state.refused(position for position in child.tried if position != child.operator)
        self._state.proposed[identity] = Proposed(child.operator, parent, child.candidate)
        self._state.lessons.carried(identity, child.candidate)
        self._emit(
            CandidateProposed(
                iteration=iteration,
                candidate_id=identity,
                parent_id=parent,
                operator=name,
                texts=dict(child.texts),
                copied_words=self._guarding.copied_words(child.texts),
            )
        )


def _scanned(lessons: Lessons) -> bool:
    return bool(lessons.lessons or lessons.nodes)
