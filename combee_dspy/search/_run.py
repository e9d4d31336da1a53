"""One run: its parts, wired, and what it does from the probe to the report."""

from __future__ import annotations

import importlib
import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import dspy
import orjson

from combee_dspy._private import detailed_results, make_adapter
from combee_dspy.costs import serving, totals
from combee_dspy.evaluation import (
    CalibrationResult,
    Calibrator,
    check_roles_heard,
    evaluator_lms,
    perfect_score_of,
    same_model,
)
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.guards import check_program
from combee_dspy.journal import Reader, RunLog, journal_file
from combee_dspy.lms import probe
from combee_dspy.lms.redact import forms_of, mask, secret_variables, secrets_of
from combee_dspy.operators import decode_fields
from combee_dspy.records import CallUsage, fields_key
from combee_dspy.report import CombeeReport
from combee_dspy.rollouts import output_of, patient
from combee_dspy.search._books import Books, Serving
from combee_dspy.search._budget import BudgetReached, Purse
from combee_dspy.search._candidates import Compilation, Place, Shared, repeats_itself
from combee_dspy.search._choices import Finals
from combee_dspy.search._clock import Clock
from combee_dspy.search._describe import lms_by_role, models_by_role, specs
from combee_dspy.search._effects import Effects
from combee_dspy.search._failures import Failures
from combee_dspy.search._gepa import make_parts
from combee_dspy.search._growing import Growing
from combee_dspy.search._heldout import HeldoutReading, note_unheld
from combee_dspy.search._keeper import Keeper
from combee_dspy.search._loop import Loop
from combee_dspy.search._merge import Merging
from combee_dspy.search._pareto import Pareto
from combee_dspy.search._pool import Member, Pool
from combee_dspy.search._privacy import Texts
from combee_dspy.search._propose import CustomProposer, Proposer
from combee_dspy.search._proving import Proving
from combee_dspy.search._receipts import Receipts
from combee_dspy.search._telling import Telling
from combee_dspy.search._untraced import describe_untraced
from combee_dspy.search._update import Learned, Learner
from combee_dspy.stopping import require_countable
from combee_dspy.tracking import page_file

__all__ = ["Run"]

_logger = logging.getLogger(__name__)


