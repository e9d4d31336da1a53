"""One playbook run: epochs or a stream of minibatches, validated as often as the user asks."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dspy

from combee_dspy.artifacts import Playbook, PlaybookArtifact
from combee_dspy.checks import Splits, check_splits, check_student
from combee_dspy.controllers import BatchView
from combee_dspy.engine.candidates import Candidate, candidate_id
from combee_dspy.engine.checkpoint import check_log_dir, claim_log_dir, note_spending, noted_spending
from combee_dspy.engine.heldout import HeldoutSet
from combee_dspy.engine.judging import Judging
from combee_dspy.engine.playbook_learning import Begun
from combee_dspy.engine.playbook_program import PlaybookProgram
from combee_dspy.engine.playbook_report import PlaybookReport
from combee_dspy.engine.playbook_setup import check_playbook_settings, drawing, wired
from combee_dspy.engine.playbook_state import PlaybookState, Validated, read_state, write_state
from combee_dspy.engine.services import Services, started
from combee_dspy.engine.settings import Models, Settings, rollout_limit, specs_of
from combee_dspy.engine.spending import dump_totals, load_totals
from combee_dspy.engine.state import RunState
from combee_dspy.engine.views import call_limits
from combee_dspy.evaluation import Receipt
from combee_dspy.events import (
    BatchPlanned,
    IterationFinished,
    IterationStarted,
    RunFinished,
    RunStarted,
    ValidationFinished,
)
from combee_dspy.records import BatchDecision, Measurement
from combee_dspy.registry import Spec
from combee_dspy.report import CombeeReport
from combee_dspy.stopping import RunView, ask

__all__ = ["PlaybookReport", "learn_playbook"]

logger = logging.getLogger("combee_dspy")

_SIMULATED = "{} stands for a simulated service: these figures measure no language model and support no claim."
_UNVALIDATED = "Nothing was validated: the last playbook is returned, compared with nothing."


def learn_playbook(
    settings: Settings,
    artifact: PlaybookArtifact,
    student: dspy.Module,
    *,
    trainset: Sequence[dspy.Example],
    valset: Sequence[dspy.Example] | None,
    heldout: Sequence[dspy.Example] | None,
) -> dspy.Module:
    """Learn a playbook (see :meth:`combee_dspy.Combee.compile`).

    Raises:
        ArgumentValueError: A setting cannot be used with a playbook.
    """
    check_student(student, has_code=False)
    check_playbook_settings(settings, student)
    splits = check_splits(trainset, valset, heldout)
    validates = artifact.validate_every != 0 and (valset is not None or bool(artifact.validate_every))
    if not validates:
        others = splits.warnings if valset else splits.warnings[1:]
        splits = replace(splits, warnings=(_UNVALIDATED, *others))
    for warning in splits.warnings:
        logger.warning(warning)
    models = Models(student, settings.reflection_lm)
    if models.simulated():
        splits = replace(splits, warnings=(*splits.warnings, _SIMULATED.format(", ".join(models.simulated()))))
    program = PlaybookProgram.of(student, artifact)
    seed = program.candidate(program.playbook)
    identity = {**splits.digests, "seed candidate": candidate_id(seed), "artifact": artifact.name}
    check_log_dir(settings.log_dir, identity)
    found = read_state(settings.log_dir, identity)
    with started(settings, models) as services:
        claim_log_dir(settings.log_dir, identity)
        run = _PlaybookRun(settings, program, splits, models, services, identity, validates=validates)
        if found is not None:
            run.resume(*found)
        return run.execute()


@dataclass(frozen=True, slots=True)
class _Minibatch:
    """A minibatch on its way.

    Attributes:
        decision: Why it has its size.
        size: Its examples.
        cursor: Training examples drawn once it is learned from.
        begun: Its rollouts and calls.
    """

    decision: BatchDecision
    size: int
    cursor: int
    begun: Begun


class _PlaybookRun:
    """The parts of one run, wired. Used once."""

    def __init__(
        self,
        settings: Settings,
        program: PlaybookProgram,
        splits: Splits,
        models: Models,
        services: Services,
        identity: Mapping[str, str],
        *,
        validates: bool,
    ) -> None:
        self.settings, self.program, self.splits = settings, program, splits
        self.models, self.services, self.identity, self.validates = models, services, identity, validates
        self.artifact = program.artifact
        self.seed = program.candidate(program.playbook)
        self.own = PlaybookState(program.playbook)
        self.state = RunState(ledger=services.ledger, spent_in_all=load_totals(noted_spending(settings.log_dir)))
        self.limit = rollout_limit(settings, self.seed, splits)
        self.name = f"{type(program.student).__name__} playbook seed {settings.seed}"
        self.judging = Judging(settings, services.ledger.prices, self.limit)
        self.heldout = HeldoutSet(settings, splits, self.judging.final, self.name, models.by_role())
        self.emit = services.bus.emit
        self.controller = services.decisions.planned(settings.controller)
        parts = wired(settings, program, services, self.state, self.judging, splits.train_hashes)
        self.evaluator, self.learner = parts.evaluator, parts.learner
        self.draw = drawing(self.artifact, len(splits.train), settings.seed)
        self.rows = self.artifact.epochs * len(splits.train)

    def resume(self, own: PlaybookState, run: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.own = own
        self.state.load(run)
        self.state.iteration = own.iteration
        self.judging.load(run.get("judging", {}))

    def execute(self) -> dspy.Module:
        """Learn, read the held-out set, and return the program."""
        self._announce()
        begun = self.state.clock()
        if self.validates and not self.own.scores:
            self._validate()
        following: _Minibatch | None = None
        try:
            while (reason := self._stop()) is None:
                # After a resume too, a stale minibatch sees what it would have seen.
                stale = self.own.before if self.artifact.staleness else None
                batch = following or self._begin(self.own.playbook if stale is None else stale)
                following = None
                if self.artifact.staleness and self._goes_on(batch):
                    following = self._begin(self.own.playbook, batch)
                self._iterate(batch)
                self._checkpoint()
        finally:
            if following is not None:
                # A budget of the user's own has ended the run: what was bought early counts.
                self.own.rollouts += following.begun.give_up()
        if self.validates and self.own.scores[-1][0] != self.own.iteration:
            self._validate()
            self._checkpoint()
        return self._finish(reason, begun)

    def _begin(self, shown: Playbook, after: _Minibatch | None = None) -> _Minibatch:
        """Plan and start the next minibatch, or the one after a minibatch that is on its way."""
        cursor = self.state.cursor if after is None else after.cursor
        iteration = self.own.iteration + (1 if after is None else 2)
        decision = self.controller.plan(self._view(iteration, after))
        positions, cursor = self.draw(cursor, decision.size)
        rows = [self.splits.train[position] for position in positions]
        return _Minibatch(decision, len(rows), cursor, self.learner.begin(shown, rows, iteration))

    def _goes_on(self, batch: _Minibatch) -> bool:
        """Return whether another minibatch is sure to follow this one, as far as that can be known now."""
        if batch.cursor >= self.rows:
            return False
        return self.limit is None or self.limit - self.own.rollouts - batch.size >= self._least

    def _iterate(self, batch: _Minibatch) -> None:
        own, state = self.own, self.state
        iteration = state.iteration = own.iteration + 1
        started_at = state.clock()
        self.emit(IterationStarted(iteration=iteration))
        state.decisions.append(batch.decision)
        self.emit(BatchPlanned(iteration=iteration, decision=batch.decision, measurements=tuple(state.measurements)))
        state.cursor = batch.cursor
        learned = self.learner.finish(batch.begun, own.playbook)
        state.measurements.append(Measurement(batch.size, state.clock() - started_at))
        changed = learned.playbook != own.playbook
        own.before, own.playbook, own.iteration = own.playbook, learned.playbook, iteration
        own.rollouts += learned.bought
        own.batch_scores.append(sum(one.score for one in learned.rollouts) / len(learned.rollouts))
        own.batch_sizes.append(len(learned.rollouts))
        own.ignored += len(learned.ignored)
        for name, count in learned.done.items():
            own.done[name] = own.done.get(name, 0) + count
        if self._validation_due():
            self._validate()
        self.emit(
            IterationFinished(
                iteration=iteration,
                accepted=changed,
                rollouts=own.rollouts,
                best_score=math.nan if own.best is None else own.best.score,
                seconds=state.clock() - started_at,
                costs=self._costs(),
            )
        )

    def _validation_due(self) -> bool:
        if not self.validates:
            return False
        every = self.artifact.validate_every
        if every:
            return self.own.iteration % every == 0
        return self.state.cursor % len(self.splits.train) == 0

    def _validate(self) -> None:
        own, candidate = self.own, self.program.candidate(self.own.playbook)
        rows = self.splits.validation
        found = self.evaluator.evaluate([(candidate, rows)], purpose="validation", iteration=own.iteration)[0]
        own.rollouts += found.bought
        score = sum(rollout.score for rollout in found.rollouts) / len(rows)
        best = own.best is None or score > own.best.score
        if best:
            own.best = Validated(own.iteration, score, own.playbook)
        if own.iteration == 0:
            own.seed_score = score
        own.scores.append((own.iteration, score))
        self.emit(
            ValidationFinished(
                iteration=own.iteration,
                index=len(own.scores) - 1,
                candidate_id=candidate_id(candidate),
                texts=candidate,
                score=score,
                best=best,
                rollouts=own.rollouts,
            )
        )

    def _stop(self) -> str | None:
        own, totals = self.own, self.state.totals()
        self.judging.step(own.iteration, totals, self.emit)
        if self.judging.changes:
            self.evaluator.rescore()
        if self.limit is not None and own.rollouts >= self.limit:
            return f"the budget of {self.limit} rollouts is spent ({own.rollouts} bought)"
        if self.limit is not None and own.iteration and self.limit - own.rollouts < self._least:
            return f"what is left of the budget cannot pay for another iteration: {self.limit - own.rollouts} rollouts"
        if self.settings.budget is not None:
            view = RunView(
                rollouts=own.rollouts,
                totals=totals,
                seconds=totals.seconds,
                iteration=own.iteration,
                validation_scores=tuple(score for _, score in own.scores),
                gpu_seconds=totals.total.gpu_seconds,
                validation_history=tuple(own.scores),
                epochs=self.state.cursor / len(self.splits.train),
            )
            rule = self.settings.budget
            reason = self.services.decisions.stop(own.iteration, lambda: ask(rule, view))
            if reason is not None:
                return reason
        if self.state.cursor >= self.rows:
            if self.artifact.mode == "online":
                return "the stream is over"
            return "one epoch is over" if self.artifact.epochs == 1 else f"{self.artifact.epochs} epochs are over"
        return None

    @property
    def _least(self) -> int:
        """Rollouts of the smallest iteration that ends with a validation."""
        return 1 + (len(self.splits.validation) if self.validates else 0)

    def _view(self, iteration: int, after: _Minibatch | None = None) -> BatchView:
        state, workers = self.state, self.services.session.slots
        earlier = () if after is None else (after.decision.size,)
        waiting = 0 if after is None else after.size
        task = self.services.ledger.snapshot().by_role.get("task")
        limits = call_limits(self.settings.aggregator)
        return BatchView(
            iteration=iteration,
            trainset_size=len(self.splits.train),
            seen=state.cursor if after is None else after.cursor,
            measurements=tuple(state.measurements),
            planned=(*(decision.size for decision in state.decisions), *earlier),
            workers=workers,
            capacity=task.peak if task is not None and task.peak >= workers else None,
            remaining_rollouts=None if self.limit is None else max(0, self.limit - self.own.rollouts - waiting),
            validation_size=len(self.splits.validation) if self.validates else 0,
            # No child is checked on the minibatch: it is learned from and left.
            children=0,
            score_variance=state.score_variance,
            record_tokens=state.mean_record_tokens,
            call_tokens=limits.call_tokens,
            # Its shards' deltas are joined by code.
            fan_in=limits.fan_in,
        )

    def _costs(self) -> Mapping[str, Any]:
        return self.state.totals().to_dict()

    def _checkpoint(self) -> None:
        shared = {**self.state.dump(), "judging": self.judging.dump()}
        write_state(self.settings.log_dir, self.identity, self.own, shared)

    def _announce(self) -> None:
        splits = self.splits
        sizes = {"train": len(splits.train), "validation": len(splits.validation), "heldout": len(splits.heldout)}
        self.emit(
            RunStarted(
                name=self.name,
                seed=self.settings.seed,
                sizes=sizes,
                digests=splits.digests,
                specs=self._specs(),
                models=self.models.by_role(),
                components=self.seed,
                warnings=splits.warnings,
            )
        )
        self.heldout.announce(self.emit)

    def _specs(self) -> Mapping[str, Any]:
        return {**specs_of(self.settings), "artifact": Spec.of(self.artifact).to_dict()}

    def _finish(self, reason: str, begun: float) -> dspy.Module:
        own, state = self.own, self.state
        self.services.decisions.stopped(own.iteration, reason)
        chosen = own.playbook if own.best is None else own.best.playbook
        candidate = self.program.candidate(chosen)
        program = self.program.build(candidate)
        receipt = self._read_heldout(candidate)
        note_spending(self.settings.log_dir, dump_totals(state.totals()))
        report = CombeeReport(
            reason=reason,
            seed_score=math.nan if own.seed_score is None else own.seed_score,
            best_score=math.nan if own.best is None else own.best.score,
            rollouts=own.rollouts,
            iterations=own.iteration,
            seconds=state.spent.seconds + state.clock() - begun,
            costs=self._costs(),
            heldout=None if receipt is None else receipt.difference(),
            receipt=receipt,
            digests=self.splits.digests,
            decisions=tuple(state.decisions),
            specs=self._specs(),
            models=self.models.by_role(),
            seed=self.settings.seed,
            warnings=(*self.splits.warnings, *self.heldout.warnings),
        )
        best = next((place for place, pair in enumerate(own.scores) if own.best and pair[0] == own.best.iteration), 0)
        self.services.session.tell()
        self.emit(
            RunFinished(
                iteration=own.iteration,
                reason=reason,
                best_index=best,
                best_score=report.best_score,
                texts=candidate,
                rollouts=own.rollouts,
                seconds=report.seconds,
                costs=report.costs,
            )
        )
        program.combee_report = report
        program.playbook_report = PlaybookReport.of(chosen, own, self.program.shown(chosen))
        return program

    def _read_heldout(self, best: Candidate) -> Receipt | None:
        self.judging.step(self.own.iteration, self.state.totals(), self.emit, final=True)
        if self.judging.changes:
            self.evaluator.rescore(self.judging.final)

        def score(candidates: Sequence[Candidate], rows: Sequence[Any]) -> list[list[float]]:
            items = [(candidate, rows) for candidate in candidates]
            found = self.evaluator.evaluate(items, purpose="heldout", iteration=self.own.iteration)
            return [[rollout.score for rollout in one.rollouts] for one in found]

        return self.heldout.read(self.seed, best, score, self.emit, self.own.iteration)
