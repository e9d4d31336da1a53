"""One run: its parts, wired, and what it does from the probe to the report."""

from __future__ import annotations

import dataclasses
import random
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import dspy
import orjson
from gepa.strategies.eval_policy import FullEvaluationPolicy

from combee_dspy._private import (
    AUTO_CANDIDATES,
    InstructionProposer,
    auto_budget,
    detailed_results,
    flex_sources,
    make_adapter,
)
from combee_dspy.artifacts import Instruction
from combee_dspy.costs import Tariff, totals
from combee_dspy.evaluation import Calibrator, check_roles_heard, evaluator_lms
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.guards import CopyIndex, check_program, guard_notes
from combee_dspy.hashing import row_hash
from combee_dspy.journal import Cache, Journal, Reader, RunLog, journal_file
from combee_dspy.lms import probe
from combee_dspy.lms.redact import scrub, secrets_of
from combee_dspy.operators import decode_fields, fields_key, visible
from combee_dspy.report import CombeeReport
from combee_dspy.rollouts import Slots, patient
from combee_dspy.search._batches import Batches
from combee_dspy.search._budget import Purse
from combee_dspy.search._candidates import Candidate, Compilation, Row
from combee_dspy.search._choices import Finals
from combee_dspy.search._describe import lms_by_role, models_by_role, specs
from combee_dspy.search._effects import Effects, Place
from combee_dspy.search._ends import Ends
from combee_dspy.search._gepa import make_parts
from combee_dspy.search._heldout import HeldoutReading, earlier_receipts, note_unheld
from combee_dspy.search._keeper import Keeper
from combee_dspy.search._ledger import LessonLedger
from combee_dspy.search._loop import Loop, LoopSettings
from combee_dspy.search._merge import Merging
from combee_dspy.search._pareto import Pareto
from combee_dspy.search._pool import Member, Pool
from combee_dspy.search._programs import Programs, repeats_itself
from combee_dspy.search._propose import CustomProposer, Proposer
from combee_dspy.search._telling import Telling
from combee_dspy.search._trunk import Trunk
from combee_dspy.search._update import Learned, Learner, LearnerSettings
from combee_dspy.stopping import Budget, Limits, require_countable

__all__ = ["Run", "Shared", "limits_of"]