class Run:
    """One run's parts, wired. Made once, used once."""

    def __init__(
        self, task: Compilation, shared: Shared, log: RunLog, prints: Mapping[str, str]
    ) -> None:
        settings, splits = task.settings, task.splits
        if task.heldout is not None and task.limits.seconds is not None:
            # A reading needs it, and loading it takes a second that would be the search's.
            importlib.import_module("scipy.stats")
        self.task, self.shared, self.log = task, shared, log
        with Reader(shared.journal.path) as reader:
            seconds, earlier = (
                _earlier_seconds(reader, log.number),
                _earlier_costs(reader, log.number),
            )
            lost = _lost(reader, log.number)
        self.purse = Purse(
            task.limits, earlier, lost, seconds, charged=settings.search.replay is None
        )
        lms = {role: patient(lm) for role, lm in lms_by_role(settings).items()}
        own = [getattr(predictor, "lm", None) for predictor in task.student.predictors()]
        asked = [*lms.values(), dspy.settings.lm, *own, *evaluator_lms(settings.metric_fn)]
        keys = {key for lm in asked if lm is not None for key in secrets_of(lm)}
        secrets = forms_of({*keys, *secret_variables()})
        self.effects = Effects(
            task,
            shared,
            log,
            self.purse,
            lms=lms,
            decided=_replayed(settings.search.replay, task.name),
            texts=Texts(settings.privacy, partial(mask, secrets=secrets)),
        )
        rng = random.Random(settings.seed)  # noqa: S311 - gepa's own stream, by its own seed
        self.parts = make_parts(settings, rng)
        self.pool = Pool(task, self.effects, self.parts)
        self.failures = Failures(self.effects, settings.validation)
        self.books = Books(
            settings.artifact,
            task.seed,
            task.components,
            settings.search.build_weigher(),
            self.log.emit,
            settings.guards.removed,
        )
        learner = Learner(task, self.effects, self.pool, self.failures, self.books.known)
        self.keeper = self._keeper(learner, rng)
        self.loop = Loop(
            task,
            self.effects,
            learner,
            self.keeper,
            self.pool,
            self.parts,
            self.failures,
            judge=self._judge,
            books=self.books,
        )
        calibration = settings.validation.calibration
        self.calibrator = None
        if calibration is not None:
            self.calibrator = Calibrator(
                calibration, seed=settings.seed, planned=task.limits.rollouts
            )
        reference = evaluator_lms(
            None if calibration is None else calibration.reference, dspy.settings.lm
        )
        self._reference_proposes = any(
            same_model(lm, settings.reflection_lm or dspy.settings.lm) for lm in reference
        )
        self._judged: set[tuple[str, str]] = set()
        self.receipts = Receipts(task.heldout, log, settings.log_dir)
        self.reading = None
        if task.heldout is None:
            # What this run learns from, no later run of the study may hold out.
            note_unheld(splits, prints["metric"], self.receipts)
        else:
            self.reading = HeldoutReading(task.heldout, splits, prints, self.effects, self.receipts)

    def _keeper(self, learner: Learner, rng: random.Random) -> Keeper:
        task, settings, student = self.task, self.task.settings, self.task.student
        shown, every = task.components, settings.component_selector == "all"
        if task.is_trunk:
            proposer = self._proposer(learner) if task.edits_instructions else Serving(self.books)

            def components(step: int) -> tuple[str, ...]:
                return (
                    shown if every or not task.edits_instructions else (shown[step % len(shown)],)
                )

            proving = Proving(
                self.effects, self.pool, self.books, settings.perfect_score, proposer.allows
            )
            return Growing(
                self.effects,
                self.pool,
                self.books,
                proposer,
                proving,
                seed=task.seed,
                components=components,
                staleness=settings.search.staleness,
                skips_perfect=settings.skip_perfect_score,
            )
        custom = None
        if task.proposes_itself:
            adapter = make_adapter(
                student,
                settings.metric_fn,
                reflection_lm=settings.reflection_lm,
                custom_instruction_proposer=settings.custom_instruction_proposer,
                custom_code_proposer=settings.custom_code_proposer,
            )
            custom = CustomProposer(adapter, self.effects)
        merging = None
        # A merge takes parts of two candidates: with one component there is nothing to take.
        if settings.use_merge and len(task.components) > 1 and not task.anchors:
            merging = Merging(
                self.effects, self.pool, self.parts, settings.max_merge_invocations or 0, rng
            )
        samples = not repeats_itself(student)
        finals = Finals(settings.validation.finalists, samples=samples, effects=self.effects)
        telling = Telling(
            self.effects,
            self.pool,
            self.parts,
            task.splits.train,
            at_once=not settings.search.staleness,
        )
        return Pareto(
            self.effects,
            self.pool,
            self.parts,
            self._proposer(learner),
            custom=custom,
            merging=merging,
            finals=finals,
            seed=task.seed,
            telling=telling,
            screen=settings.search.screen,
            anchors=frozenset(row.hash for row in task.anchors),
            run_seed=settings.seed,
            staleness=settings.search.staleness,
            restart=settings.diversity.restart,
        )

    def _proposer(self, learner: Learner) -> Proposer:
        task, settings, texts = self.task, self.task.settings, self.task.seed.texts
        described = {
            name: decode_fields(texts.get(fields_key(name), "")) for name in task.components
        }
        check_program(settings.guards, {name: texts[name] for name in described}, described)
        return Proposer(
            task.student,
            task.seed,
            settings.operators,
            settings.guards,
            settings.diversity,
            learner,
            self.log.emit,
            run_seed=settings.seed,
            perfect_score=settings.perfect_score,
            books=self.books,
        )

    async def _judge(self, learned: Learned) -> None:
        """Look at what has failed; hold the metric against its reference, or against the model that
        proposes.
        """
        settings = self.task.settings
        await self.failures.check(learned.plan.step)
        # A judge held to the model that proposes must be another one.
        if self.calibrator is None or self._reference_proposes:
            check_roles_heard(
                (row for one in learned.rollouts for row in one.usage), settings.reflection_lm
            )
        if self.calibrator is None:
            return
        for row, rollout in zip(learned.plan.rows, learned.rollouts, strict=True):
            place = (learned.plan.parent.candidate.id, row.hash)
            if (
                rollout.prediction is None
                or place in self._judged
                or not self.calibrator.chosen(*place)
            ):
                continue
            self._judged.add(place)
            prediction = output_of(rollout)
            judge = partial(self.calibrator.judge, row.example, prediction)
            where = Place("calibration", learned.plan.step)
            score = await self.effects.work(
                f"calibration/{'/'.join(place)}", where, "evaluator", "feedback", judge
            )
            self.calibrator.add(rollout.score, score)
        self.calibrator.decide()

    async def compiled(self) -> tuple[dspy.Module, CombeeReport]:
        """Run the search and return the program with its report attached."""
        settings, task, seed = self.task.settings, self.task, self.task.seed
        for text in task.splits.warnings:
            self.log.emit("warning", {"text": text})
        data = {
            "candidate": seed.id,
            "texts": dict(seed.texts),
            "parents": [],
            "operator": "seed",
            "components": [],
        }
        self.log.emit("candidate", data)
        clock = Clock(self.effects, self.purse)
        with self.parts.experiment:  # W&B hears of the last tests, too
            try:
                await clock.hold(self._search)
            except BudgetReached as reached:
                await self.loop.cut_off(str(reached))
            self.log.emit("stopped", {"reason": self.loop.reason})
            calibrated = None if self.calibrator is None else self.calibrator.decide(final=True)
            try:
                chosen = await clock.hold(self.keeper.result)
            except BudgetReached:
                chosen = self.pool.best
        held, receipt, per_point, unread = None, None, None, ""
        if self.reading is not None:
            models, self.purse.reserve = models_by_role(settings), 0.0
            read = partial(
                self.reading.read, seed, chosen.candidate, seed=settings.seed, models=models
            )
            try:
                held, receipt = await clock.hold(read)
                scores = [score for member in self.pool.members for score in member.scores.values()]
                points = perfect_score_of(settings.perfect_score, scores) / 100
                per_point = self.reading.per_point(receipt, held.after, points)
            except BudgetReached as reached:
                unread = f"The held-out set was not read to its end, for lack of time: {reached}."
        report = replace(
            self._report(chosen, held, receipt, calibrated, unread), per_point=per_point
        )
        for text in (*report.warnings, *self.purse.passed()):
            self.log.emit("warning", {"text": text})
        program = serving(settings.artifact.build(task.student, chosen.candidate.texts))
        program._compiled = True
        self._tell_program(program)
        program.combee_report = report
        if settings.track_stats:
            # What DSPy reads of its adapter there.
            builder: Any = SimpleNamespace(
                build_program=partial(settings.artifact.build, task.student)
            )
            program.detailed_results = detailed_results(
                self.pool.state, builder, settings.log_dir, settings.seed
            )
        return program, report

    async def _search(self) -> None:
        settings = self.task.settings
        try:
            require_countable(
                settings.budget,
                unpriced=settings.costs.unpriced(models_by_role(settings)),
                gpus=bool(settings.costs.gpus),
            )
        except ArgumentValueError:
            await self._probe()  # of a model that is misspelt it says that there is none
            raise
        await self.loop.run(self._probe)

    def _tell_program(self, program: dspy.Module) -> None:
        """Keep the state of what is returned, without its LMs: they may hold a key, and are whoever
        loads it.
        """
        if self.task.settings.privacy.texts == "hashes":
            return
        bare = program.deepcopy()
        bare.set_lm(None)
        try:
            state = bare.dump_state()
        except Exception:
            _logger.warning(
                "The program's state cannot be written, so that no tracker gets it.", exc_info=True
            )
            return
        self.log.emit("program", {"state": self.effects.texts.scrubbed(state)})

    def best(self) -> dspy.Module | None:
        """Return the program that is best on validation so far; none before the student's
        validation.
        """
        if not self.pool.started:
            return None
        return serving(
            self.task.settings.artifact.build(self.task.student, self.pool.best.candidate.texts)
        )

    async def _probe(self) -> None:
        settings = self.task.settings
        if not settings.validation.probe:
            return
        lms = {role: lm for role, lm in lms_by_role(settings).items() if lm is not None}
        lms.setdefault("task", dspy.settings.lm)
        found = {role: lm for role, lm in lms.items() if lm is not None}
        with suppress(BudgetReached):  # what comes next is told so as well
            await self.effects.work("probe", Place("probe"), "task", "probe", lambda: probe(found))

    def _report(
        self,
        chosen: Member,
        held: Any,
        receipt: Any,
        calibrated: CalibrationResult | None,
        unread: str,
    ) -> CombeeReport:
        task, settings, splits = self.task, self.task.settings, self.task.splits
        failures, path = self.log.failures(), self.shared.journal.path
        warnings = [
            *splits.warnings,
            *self.failures.warnings(failures),
            *(receipt.warnings if receipt is not None else ()),
            *([unread] if unread else []),
        ]
        if untraced := self.loop.untraced.components():
            warnings.append(describe_untraced(untraced))
        if len(self.pool.members) == 1 and not self.keeper.proposed:
            warnings.append(
                f"No new text was ever proposed, so this run supports no claim: {self.loop.reason}."
            )
        if calibrated is not None and not calibrated.passed:
            warnings.append(
                "The judge is not shown to agree with its reference, so this run supports no"
                f" claim: {calibrated.reason}."
            )
        return CombeeReport(
            reason=self.loop.reason,
            seed_score=(self.pool.members[0] if chosen.index else chosen).mean,
            best_score=chosen.mean,
            rollouts=self.log.rollouts(),
            updates=self.loop.committed,
            seconds=self.purse.seconds,
            costs=totals(self.log.usage()),
            failures=failures,
            heldout=held,
            unread=unread,
            receipt=receipt,
            looks_recorded=self.receipts.place,
            calibration=calibrated,
            texts=dict(chosen.candidate.texts),
            digests=dict(splits.digests),
            decisions=tuple(self.loop.decisions),
            specs=specs(settings),
            models=models_by_role(settings),
            seed=settings.seed,
            warnings=tuple(dict.fromkeys(warnings)),
            journal="" if settings.log_dir is None else str(path),
            page=(
                "" if settings.log_dir is None else str(page_file(path, self.log.number, task.name))
            ),
        )


