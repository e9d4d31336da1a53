"""One run: wires a program, the strategies and gepa, and cleans up after them."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import dspy
from gepa import optimize

from combee_dspy.checks import Splits, check_splits, check_student
from combee_dspy.costs import role_scope
from combee_dspy.engine._private import detailed_results, flex_sources
from combee_dspy.engine.acceptance import AnchoredAcceptance, with_anchors
from combee_dspy.engine.adapter import CombeeAdapter
from combee_dspy.engine.allowance import Allowance
from combee_dspy.engine.breeding import labels_of
from combee_dspy.engine.candidates import Candidate, candidate_id
from combee_dspy.engine.checkpoint import check_log_dir, claim_log_dir, has_checkpoint, note_spending, noted_spending
from combee_dspy.engine.early_scans import EarlyScans
from combee_dspy.engine.evaluator import Evaluator
from combee_dspy.engine.fanout import Fanout
from combee_dspy.engine.feedback import feedback_map
from combee_dspy.engine.finals import affordable_finalists, choose, finals_reserve
from combee_dspy.engine.forecast import Forecast
from combee_dspy.engine.foresight import Foresight
from combee_dspy.engine.guarding import Guarding
from combee_dspy.engine.heldout import HeldoutSet
from combee_dspy.engine.judging import Judging
from combee_dspy.engine.listener import Listener
from combee_dspy.engine.minibatches import ControlledSampler
from combee_dspy.engine.recording import Recorder
from combee_dspy.engine.reflection import ScanReflection
from combee_dspy.engine.sampling import EpochStream
from combee_dspy.engine.scanning import Scanner
from combee_dspy.engine.screening import NonInferior, Screening
from combee_dspy.engine.seed import seed_candidate
from combee_dspy.engine.selecting import SelectOnce, component_selector
from combee_dspy.engine.services import Services, started
from combee_dspy.engine.settings import (
    Models,
    Settings,
    children_of,
    minibatches_of,
    rollout_limit,
    specs_of,
    uses_scan,
)
from combee_dspy.engine.spending import dump_totals, load_totals
from combee_dspy.engine.state import RunState
from combee_dspy.engine.steering import Steering
from combee_dspy.engine.stop import Stopper
from combee_dspy.engine.streaming import Streams
from combee_dspy.engine.views import ViewMaker
from combee_dspy.evaluation import Receipt
from combee_dspy.events import RunFinished, RunStarted
from combee_dspy.guards import Guards
from combee_dspy.hashing import row_hash
from combee_dspy.report import CombeeReport
from combee_dspy.rollouts import repeats_itself
from combee_dspy.stopping import Selection

__all__ = ["Settings", "search"]

logger = logging.getLogger("combee_dspy")

_SIMULATED = "{} stands for a simulated service: these figures measure no language model and support no claim."


def search(
    settings: Settings,
    student: dspy.Module,
    *,
    trainset: Sequence[dspy.Example],
    valset: Sequence[dspy.Example] | None,
    heldout: Sequence[dspy.Example] | None,
) -> dspy.Module:
    """Run the whole search (see :meth:`combee_dspy.Combee.compile`)."""
    code = flex_sources(student) if isinstance(student, dspy.Module) else {}
    check_student(student, bool(code))
    settings.executor.check_program(student, settings.metric_fn)
    splits = check_splits(trainset, valset, heldout, settings.anchors)
    selector = component_selector(settings.component_selector)
    for warning in splits.warnings if valset is not None or heldout is not None else splits.warnings[:1]:
        logger.warning(warning)
    models = Models(student, settings.reflection_lm)
    if models.simulated():
        splits = replace(splits, warnings=(*splits.warnings, _SIMULATED.format(", ".join(models.simulated()))))
    seed = seed_candidate(student, code, settings.operators if uses_scan(settings) else ())
    identity = {**splits.digests, "seed candidate": candidate_id(seed), "metric": _name_of(settings.metric_fn)}
    check_log_dir(settings.log_dir, identity, trusted=_packages(student, settings.metric_fn), seed=seed)
    with started(settings, models) as services:
        claim_log_dir(settings.log_dir, identity)
        return _Run(settings, student, splits, seed, selector, models, services).execute()


class _Run:
    """The parts of one run, wired. Used once."""

    def __init__(
        self,
        settings: Settings,
        student: dspy.Module,
        splits: Splits,
        seed: Candidate,
        selector: Callable[..., Sequence[str]],
        models: Models,
        services: Services,
    ) -> None:
        self.settings = settings
        self.splits = splits
        self.seed = seed
        self.selector = selector
        self.models = models
        self.services = services
        self.state = RunState(ledger=services.ledger, spent_in_all=load_totals(noted_spending(settings.log_dir)))
        self.limit = rollout_limit(settings, seed, splits)
        # Flex programs are measured by DSPy's own means, which know no further draws.
        self.redraws = not (settings.like_gepa or repeats_itself(student) or flex_sources(student))
        kept = finals_reserve(self.limit, settings.finalists, len(splits.validation)) if self.redraws else 0
        self.search_limit = None if self.limit is None else self.limit - kept
        # How many children each minibatch gets, and how many minibatches an iteration draws.
        self.children = children_of(settings)
        self.groups = minibatches_of(settings.gepa_kwargs.get("sampling_strategy"))
        # Anchors stand behind the training examples, unless they are among them.
        self.train, self.anchors = with_anchors(splits.train, settings.anchors)
        self.name = f"{type(student).__name__} seed {settings.seed}"
        self.judging = Judging(settings, services.ledger.prices, self.limit)
        self.heldout = HeldoutSet(settings, splits, self.judging.final, self.name, models.by_role())
        self.plans = not settings.like_gepa and "batch_sampler" not in settings.gepa_kwargs
        self.adapter = CombeeAdapter(
            state=self.state,
            like_gepa=settings.like_gepa,
            scrubbed=services.scrub,
            student_module=student,
            metric_fn=self.judging.metric,
            feedback_map=feedback_map(student, self.judging.metric),
            failure_score=settings.failure_score,
            num_threads=services.session.slots,
            add_format_failure_as_feedback=settings.add_format_failure_as_feedback,
            rng=random.Random(settings.seed),  # noqa: S311 - gepa's own stream, seeded as dspy.GEPA seeds it
            reflection_lm=settings.reflection_lm,
            custom_instruction_proposer=settings.custom_instruction_proposer,
            custom_code_proposer=settings.custom_code_proposer,
            warn_on_score_mismatch=settings.warn_on_score_mismatch,
            reflection_minibatch_size=settings.reflection_minibatch_size,
        )
        self.evaluator = Evaluator(
            self.adapter.build_program,
            self.judging.metric,
            settings.failure_score,
            services.session,
            self.judging.listening(services.bus.emit, services.ledger.snapshot),
            memoize=settings.memoize,
            cache=services.cache,
            look=services.bus.raise_ending,
            keep_traces=splits.train_hashes | {row_hash(row) for row in settings.anchors},
        )
        self.adapter.attach(self.evaluator, self.judging)
        self.state.labels = tuple(labels_of(settings.operators))
        self.guarding = Guarding(settings, seed, self.adapter.flex_components, self.train, self.state)
        if not settings.like_gepa or settings.guards != Guards():
            # Parity sends and keeps what dspy.GEPA does, unless the user has set guards.
            self.adapter.bind(self.guarding.proposed)
        # A static size of the user's own may be smaller than GEPA's minibatch; nothing else should be.
        few = min(3, len(splits.train), settings.reflection_minibatch_size or 3)
        least = self.groups * few * (1 + max(1, self.children)) + len(splits.validation) if self.plans else 0
        scanner = Scanner(
            self.adapter,
            settings.aggregator,
            services.bus.emit,
            seed=settings.seed,
            perfect_score=settings.perfect_score,
            guarding=self.guarding,
            operators=settings.operators,
        )
        streams = Streams()
        self.reflection = ScanReflection(
            self.adapter, settings, self.guarding, services.port.at, services.bus.emit, self.state, scanner, streams
        )
        epochs = None if settings.budget is None else settings.budget.epoch_limit()
        self.allowance = Allowance(
            self.state,
            share=settings.speculation,
            validation=len(splits.validation),
            screen=settings.screen,
            epoch=len(splits.train),
            limit=self.search_limit,
            least=least,
            last=None if epochs is None else epochs * len(splits.train),
        )
        self.foresight = Foresight(
            settings,
            self.state,
            self.evaluator,
            EarlyScans(settings, self.state, scanner, streams, services.port.at),
            validation=splits.validation,
            allowance=self.allowance,
        )
        # A criterion of the user's own compares whole minibatches; programs with code are evaluated by DSPy.
        whole = "acceptance_criterion" in settings.gepa_kwargs or self.adapter.flex_components
        self.screen = settings.screen if uses_scan(settings) and not whole else None
        self.screening: Screening | None = None
        if uses_scan(settings):
            anchored = frozenset(row_hash(row) for row in settings.anchors)
            self.screening = Screening(
                settings.seed,
                self.screen or len(self.train),
                anchored,
                lambda: self.state.proposed,
                services.bus.emit,
                settings.failure_score,
            )
            self.adapter.look_ahead(self.foresight, self.screening, Recorder(scanner, streams, self.state))
        self.listener = Listener(
            self.adapter,
            self.state,
            services.bus.emit,
            self.costs,
            self.foresight,
            self.screening,
            lambda: services.growth.look(self.state, services.session.account()),
        )
        self.stopper = Stopper(
            settings.budget,
            self.search_limit,
            self.reflection,
            self.state,
            len(splits.train),
            least=least,
            between=self._between,
            tell=services.bus.emit,
            decisions=services.decisions,
        )

    def _between(self, iteration: int) -> None:
        """Do what is due while nothing is in flight."""
        self.judging.step(iteration, self.state.totals(), self.services.bus.emit)
        if self.judging.changes:
            self.evaluator.rescore()

    def costs(self) -> Mapping[str, Any]:
        """Return the run's totals as plain data."""
        return self.state.totals().to_dict()

    def execute(self) -> dspy.Module:
        """Search, read the held-out set, and return the best program."""
        self._announce()
        self.heldout.announce(self.services.bus.emit)
        begun = self.state.clock()
        # A proposer that DSPy calls itself makes its calls in this thread; rollouts name their own role.
        with role_scope("proposer"):
            try:
                result = optimize(**self._arguments())
            except BaseException:
                self.foresight.close(failed=True)
                raise
            self.foresight.close()
        reason = self.stopper.ended()
        chosen = self._choose(result)
        best: Candidate = result.candidates[chosen.index]
        program = self.adapter.build_program(best)
        if self.settings.track_stats:
            program.detailed_results = detailed_results(result, self.adapter)
        receipt = self._read_heldout(best)
        note_spending(self.settings.log_dir, dump_totals(self.state.totals()))
        scores = result.val_aggregate_scores
        report = CombeeReport(
            reason=reason,
            seed_score=scores[0],
            best_score=chosen.score,
            # gepa did not see the finalists' further draws.
            rollouts=result.total_metric_calls + self.state.unbilled,
            speculative=self.state.wasted,
            speculative_reads=self.state.wasted_reads,
            iterations=self.state.iteration,
            seconds=self.state.spent.seconds + self.state.clock() - begun,
            costs=self.costs(),
            heldout=None if receipt is None else receipt.difference(),
            receipt=receipt,
            selection=chosen,
            digests=self.splits.digests,
            decisions=tuple(self.state.decisions),
            specs=specs_of(self.settings),
            models=self.models.by_role(),
            seed=self.settings.seed,
            warnings=(*self.splits.warnings, *self.heldout.warnings, *_looked_before(receipt)),
        )
        self.services.session.tell()
        self.services.bus.emit(
            RunFinished(
                iteration=self.state.iteration,
                reason=report.reason,
                best_index=chosen.index,
                best_score=report.best_score,
                texts=dict(best),
                rollouts=report.rollouts,
                seconds=report.seconds,
                costs=report.costs,
                state=self._state_of(best),
            )
        )
        program.combee_report = report
        return program

    def _announce(self) -> None:
        settings, splits = self.settings, self.splits
        sizes = {"train": len(splits.train), "validation": len(splits.validation), "heldout": len(splits.heldout)}
        self.services.bus.emit(
            RunStarted(
                name=self.name,
                seed=settings.seed,
                sizes=sizes,
                digests=splits.digests,
                specs=specs_of(settings),
                models=self.models.by_role(),
                components=dict(self.seed),
                warnings=splits.warnings,
            )
        )

    def _arguments(self) -> dict[str, Any]:
        """Return the arguments of ``gepa.optimize``."""
        settings, extra = self.settings, dict(self.settings.gepa_kwargs)
        stops = extra.pop("stop_callbacks", None) or []
        callbacks = list(extra.pop("callbacks", None) or [])
        strategy = extra.pop("sampling_strategy", None)
        arguments: dict[str, Any] = {
            "seed_candidate": self.seed,
            "trainset": self.train,
            "valset": list(self.splits.validation),
            "adapter": self.adapter,
            "candidate_selection_strategy": settings.candidate_selection_strategy,
            "skip_perfect_score": settings.skip_perfect_score,
            "perfect_score": settings.perfect_score,
            "use_merge": settings.use_merge,
            "max_merge_invocations": settings.max_merge_invocations,
            "max_metric_calls": self.search_limit,
            "stop_callbacks": [self.stopper, *(stops if isinstance(stops, Sequence) else [stops])],
            "logger": _GepaLog(),
            "run_dir": settings.log_dir,
            "callbacks": [self.listener, *callbacks],
            "use_wandb": settings.use_wandb,
            "wandb_api_key": settings.wandb_api_key,
            "wandb_init_kwargs": settings.wandb_init_kwargs,
            "track_best_outputs": settings.track_best_outputs,
            "display_progress_bar": False,
            "raise_on_exception": True,
            "seed": settings.seed,
        }
        if "reflection_strategy" in extra:
            self.adapter.leave_proposals()
        elif uses_scan(settings):
            # A reflection strategy gets all proposals of an iteration at once; an adapter gets them one by one.
            self.adapter.leave_proposals()
            arguments["reflection_strategy"] = self.reflection
        selector = SelectOnce(self.selector, self.children)
        arguments["module_selector"] = selector
        if self.screening is not None:
            arguments["acceptance_criterion"] = extra.pop("acceptance_criterion", NonInferior(self.screening))
        if settings.anchors:
            arguments["acceptance_criterion"] = AnchoredAcceptance(
                arguments.pop("acceptance_criterion", None) or extra.pop("acceptance_criterion", "strict_improvement"),
                self.anchors,
            )
            # A merge is compared on validation examples alone: nothing would ask the anchors.
            arguments["use_merge"] = False
        sampler = self._sampler()
        if settings.like_gepa:
            arguments["reflection_minibatch_size"] = settings.reflection_minibatch_size
        elif sampler is not None:
            arguments["batch_sampler"] = sampler
        if sampler is not None and self.screening is not None:
            resumes = settings.log_dir is not None and has_checkpoint(settings.log_dir)
            forecast = Forecast(
                sampler,
                selector,
                self.state,
                self.seed,
                self.train,
                groups=self.groups,
                validation=len(self.splits.validation),
                resumes=resumes,
            )
            self.foresight.watch(forecast)
        steering = Steering(settings, self.state, self.children, self.guarding.front_similarity, self.services.bus.emit)
        ahead = settings.staleness and not self.adapter.flex_components
        stale = sampler.forward if sampler is not None and ahead else None
        arguments["sampling_strategy"] = Fanout(
            steering, self.foresight, selector, self.state, self.allowance, inner=strategy, stale=stale
        )
        if settings.guards.max_tokens is not None and any(operator.edits_fields for operator in settings.operators):
            # A merge may join one candidate's instruction with another's descriptions: nobody would ask the budget.
            arguments["use_merge"] = False
        return {**arguments, **extra}

    def _sampler(self) -> ControlledSampler | None:
        """Return the sampler whose size the controller plans; ``None`` where minibatches are not ours."""
        if not self.plans:
            return None
        settings, splits = self.settings, self.splits
        views = ViewMaker(self.state, splits, self.services.ledger, settings.aggregator, self.search_limit)
        return ControlledSampler(
            self.services.decisions.planned(settings.controller),
            self.services.decisions.guessed(settings.controller),
            EpochStream(len(splits.train), settings.seed),
            self.state,
            views.maker(
                lambda: self.services.session.slots,
                max(1, self.children),
                self.groups,
                self.screen,
            ),
            self.services.bus.emit,
            self.anchors,
        )

    def _state_of(self, best: Candidate) -> dict[str, Any]:
        """Return the program's state without its LMs: what a run learned is texts and demonstrations."""
        program = self.adapter.build_program(best)
        for predictor in program.predictors():
            predictor.lm = None
        state: dict[str, Any] = program.dump_state()
        return state

    def _choose(self, result: Any) -> Selection:
        """Choose the candidate to return, after another draw of the best where that tells something."""
        settings = self.settings
        rows = list(self.splits.validation)
        count = min(settings.finalists, len(result.candidates))
        most = count
        if self.limit is not None:
            left = self.limit - result.total_metric_calls - self.state.unbilled
            most = affordable_finalists(count, left, len(rows))
        if most < 2 or not self.redraws or self.stopper.cost_reached:
            chosen = choose(result, 1, seed=settings.seed, draw=None)
        else:
            chosen = choose(
                result,
                count,
                seed=settings.seed,
                most=most,
                draw=lambda candidates, ids: self.adapter.another_draw(candidates, [rows[number] for number in ids]),
            )
        self.services.bus.emit(chosen.event(self.state.iteration))
        return chosen

    def _read_heldout(self, best: Candidate) -> Receipt | None:
        emit, iteration = self.services.bus.emit, self.state.iteration
        self.judging.step(iteration, self.state.totals(), emit, final=True)
        if self.judging.changes:
            self.evaluator.rescore(self.judging.final)
        return self.heldout.read(self.seed, best, self.adapter.heldout_scores, emit, iteration)


def _looked_before(receipt: Receipt | None) -> tuple[str, ...]:
    if receipt is None or not receipt.looks:
        return ()
    return (f"The held-out set had been read {receipt.looks} times before in this study: this is no first look.",)


class _GepaLog:
    """gepa's logger."""

    def log(self, message: str) -> None:
        """Pass a line of gepa on. Its proposals are long: they are debugging output."""
        head = message.partition("\n")[0]
        trouble = "Proposed new text" not in head and ("Exception" in head or "failed" in head)
        logger.log(logging.WARNING if trouble else logging.DEBUG, "%s", message)


def _name_of(metric: Callable[..., Any]) -> str:
    return f"{getattr(metric, '__module__', '?')}.{getattr(metric, '__qualname__', type(metric).__qualname__)}"


def _packages(*things: object) -> frozenset[str]:
    """Return the top-level packages of the user's own objects, the standard library left out."""
    found = {getattr(thing, "__module__", None) or type(thing).__module__ for thing in things}
    return frozenset(name.split(".", 1)[0] for name in found) - sys.stdlib_module_names