@dataclasses.dataclass(frozen=True, slots=True)
class Shared:
    """What several searches may share.

    Attributes:
        journal: Where all of them are written.
        slots: Where effects are carried out.
        tariff: What LM calls are charged by.
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


class Run:
    """One run's parts, wired. Made once, used once."""

    def __init__(self, task: Compilation, shared: Shared, log: RunLog, prints: Mapping[str, str]) -> None:
        settings, splits = task.settings, task.splits
        self.task, self.shared, self.log = task, shared, log
        self.metric_print = prints["metric"]
        self.emit: Callable[..., None] = log.emit
        self.seed = Candidate(settings.artifact.seed(task.student))
        self.limits = limits_of(task)
        lms = {role: patient(lm) for role, lm in lms_by_role(settings).items()}
        require_countable(
            settings.budget, unpriced=settings.costs.unpriced(models_by_role(settings)), gpus=bool(settings.costs.gpus)
        )
        own = [getattr(predictor, "lm", None) for predictor in task.student.predictors()]
        asked = [*lms.values(), dspy.settings.lm, *own, *evaluator_lms(settings.metric_fn)]
        secrets = {key for lm in asked if lm is not None for key in secrets_of(lm)}
        programs = Programs(partial(settings.artifact.build, task.student), settings.metric_fn, settings.failure_score)
        with Reader(shared.journal.path) as reader:
            receipts = earlier_receipts(reader)
            seconds = _earlier_seconds(reader, log.number)
        earlier = log.usage() if log.resumed else ()
        self.purse = Purse(self.limits, earlier, seconds, charged=settings.search.replay is None)
        self.effects = Effects(
            log, shared.slots, programs, self.purse, metric=settings.metric_fn, failure_score=settings.failure_score,
            lms=lms, adapter=dspy.settings.adapter or dspy.JSONAdapter(), tariff=shared.tariff, cache=shared.cache,
            memoize=settings.cache is not False, number=task.number,
            decided=_replayed(settings.search.replay, task.name), scrub=lambda text: scrub(text, secrets),
        )  # fmt: skip
        rng = random.Random(settings.seed)  # noqa: S311 - gepa's own stream, by its own seed
        self.parts = make_parts(settings, rng)
        self.pool = Pool(
            self.effects, self.parts, splits.validation, draws=settings.validation.draws,
            track_best_outputs=settings.track_best_outputs, log_dir=settings.log_dir, emit=self.emit,
            unseen=self._unseen(),
        )  # fmt: skip
        self.learner = self._learner()
        self.keeper = self._keeper(rng)
        self.calibrator = self._calibrator()
        self._judged: set[tuple[str, str]] = set()
        self.reading = None
        if task.heldout is None:
            # What this run learns from, no later run of the study may hold out.
            note_unheld(splits, self.metric_print, log, receipts)
        else:
            self.reading = HeldoutReading(task.heldout, splits, self.metric_print, self.effects, receipts)

    def _unseen(self) -> int:
        """Return how many train rows are not in every candidate's validation, whose rollouts are not bought again."""
        settings, splits = self.task.settings, self.task.splits
        if settings.cache is False or not isinstance(self.parts.policy, FullEvaluationPolicy):
            return sys.maxsize
        rows = {row.hash for row in splits.train} | {row_hash(one) for one in settings.guards.anchors}
        return len(rows - {row.hash for row in splits.validation})

    def _learner(self) -> Learner:
        settings, student, code = self.task.settings, self.task.student, frozenset(flex_sources(self.task.student))
        custom = settings.custom_instruction_proposer is not None or bool(code)
        joined = bool(settings.operators) and all(one.joins_lessons for one in settings.operators if one.needs_lessons)
        needs = not isinstance(settings.artifact, Instruction) or any(one.needs_lessons for one in settings.operators)

        def notes(component: str, candidate: Candidate) -> str:
            if not isinstance(settings.artifact, Instruction):
                return str(settings.artifact.task(student))
            described = decode_fields(candidate.texts.get(fields_key(component), ""))
            text, seed = candidate.texts[component], self.seed.texts[component]
            return guard_notes(settings.guards, component, text, described, seed)

        how = LearnerSettings(
            seed=settings.seed, perfect_score=settings.perfect_score, skip_perfect=settings.skip_perfect_score,
            format_failures=settings.add_format_failure_as_feedback,
            as_objects=isinstance(settings.custom_instruction_proposer, (InstructionProposer, type(None))),
            warn_on_mismatch=settings.warn_on_score_mismatch,
        )  # fmt: skip
        return Learner(
            self.effects, settings.artifact, None if custom or not needs else settings.aggregator, how, notes=notes,
            temperature=self._temperature, joined_later=joined and not custom, code=code,
        )  # fmt: skip

    def _temperature(self, step: int) -> float | None:
        schedule = self.task.settings.diversity.temperature
        if schedule is None:
            return None
        # What is known for sure when the update begins, so that it never hangs on arrival.
        known = [score for made, score in self.pool.history if made <= step - self.behind]
        best = max(range(len(known)), key=lambda place: known[place], default=0)
        return float(schedule.at(step, max(0, len(known) - 1 - best)))

    def _keeper(self, rng: random.Random) -> Keeper:
        settings, student = self.task.settings, self.task.student
        proposer = self._proposer() if isinstance(settings.artifact, Instruction) else None
        shown = tuple(visible(self.seed.texts))
        if settings.keeps == "trunk" or proposer is None:
            every = settings.component_selector == "all" or proposer is None

            def components(step: int) -> tuple[str, ...]:
                return shown if every else (shown[step % len(shown)],)

            return Trunk(
                self.effects, self.pool, settings.artifact, proposer, seed=self.seed, components=components,
                lag=settings.search.lag, staleness=settings.search.staleness,
            )  # fmt: skip
        custom = None
        if settings.custom_instruction_proposer is not None or flex_sources(student):
            adapter = make_adapter(
                student, settings.metric_fn, reflection_lm=settings.reflection_lm,
                custom_instruction_proposer=settings.custom_instruction_proposer,
                custom_code_proposer=settings.custom_code_proposer,
            )  # fmt: skip
            custom = CustomProposer(adapter, self.effects)
        merging = None
        # A merge takes parts of two candidates: with one component there is nothing to take.
        if settings.use_merge and len(shown) > 1 and not settings.guards.anchors:
            merging = Merging(self.effects, self.pool, self.parts, settings.max_merge_invocations or 0, rng)
        samples = not repeats_itself(student)
        finals = Finals(settings.validation.finalists, samples=samples, effects=self.effects)
        telling = Telling(
            self.effects, self.pool, self.parts, self.task.splits.train, at_once=not settings.search.staleness
        )
        return Pareto(
            self.effects, self.pool, self.parts, proposer, custom=custom, merging=merging, finals=finals,
            seed=self.seed, telling=telling, screen=settings.search.screen,
            anchors=frozenset(row_hash(one) for one in settings.guards.anchors), run_seed=settings.seed,
            staleness=settings.search.staleness, restart=settings.diversity.restart,
        )  # fmt: skip

    @property
    def behind(self) -> int:
        """How many updates the validations that an update knows of are behind it."""
        settings = self.task.settings
        return 1 + settings.search.staleness + (settings.search.lag if settings.keeps == "trunk" else 0)

    @property
    def children(self) -> int:
        """Children of an update."""
        settings = self.task.settings
        if settings.custom_instruction_proposer is not None or flex_sources(self.task.student):
            return 1
        return settings.search.children or len(settings.operators)

    def _proposer(self) -> Proposer:
        settings, splits = self.task.settings, self.task.splits
        texts = self.seed.texts
        described = {name: decode_fields(texts.get(fields_key(name), "")) for name in visible(texts)}
        check_program(settings.guards, {name: texts[name] for name in described}, described)
        copies = None
        if settings.guards.max_copied_words is not None:
            examples = [*(row.example for row in splits.train), *settings.guards.anchors]
            copies = CopyIndex(examples, settings.guards.max_copied_words)
        ledger = LessonLedger() if settings.search.ledger and settings.keeps == "pareto" else None
        return Proposer(
            self.task.student, self.seed, settings.operators, settings.guards, copies, settings.diversity, self.learner,
            self.emit, run_seed=settings.seed, perfect_score=settings.perfect_score, ledger=ledger,
        )  # fmt: skip

    def _calibrator(self) -> Calibrator | None:
        calibration = self.task.settings.validation.calibration
        if calibration is None:
            return None
        return Calibrator(calibration, seed=self.task.settings.seed, planned=self.limits.rollouts)

    def _loop(self) -> Loop:
        settings, splits = self.task.settings, self.task.splits
        trunk = isinstance(self.keeper, Trunk)
        anchors = [Row("train", -1 - place, one, row_hash(one)) for place, one in enumerate(settings.guards.anchors)]
        batches = Batches(
            splits.train, anchors, settings.controller, seed=settings.seed, sampler=self.parts.sampler,
            epochs=self.limits.epochs,
        )  # fmt: skip
        how = LoopSettings(
            staleness=settings.search.staleness, released_early=trunk, behind=self.behind,
            verdicts_from=settings.search.lag, rescue=settings.search.rescue, workers=self.shared.workers,
            children=0 if trunk else self.children, screen=None if trunk else settings.search.screen,
        )  # fmt: skip
        ends = Ends(
            self.effects, self.pool, batches, self.parts, settings.budget, behind=self.behind,
            components=len(visible(self.seed.texts)),
        )  # fmt: skip
        return Loop(
            self.effects, self.learner, self.keeper, self.pool, batches, self.parts, ends, how, seed=self.seed,
            judge=self._judge,
        )  # fmt: skip

    async def _judge(self, learned: Learned) -> None:
        """Hold the metric against its reference, or against the model that proposes."""
        settings = self.task.settings
        if self.calibrator is None:
            check_roles_heard((row for one in learned.rollouts for row in one.usage), settings.reflection_lm)
            return
        for row, rollout in zip(learned.plan.rows, learned.rollouts, strict=True):
            place = (learned.plan.parent.id, row.hash)
            if rollout.prediction is None or place in self._judged or not self.calibrator.chosen(*place):
                continue
            self._judged.add(place)
            prediction = dspy.Prediction(**rollout.prediction)
            judge = partial(self.calibrator.judge, row.example, prediction)
            where = Place("calibration", learned.plan.step)
            score = await self.effects.work(f"calibration/{'/'.join(place)}", where, "evaluator", "feedback", judge)
            self.calibrator.add(rollout.score, score)
        self.calibrator.decide()

    async def compiled(self) -> tuple[dspy.Module, CombeeReport]:
        """Run the search and return the program with its report attached."""
        settings, task = self.task.settings, self.task
        for text in task.splits.warnings:
            self.emit("warning", {"text": text})
        data = {"candidate": self.seed.id, "texts": dict(self.seed.texts), "parents": [], "operator": "seed",
                "components": []}  # fmt: skip
        self.emit("candidate", data)
        await self._probe()
        loop = self._loop()
        with self.parts.experiment:
            await loop.run()
        if self.calibrator is not None:
            self.calibrator.decide(final=True)
        chosen = await self.keeper.result()
        held, receipt = None, None
        if self.reading is not None:
            models = models_by_role(settings)
            held, receipt = await self.reading.read(self.seed, chosen.candidate, seed=settings.seed, models=models)
        await self.effects.drain()  # what a budget has cut off is on its way still, and in the books once it is there
        report = self._report(loop, chosen, held, receipt)
        program = settings.artifact.build(task.student, chosen.candidate.texts)
        program._compiled = True
        program.combee_report = report
        if settings.track_stats:
            builder = _Builder(partial(settings.artifact.build, task.student))
            program.detailed_results = detailed_results(self.pool.state, builder, settings.log_dir, settings.seed)
        return program, report

    async def _probe(self) -> None:
        settings = self.task.settings
        if not settings.validation.probe:
            return
        lms = {role: lm for role, lm in lms_by_role(settings).items() if lm is not None}
        lms.setdefault("task", dspy.settings.lm)
        found = {role: lm for role, lm in lms.items() if lm is not None}
        await self.effects.work("probe", Place("probe"), "task", "probe", lambda: probe(found))

    def _report(self, loop: Loop, chosen: Member, held: Any, receipt: Any) -> CombeeReport:
        settings, splits = self.task.settings, self.task.splits
        warnings = [*splits.warnings, *(receipt.warnings if receipt is not None else ())]
        return CombeeReport(
            reason=loop.reason,
            seed_score=(self.pool.members[0] if chosen.index else chosen).mean,
            best_score=chosen.mean,
            rollouts=self.log.rollouts(),
            updates=loop.committed,
            seconds=self.purse.seconds,
            costs=totals(self.effects.usage()),
            heldout=held,
            receipt=receipt,
            texts=dict(chosen.candidate.texts),
            digests=dict(splits.digests),
            decisions=tuple(loop.decisions),
            specs=specs(settings),
            models=models_by_role(settings),
            seed=settings.seed,
            warnings=tuple(dict.fromkeys(warnings)),
            journal="" if settings.log_dir is None else str(self.shared.journal.path),
        )