def _earlier_seconds(reader: Reader, run: int) -> float:
    """Return how long earlier parts of a run were at work: from the first effect of each stretch to
    its last.
    """
    rows = reader.rows(
        "SELECT started, ended FROM effect WHERE run = ? AND ended > 0 ORDER BY started", (run,)
    )
    seconds, until = 0.0, 0.0
    for started, ended in rows:
        seconds += max(0.0, ended - max(started, until))
        until = max(until, ended)
    return seconds


def _earlier_costs(reader: Reader, run: int) -> list[tuple[str, list[CallUsage]]]:
    """Return what each effect of earlier parts of a run has cost, with its kind as a purse knows
    it.
    """
    rows = reader.rows(
        "SELECT e.id, CASE e.kind WHEN 'rollout' THEN e.kind WHEN 'failed' THEN e.value ->> '$.of'"
        " ELSE e.kind || '/' || e.purpose END, u.role, u.model, u.calls, u.errors, u.cached,"
        " u.prompt_tokens, u.completion_tokens, u.dollars, u.gpu_seconds, u.seconds FROM usage u"
        " JOIN effect e ON e.id = u.effect WHERE e.run = ? AND e.purpose != 'heldout' ORDER BY"
        " e.id",
        (run,),
    )
    found: dict[tuple[int, str], list[CallUsage]] = {}
    for row in rows:
        found.setdefault((row[0], row[1]), []).append(CallUsage(*row[2:]))
    return [(kind, usage) for (_, kind), usage in found.items()]


