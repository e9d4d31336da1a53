"""One step of a playbook: roll out, reflect, shuffle, curate, join, refine."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

import dspy

from combee_dspy.artifacts import (
    Answered,
    Playbook,
    Reflector,
    Sharding,
    apply_deltas,
    curate,
    join_answers,
    refine,
)
from combee_dspy.engine.candidates import candidate_id
from combee_dspy.engine.evaluator import Evaluator
from combee_dspy.engine.playbook_program import PlaybookProgram
from combee_dspy.engine.state import RunState
from combee_dspy.events import CandidateProposed, ErrorRaised, Event, ReflectionsMade
from combee_dspy.exceptions import InfrastructureError
from combee_dspy.records import Rollout
from combee_dspy.reflections import estimate_tokens
from combee_dspy.rollouts import ExecutorSession
from combee_dspy.strategies import PredictFn, StrategyContext

__all__ = ["Learned", "PlaybookLearner"]

logger = logging.getLogger("combee_dspy")

COMPONENT = "playbook"
"""What the events of a playbook's scan name as their component: every predictor reads the same playbook."""

_READ_BY_DEFAULT = 24_000


@dataclass(frozen=True, slots=True)
class Learned:
    """What a step made of a minibatch.

    Attributes:
        playbook: The playbook after it.
        rollouts: The minibatch's rollouts, made with the playbook before it.
        bought: Rollouts that are new to the run.
        done: How many deltas of each kind changed the playbook.
        ignored: What was not used or done and why, one sentence each.
        joined: Near-duplicates that became one.
        left: Ids of bullets that left because they harm.
    """

    playbook: Playbook
    rollouts: tuple[Rollout, ...]
    bought: int
    done: dict[str, int]
    ignored: tuple[str, ...] = ()
    joined: tuple[tuple[str, str], ...] = ()
    left: tuple[str, ...] = ()


class _Reflections:
    """The reflections of one minibatch, each begun once: by whoever comes first with its rollout."""

    def __init__(self, reflector: Reflector, session: ExecutorSession) -> None:
        self._reflector = reflector
        self._session = session
        self._begun: dict[int, Future[Answered]] = {}
        self._closed = False
        self._lock = threading.Lock()

    def start(self, position: int, rollout: Rollout) -> None:
        """Reflect on a rollout, unless that has begun."""
        with self._lock:
            if not self._closed and position not in self._begun:
                self._begun[position] = self._session.submit(self._reflector.ask, position, rollout)

    def answers(self, rollouts: Sequence[Rollout]) -> list[Answered]:
        """Return one answer per rollout, in order, once all of them are there."""
        for position, rollout in enumerate(rollouts):
            self.start(position, rollout)
        return [self._begun[position].result() for position in range(len(rollouts))]

    def close(self) -> None:
        """Buy nothing any more that has not started."""
        with self._lock:
            self._closed = True
        for future in self._begun.values():
            future.cancel()