class _Builder:
    """What DSPy reads of its adapter when it makes ``detailed_results``."""

    def __init__(self, build: Callable[[Mapping[str, str]], dspy.Module]) -> None:
        self.build_program = build


def limits_of(task: Compilation) -> Limits:
    """Return the hard limits of a run: the user's, and what GEPA's names for budgets come to."""
    settings, splits = task.settings, task.splits
    limits = Limits() if settings.budget is None else settings.budget.limits()
    components = len(settings.artifact.components(task.student))
    rollouts = settings.max_metric_calls
    if settings.auto is not None:
        rollouts = auto_budget(max(components, 1), AUTO_CANDIDATES[settings.auto], len(splits.validation))
    elif settings.max_full_evals is not None:
        rollouts = settings.max_full_evals * (len(splits.train) + len(splits.validation))
    if rollouts is not None:
        limits = limits | Budget(rollouts=rollouts).limits()
    if limits == Limits() and not isinstance(settings.artifact, Instruction):
        limits = Limits(epochs=1.0)  # a playbook reads its trainset once, unless it is told otherwise
    return limits


def _earlier_seconds(reader: Reader, run: int) -> float:
    """Return how long earlier parts of a run were at work: from the first effect of each stretch to its last."""
    rows = reader.rows("SELECT started, ended FROM effect WHERE run = ? AND ended > 0 ORDER BY started", (run,))
    seconds, until = 0.0, 0.0
    for started, ended in rows:
        seconds += max(0.0, ended - max(started, until))
        until = max(until, ended)
    return seconds


def _replayed(place: str | None, name: str) -> Callable[[str], Any | None]:
    """Return what looks up the decisions of an earlier run."""
    if place is None:
        return lambda _: None
    with Reader(journal_file(place)) as reader:
        runs = [row["id"] for row in reader.rows("SELECT id FROM run WHERE name = ? ORDER BY id", (name,))]
        if not runs:
            remedy = "Give the log_dir of an earlier run of this task."
            raise ArgumentValueError("search.replay", place, f"holds no run named {name!r}", remedy)
        sql = "SELECT key, value FROM effect WHERE run = ? AND kind = 'decision'"
        rows = reader.rows(sql, (runs[-1],))
    found = {row["key"]: orjson.loads(row["value"]) for row in rows}
    return found.get
