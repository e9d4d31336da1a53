"""A playbook that learns while it serves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import dspy

from combee_dspy.artifacts import Playbook, PlaybookArtifact
from combee_dspy.checks import check_student
from combee_dspy.engine.candidates import candidate_id
from combee_dspy.engine.judging import Judging
from combee_dspy.engine.playbook_outages import Outages
from combee_dspy.engine.playbook_program import PlaybookProgram
from combee_dspy.engine.playbook_report import PlaybookReport
from combee_dspy.engine.playbook_setup import Wired, check_playbook_settings, wired
from combee_dspy.engine.playbook_state import PlaybookState, read_state, write_state
from combee_dspy.engine.services import Services, started
from combee_dspy.engine.settings import Models, Settings, specs_of
from combee_dspy.engine.state import RunState
from combee_dspy.events import Event, IterationFinished, IterationStarted, RolloutFinished, RunFinished, RunStarted
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.hashing import row_hash
from combee_dspy.records import Rollout
from combee_dspy.registry import Spec

__all__ = ["OnlinePlaybook"]


class OnlinePlaybook:
    """Serves requests with a playbook, and learns from each batch after it was answered.

        with OnlinePlaybook(Combee(metric, artifact="playbook", reflection_lm=lm), program) as serving:
            for batch in stream:
                answers = serving.predict(batch)   # with what was learned before
                serving.learn()                    # from these answers and their feedback

    The metric scores an answer as soon as it is there, so the examples must hold what it needs.
    With a ``log_dir`` the playbook is kept after each batch, and the next server goes on with it.
    Used from one thread.

    Args:
        settings: A :class:`combee_dspy.Combee` with a playbook artifact. Its budget is not asked:
            who serves decides when to stop.
        student: The program. Not changed.

    Raises:
        ArgumentTypeError: The settings' artifact is no playbook.
        ArgumentValueError: A setting cannot be used with a playbook.
    """

    def __init__(self, settings: Settings, student: dspy.Module) -> None:
        artifact = getattr(settings, "artifact", None)
        if not isinstance(artifact, PlaybookArtifact):
            raise ArgumentTypeError("artifact", artifact, "is no playbook", 'Give Combee(…, artifact="playbook").')
        if artifact.staleness:
            remedy = "A server answers with all that it has learned: give 0."
            raise ArgumentValueError("staleness", artifact.staleness, "is not 0", remedy)
        check_student(student, has_code=False)
        check_playbook_settings(settings, student)
        self._settings = settings
        self._program = PlaybookProgram.of(student, artifact)
        self._seed = self._program.candidate(self._program.playbook)
        self._identity = {"seed candidate": candidate_id(self._seed), "artifact": f"{artifact.name}, served"}
        self._own = PlaybookState(self._program.playbook)
        self._open: ExitStack | None = None
        self._waiting: tuple[Rollout, ...] = ()
        self._serial = 0
        self._outages = Outages()

    def __enter__(self) -> Self:
        """Start what serving needs."""
        settings, found = self._settings, read_state(self._settings.log_dir, self._identity)
        models = Models(self._program.student, settings.reflection_lm)
        with ExitStack() as stack:
            self._services: Services = stack.enter_context(started(settings, models))
            self._state = RunState(ledger=self._services.ledger)
            if found is not None:
                self._own = found[0]
                self._state.load(found[1])
            self._begun = self._state.clock()
            self._judging = Judging(settings, self._services.ledger.prices, None)
            if found is not None:
                self._judging.load(found[1].get("judging", {}))
            self._services.bus.emit(
                RunStarted(
                    name=f"{type(self._program.student).__name__} playbook, served",
                    seed=settings.seed,
                    sizes={},
                    digests={},
                    specs={**specs_of(settings), "artifact": Spec.of(self._program.artifact).to_dict()},
                    models=models.by_role(),
                    components=self._seed,
                    warnings=("A stream is no held-out set: this run supports no claim.",),
                )
            )
            self._open = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop what was started."""
        stack, self._open = self._open, None
        if stack is None:
            return
        with stack:
            self._services.session.tell()
            self._services.bus.emit(
                RunFinished(
                    iteration=self._own.iteration,
                    reason="the stream is over" if kind is None else f"serving failed: {kind.__name__}",
                    best_index=0,
                    best_score=math.nan,
                    texts=self._program.candidate(self._own.playbook),
                    rollouts=self._own.rollouts,
                    seconds=self._state.spent.seconds + self._state.clock() - self._begun,
                    costs=self._state.totals().to_dict(),
                )
            )

    @property
    def playbook(self) -> Playbook:
        """What has been learned so far."""
        return self._own.playbook

    @property
    def report(self) -> PlaybookReport:
        """What has happened so far; its online score is that of everything served."""
        return PlaybookReport.of(self._own.playbook, self._own, self._program.shown(self._own.playbook))

    def program(self) -> dspy.Module:
        """Return the program with what has been learned so far."""
        program: Any = self._program.build(self._program.candidate(self._own.playbook))
        program.playbook_report = self.report
        return program

    def predict(self, batch: Sequence[dspy.Example]) -> tuple[Any, ...]:
        """Answer a batch, all at once, with what was learned from earlier ones.

        A batch that was not learned from is forgotten.

        Returns:
            One prediction per example; ``None`` where the program raised.

        Raises:
            ArgumentValueError: Nothing was started, or the batch is empty.
            InfrastructureError: Rollouts kept failing for reasons outside the program.
            CalibrationFailedError: The judge or the proxy does not agree with its reference.
        """
        iteration = self._own.iteration + 1
        # Who scores is decided between batches, as a run decides it between iterations.
        parts = self._wired(batch)
        self._since = self._state.clock()
        self._services.bus.emit(IterationStarted(iteration=iteration))
        rollouts, bought = parts.learner.predict(self._own.playbook, batch, iteration)
        self._own.rollouts += bought
        self._own.batch_scores.append(sum(rollout.score for rollout in rollouts) / len(rollouts))
        self._own.batch_sizes.append(len(rollouts))
        self._waiting, self._parts = rollouts, parts
        return tuple(rollout.prediction for rollout in rollouts)

    def learn(self) -> Playbook:
        """Learn from the batch that was answered last, and return the playbook; once per batch.

        Raises:
            InfrastructureError: All reflections, or all curators, kept failing; where each batch has
                one call of a kind, those of three batches in a row.
        """
        rollouts, self._waiting = self._waiting, ()
        if not rollouts:
            return self._own.playbook
        own, iteration = self._own, self._own.iteration + 1
        learned = self._parts.learner.learn(own.playbook, rollouts, iteration)
        changed = learned.playbook != own.playbook
        own.playbook, own.iteration = learned.playbook, iteration
        own.ignored += len(learned.ignored)
        for name, count in learned.done.items():
            own.done[name] = own.done.get(name, 0) + count
        shared = {**self._state.dump(), "judging": self._judging.dump()}
        write_state(self._settings.log_dir, self._identity, own, shared)
        self._services.bus.emit(
            IterationFinished(
                iteration=iteration,
                accepted=changed,
                rollouts=own.rollouts,
                best_score=math.nan,
                seconds=self._state.clock() - self._since,
                costs=self._state.totals().to_dict(),
            )
        )
        return own.playbook

    def _wired(self, batch: Sequence[dspy.Example]) -> Wired:
        if self._open is None:
            raise ArgumentValueError("serving", self, "has not been started", "Use it in a with statement.")
        if not batch:
            raise ArgumentValueError("batch", batch, "is empty", "Give at least one example.")
        # An evaluator keeps the rollouts that it has bought: one for each batch, so that a stream without end fits.
        self._judging.step(self._own.iteration, self._state.totals(), self._services.bus.emit)
        keep = frozenset(row_hash(example) for example in batch)
        return wired(
            self._settings,
            self._program,
            self._services,
            self._state,
            self._judging,
            keep,
            self._told,
            outages=self._outages,
        )

    def _told(self, event: Event) -> None:
        # Each batch has an evaluator of its own, which counts from one: ids must not come twice in a run.
        if isinstance(event, RolloutFinished):
            self._serial += 1
            event = replace(event, rollout_id=f"{self._serial:08d}")
        self._services.bus.emit(event)