class PlaybookLearner:
    """Makes steps. Holds no playbook: it is given one and returns one.

    Args:
        program: The student and the artifact.
        sharding: How insights become shards.
        evaluator: Buys the rollouts.
        session: Where reflections run.
        predict: The way to the LM.
        emit: Where events go.
        state: The run's state, for what the controller reads.
        seed: The run's seed.
        perfect_score: The score of a success.
        observe: Sees every rollout that was scored.
    """

    def __init__(  # noqa: PLR0913 - one wiring point
        self,
        program: PlaybookProgram,
        sharding: Sharding,
        evaluator: Evaluator,
        session: ExecutorSession,
        predict: PredictFn,
        emit: Callable[[Event], None],
        state: RunState,
        *,
        seed: int,
        perfect_score: float,
        observe: Callable[[Rollout], None] = lambda rollout: None,
    ) -> None:
        self._program = program
        self._sharding = sharding
        self._evaluator = evaluator
        self._session = session
        self._predict = predict
        self._emit = emit
        self._state = state
        self._seed = seed
        self._perfect_score = perfect_score
        self._observe = observe

    def step(self, playbook: Playbook, batch: Sequence[dspy.Example], iteration: int) -> Learned:
        """Predict a minibatch with a playbook, and learn from it; a trajectory is reflected on as it is there.

        A reflection or a shard that fails is lost there and nowhere else; where every call of a
        kind fails, the service is down.

        Raises:
            InfrastructureError: Rollouts, or all reflections, or all curators kept failing.
        """
        reflections = _Reflections(self._reflector(playbook, iteration), self._session)
        try:
            rollouts, bought = self._predicted(playbook, batch, iteration, reflections.start)
            learned = self._learned(playbook, rollouts, iteration, reflections)
        finally:
            reflections.close()
        return replace(learned, bought=bought)

    def predict(
        self, playbook: Playbook, batch: Sequence[dspy.Example], iteration: int
    ) -> tuple[tuple[Rollout, ...], int]:
        """Return the rollouts of a minibatch, all in flight at once, and how many are new to the run."""
        return self._predicted(playbook, batch, iteration, None)

    def learn(self, playbook: Playbook, rollouts: Sequence[Rollout], iteration: int) -> Learned:
        """Return what the rollouts made of a playbook that their program had been shown."""
        reflections = _Reflections(self._reflector(playbook, iteration), self._session)
        try:
            return self._learned(playbook, rollouts, iteration, reflections)
        finally:
            reflections.close()

    def _predicted(
        self,
        playbook: Playbook,
        batch: Sequence[dspy.Example],
        iteration: int,
        ready: Callable[[int, Rollout], None] | None,
    ) -> tuple[tuple[Rollout, ...], int]:
        candidate = self._program.candidate(playbook)
        items = [(candidate, batch)]
        found = self._evaluator.evaluate(items, purpose="parent", iteration=iteration, ready=ready)[0]
        for rollout in found.rollouts:
            self._observe(rollout)
            self._state.add_score(rollout.score)
        return found.rollouts, found.bought

    def _context(self, iteration: int) -> StrategyContext:
        task = self._program.task
        return StrategyContext(COMPONENT, task, self._predict, self._emit, iteration, self._seed, COMPONENT)

    def _reflector(self, playbook: Playbook, iteration: int) -> Reflector:
        return Reflector(
            self._program.artifact,
            playbook,
            self._context(iteration),
            max_call_tokens=self._sharding.max_call_tokens or _READ_BY_DEFAULT,
            perfect_score=self._perfect_score,
        )

    def _learned(
        self,
        playbook: Playbook,
        rollouts: Sequence[Rollout],
        iteration: int,
        reflections: _Reflections,
    ) -> Learned:
        artifact, context = self._program.artifact, self._context(iteration)
        found = join_answers(reflections.answers(rollouts))
        self._report(iteration, "reflector", found.failed, len(rollouts))
        tokens = sum(estimate_tokens(text) for _, text in found.insights)
        self._state.record_tokens += tokens
        self._state.records += len(found.insights)
        self._emit(ReflectionsMade(iteration=iteration, component=COMPONENT, size=len(found.insights), tokens=tokens))
        counted = playbook.with_counts(found.helpful, found.harmful)
        curated = curate(artifact, counted, found.insights, self._sharding, context)
        calls = sum(node.level == 1 for node in curated.nodes)
        self._report(iteration, "curator", curated.failed, calls)
        applied = apply_deltas(counted, curated.deltas)
        refined = refine(applied.playbook, similarity=artifact.similarity, leave_at=artifact.leave_at)
        before, after = (self._program.candidate(one) for one in (playbook, refined.playbook))
        if after != before:
            changed = {name: text for name, text in after.items() if text != before.get(name)}
            self._emit(
                CandidateProposed(
                    iteration=iteration,
                    candidate_id=candidate_id(after),
                    parent_id=candidate_id(before),
                    operator=artifact.name,
                    texts=changed,
                )
            )
        ignored = (*found.ignored, *curated.ignored, *applied.ignored)
        for note in ignored:
            logger.debug("iteration %d, ignored: %s", iteration, note)
        return Learned(refined.playbook, tuple(rollouts), 0, applied.done, ignored, refined.joined, refined.left)

    def _report(self, iteration: int, where: str, failed: Sequence[str], asked: int) -> None:
        for error in failed:
            self._emit(ErrorRaised(iteration=iteration, where=where, error=error, fatal=len(failed) == asked))
        # One example that nobody can reflect on says nothing about the service.
        if asked > 1 and len(failed) == asked:
            raise InfrastructureError(len(failed), 1, failed[-1])