def _lost(reader: Reader, run: int) -> list[Mapping[str, float]]:
    """Return what effects were granted of which an earlier part of a run was killed before it knew
    their cost.
    """
    ended: Counter[str] = Counter()
    for kind, key in reader.rows(
        "SELECT kind, key FROM effect WHERE run = ? AND kind != 'decision'", (run,)
    ):
        ended[key.removeprefix("failed/").rpartition("/")[0] if kind == "failed" else key] += 1
    given_up = "SELECT value ->> '$.unknown' FROM effect WHERE run = ? AND kind = 'failed'"
    found = [orjson.loads(row[0]) for row in reader.rows(given_up, (run,)) if row[0]]
    for row in reader.rows(
        "SELECT data FROM event WHERE run = ? AND kind = 'granted' ORDER BY id DESC", (run,)
    ):
        granted = orjson.loads(row["data"])
        ended[granted["effect"]] -= 1
        if ended[granted["effect"]] < 0:
            found.append(granted["most"])
    return found


def _replayed(place: str | None, name: str) -> Callable[[str], Any | None]:
    """Return what looks up the decisions of an earlier run."""
    if place is None:
        return lambda _: None
    with Reader(journal_file(place)) as reader:
        runs = [
            row["id"]
            for row in reader.rows("SELECT id FROM run WHERE name = ? ORDER BY id", (name,))
        ]
        if not runs:
            remedy = "Give the log_dir of an earlier run of this task."
            raise ArgumentValueError("search.replay", place, f"holds no run named {name!r}", remedy)
        sql = "SELECT key, value FROM effect WHERE run = ? AND kind = 'decision'"
        rows = reader.rows(sql, (runs[-1],))
    found = {row["key"]: orjson.loads(row["value"]) for row in rows}
    return found.get
