"""One step of a playbook: roll out, reflect, shuffle, curate, join, refine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import dspy

from combee_dspy.aggregators._telling import ScanTeller
from combee_dspy.artifacts import (
    Curator,
    Playbook,
    Reflector,
    Sharding,
    apply_deltas,
    join_answers,
    join_curated,
    refine,
)
from combee_dspy.engine.candidates import candidate_id
from combee_dspy.engine.evaluator import Begun as BegunRollouts
from combee_dspy.engine.evaluator import Evaluator
from combee_dspy.engine.playbook_calls import MinibatchCalls
from combee_dspy.engine.playbook_outages import Outages
from combee_dspy.engine.playbook_program import PlaybookProgram
from combee_dspy.engine.state import RunState
from combee_dspy.events import CandidateProposed, ErrorRaised, Event, ReflectionsMade
from combee_dspy.exceptions import InfrastructureError
from combee_dspy.records import Rollout
from combee_dspy.reflections import estimate_tokens
from combee_dspy.rollouts import ExecutorSession
from combee_dspy.strategies import PredictFn, StrategyContext

__all__ = ["Begun", "Learned", "PlaybookLearner"]

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
    """

    playbook: Playbook
    rollouts: tuple[Rollout, ...]
    bought: int
    done: dict[str, int]
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Begun:
    """A minibatch whose rollouts and reflections are on their way.

    Attributes:
        playbook: What its programs and reflectors see.
        iteration: The iteration that learns from it.
        rollouts: Its rollouts.
        calls: Its LM calls.
    """

    playbook: Playbook
    iteration: int
    rollouts: BegunRollouts
    calls: MinibatchCalls

    def give_up(self) -> int:
        """Buy nothing any more that has not started; return how many rollouts had."""
        self.calls.close()
        self.rollouts.cancel()
        return sum(
            ticket.new and not ticket.future.cancelled() for tickets in self.rollouts.pending for ticket in tickets
        )


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
        outages: What failed before; nothing by default.
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
        outages: Outages | None = None,
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
        self._outages = Outages() if outages is None else outages

    def begin(self, playbook: Playbook, batch: Sequence[dspy.Example], iteration: int) -> Begun:
        """Start predicting a minibatch, and return at once; each trajectory is reflected on as it is there.

        Args:
            playbook: What programs and reflectors see.
            batch: The minibatch.
            iteration: The iteration that will learn from it.
        """
        calls = MinibatchCalls(self._reflector(playbook, iteration), self._session, iteration)
        items = [(self._program.candidate(playbook), batch)]
        rollouts = self._evaluator.begin(items, purpose="parent", iteration=iteration, ready=[calls.start])
        return Begun(playbook, iteration, rollouts, calls)

    def finish(self, begun: Begun, playbook: Playbook) -> Learned:
        """Learn from a minibatch that was begun; each shard is curated as soon as its reflections are there.

        A reflection or a shard that fails is lost there and nowhere else, unless the service is
        down (see :class:`combee_dspy.engine.playbook_outages.Outages`).

        Args:
            begun: The minibatch.
            playbook: What is learned into, and what curators see.

        Raises:
            InfrastructureError: Rollouts kept failing, or the service of reflections or curators is down.
        """
        size = sum(len(tickets) for tickets in begun.rollouts.pending)
        try:
            curator = self._curating(begun.calls, playbook, size, begun.iteration, self._state.score_count)
            (found,) = self._evaluator.finish(begun.rollouts)
            self._note(found.rollouts)
            learned = self._learned(playbook, found.rollouts, begun.iteration, begun.calls, curator)
        finally:
            begun.give_up()
        return replace(learned, bought=found.bought)

    def predict(
        self, playbook: Playbook, batch: Sequence[dspy.Example], iteration: int
    ) -> tuple[tuple[Rollout, ...], int]:
        """Return the rollouts of a minibatch, all in flight at once, and how many are new to the run."""
        items = [(self._program.candidate(playbook), batch)]
        (found,) = self._evaluator.evaluate(items, purpose="parent", iteration=iteration)
        self._note(found.rollouts)
        return found.rollouts, found.bought

    def learn(self, playbook: Playbook, rollouts: Sequence[Rollout], iteration: int) -> Learned:
        """Return what the rollouts made of a playbook that their program had been shown."""
        calls = MinibatchCalls(self._reflector(playbook, iteration), self._session, iteration)
        try:
            before = max(0, self._state.score_count - len(rollouts))
            curator = self._curating(calls, playbook, len(rollouts), iteration, before)
            return self._learned(playbook, rollouts, iteration, calls, curator)
        finally:
            calls.close()

    def _note(self, rollouts: Sequence[Rollout]) -> None:
        for rollout in rollouts:
            self._observe(rollout)
            self._state.add_score(rollout.score)

    def _curating(self, calls: MinibatchCalls, playbook: Playbook, size: int, iteration: int, before: int) -> Curator:
        context = self._context(iteration)
        curator = Curator(self._program.artifact, playbook, self._sharding, context)
        # Of the minibatches before this one, so that the plan follows from what was learned alone.
        share = min(1.0, self._state.records / before) if before else 1.0
        calls.curate(curator, self._sharding.plan(size, share, context))
        return curator

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
        calls: MinibatchCalls,
        curator: Curator,
    ) -> Learned:
        artifact, context = self._program.artifact, self._context(iteration)
        found = join_answers(calls.answers(rollouts))
        self._report(iteration, "reflector", found.failed, len(rollouts))
        tokens = sum(estimate_tokens(text) for _, text in found.insights)
        self._state.record_tokens += tokens
        self._state.records += len(found.insights)
        self._emit(ReflectionsMade(iteration=iteration, component=COMPONENT, size=len(found.insights), tokens=tokens))
        told = ScanTeller(context, self._sharding.name)
        planned = sum(len(curator.calls(calls.insights(shard))) for shard in calls.shards)
        told.started(len(found.insights), (planned, 0) if planned else ())
        curated = join_curated(calls.curated(), playbook, told)
        self._report(iteration, "curator", curated.failed, planned)
        applied = apply_deltas(playbook.with_counts(found.helpful, found.harmful), curated.deltas)
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
        for note in (*ignored, *refined.notes):
            logger.debug("iteration %d: %s", iteration, note)
        # What of the curators' answers was cut has been told with the scan.
        self._tell(iteration, "reflector", found.ignored)
        self._tell(iteration, "playbook", (*applied.ignored, *refined.notes))
        return Learned(refined.playbook, tuple(rollouts), 0, applied.done, ignored)

    def _tell(self, iteration: int, where: str, notes: Sequence[str]) -> None:
        for note in notes:
            self._emit(ErrorRaised(iteration=iteration, where=where, error=note, fatal=False))

    def _report(self, iteration: int, where: str, failed: Sequence[str], asked: int) -> None:
        ends = self._outages.ends(where, failed, asked)
        for error in failed:
            self._emit(ErrorRaised(iteration=iteration, where=where, error=error, fatal=ends))
        if ends:
            raise InfrastructureError(len(failed), 1, failed[-1])
