"""One run: wires a program, the strategies and gepa, and cleans up after them."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import dspy
from gepa import optimize

from combee_dspy.aggregators import Aggregator
from combee_dspy.checks import Splits, check_splits, check_student
from combee_dspy.controllers import BatchController
from combee_dspy.costs import Ledger, LedgerRecorder, PriceTable, role_scope
from combee_dspy.engine._private import AUTO_CANDIDATES, auto_budget, detailed_results, flex_sources
from combee_dspy.engine.adapter import CombeeAdapter, feedback_map
from combee_dspy.engine.candidates import Candidate, candidate_id
from combee_dspy.engine.checkpoint import check_log_dir, claim_log_dir
from combee_dspy.engine.evaluator import Evaluator
from combee_dspy.engine.fanout import Fanout, SelectOnce, component_selector
from combee_dspy.engine.listener import Listener
from combee_dspy.engine.minibatches import ControlledSampler
from combee_dspy.engine.reflection import ScanReflection
from combee_dspy.engine.sampling import EpochStream
from combee_dspy.engine.seed import seed_candidate
from combee_dspy.engine.state import RunState
from combee_dspy.engine.stop import Stopper
from combee_dspy.engine.views import ViewMaker
from combee_dspy.evaluation import PairedDifference, paired_difference
from combee_dspy.events import HeldoutEvaluated, RunFinished, RunStarted
from combee_dspy.lms import LMPort, probe
from combee_dspy.operators import Operator
from combee_dspy.registry import Spec
from combee_dspy.report import CombeeReport
from combee_dspy.rollouts import Executor, ExecutorSession
from combee_dspy.stopping import Budget, StoppingRule, require_prices
from combee_dspy.streams import derive_seed
from combee_dspy.tracking import EventBus, Hook, Progress, Tracker

__all__ = ["Settings", "search"]

logger = logging.getLogger("combee_dspy")


class Settings(Protocol):
    """What a run reads of :class:`combee_dspy.Combee`."""

    metric_fn: Callable[..., Any]
    auto: str | None
    max_full_evals: int | None
    max_metric_calls: int | None
    reflection_minibatch_size: int | None
    candidate_selection_strategy: Any
    reflection_lm: Any
    skip_perfect_score: bool
    add_format_failure_as_feedback: bool
    custom_instruction_proposer: Callable[..., Any] | None
    custom_code_proposer: Callable[..., Any] | None
    component_selector: Any
    use_merge: bool
    max_merge_invocations: int | None
    num_threads: int | None
    failure_score: float
    perfect_score: float
    log_dir: str | None
    track_stats: bool
    use_wandb: bool
    wandb_api_key: str | None
    wandb_init_kwargs: dict[str, Any] | None
    track_best_outputs: bool
    warn_on_score_mismatch: bool
    seed: int
    gepa_kwargs: dict[str, Any]
    aggregator: Aggregator
    operators: tuple[Operator, ...]
    controller: BatchController
    executor: Executor
    budget: StoppingRule | None
    tracker: Tracker | None
    hooks: tuple[Hook, ...]
    prices: dict[str, Any]
    memoize: bool
    like_gepa: bool
    probe: bool
    progress: bool | None


@dataclass(frozen=True, slots=True)
class _Services:
    """What lives as long as a run."""

    session: ExecutorSession
    bus: EventBus
    ledger: Ledger
    port: LMPort

    def costs(self) -> Mapping[str, Any]:
        """Return the ledger's totals as plain data."""
        return self.ledger.snapshot().to_dict()


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
    splits = check_splits(trainset, valset, heldout)
    selector = component_selector(settings.component_selector)
    for warning in splits.warnings if valset is not None or heldout is not None else splits.warnings[:1]:
        logger.warning(warning)
    seed = seed_candidate(student, code, settings.operators if _uses_scan(settings) else ())
    identity = {**splits.digests, "seed candidate": candidate_id(seed), "metric": _name_of(settings.metric_fn)}
    check_log_dir(settings.log_dir, identity, trusted=_packages(student, settings.metric_fn))
    with _services(settings) as services:
        claim_log_dir(settings.log_dir, identity)
        return _Run(settings, student, splits, seed, selector, services).execute()


class _Run:
    """The parts of one run, wired. Used once."""

    def __init__(
        self,
        settings: Settings,
        student: dspy.Module,
        splits: Splits,
        seed: Candidate,
        selector: Callable[..., Sequence[str]],
        services: _Services,
    ) -> None:
        self.settings = settings
        self.splits = splits
        self.seed = seed
        self.selector = selector
        self.services = services
        self.state = RunState()
        self.limit = _rollout_limit(settings, len(seed), splits)
        self.adapter = CombeeAdapter(
            state=self.state,
            like_gepa=settings.like_gepa,
            student_module=student,
            metric_fn=settings.metric_fn,
            feedback_map=feedback_map(student, settings.metric_fn),
            failure_score=settings.failure_score,
            num_threads=services.session.workers,
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
            settings.metric_fn,
            settings.failure_score,
            services.session,
            services.bus.emit,
            memoize=settings.memoize,
            keep_traces=splits.train_hashes,
        )
        self.adapter.attach(self.evaluator)
        self.listener = Listener(self.adapter, self.state, services.bus.emit, services.costs)
        self.reflection = ScanReflection(
            self.adapter,
            settings.aggregator,
            settings.operators,
            services.port.predict,
            services.bus.emit,
            self.state,
            seed=settings.seed,
            perfect_score=settings.perfect_score,
        )
        self.stopper = Stopper(
            settings.budget,
            self.limit,
            services.ledger,
            self.listener,
            self.reflection,
            self.state,
            len(splits.train),
        )

    def execute(self) -> dspy.Module:
        """Search, read the held-out set, and return the best program."""
        self._announce()
        started = self.state.clock()
        # A proposer that DSPy calls itself makes its calls in this thread; rollouts name their own role.
        with role_scope("proposer"):
            result = optimize(**self._arguments())
        best: Candidate = result.best_candidate
        program = self.adapter.build_program(best)
        if self.settings.track_stats:
            program.detailed_results = detailed_results(result, self.adapter)
        heldout = self._read_heldout(best)
        scores = result.val_aggregate_scores
        report = CombeeReport(
            reason=self.stopper.reason or "gepa stopped",
            seed_score=scores[0],
            best_score=scores[result.best_idx],
            rollouts=result.total_metric_calls,
            iterations=self.state.iteration,
            seconds=self.state.clock() - started,
            costs=self.services.costs(),
            heldout=heldout,
            digests=self.splits.digests,
            decisions=tuple(self.state.decisions),
            specs=_specs(self.settings),
            seed=self.settings.seed,
            warnings=self.splits.warnings,
        )
        self.services.bus.emit(
            RunFinished(
                iteration=self.state.iteration,
                reason=report.reason,
                best_index=result.best_idx,
                best_score=report.best_score,
                texts=dict(best),
                rollouts=report.rollouts,
                seconds=report.seconds,
                costs=report.costs,
            )
        )
        program.combee_report = report
        return program

    def _announce(self) -> None:
        settings, splits = self.settings, self.splits
        sizes = {"train": len(splits.train), "validation": len(splits.validation), "heldout": len(splits.heldout)}
        student = type(self.adapter.student).__name__
        self.services.bus.emit(
            RunStarted(
                name=f"{student} seed {settings.seed}",
                seed=settings.seed,
                sizes=sizes,
                digests=splits.digests,
                specs=_specs(settings),
                models=_models(settings),
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
            "trainset": list(self.splits.train),
            "valset": list(self.splits.validation),
            "adapter": self.adapter,
            "candidate_selection_strategy": settings.candidate_selection_strategy,
            "skip_perfect_score": settings.skip_perfect_score,
            "module_selector": SelectOnce(self.selector),
            "perfect_score": settings.perfect_score,
            "use_merge": settings.use_merge,
            "max_merge_invocations": settings.max_merge_invocations,
            "max_metric_calls": self.limit,
            "stop_callbacks": [*(stops if isinstance(stops, Sequence) else [stops]), self.stopper],
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
        children = 0
        if "reflection_strategy" in extra:
            self.adapter.propose_new_texts = None
        elif _uses_scan(settings):
            # A reflection strategy gets all proposals of an iteration at once; an adapter gets them one by one.
            self.adapter.propose_new_texts = None
            arguments["reflection_strategy"] = self.reflection
            children = len(settings.operators)
        arguments["sampling_strategy"] = Fanout(children, self.state, strategy)
        if settings.like_gepa:
            arguments["reflection_minibatch_size"] = settings.reflection_minibatch_size
        elif "batch_sampler" not in extra:
            views = ViewMaker(self.state, self.splits, self.services.ledger, settings.aggregator, self.limit)
            arguments["batch_sampler"] = ControlledSampler(
                settings.controller,
                EpochStream(len(self.splits.train), settings.seed),
                self.state,
                views.maker(self.services.session.workers, max(1, children)),
                self.services.bus.emit,
            )
        return {**arguments, **extra}

    def _read_heldout(self, best: Candidate) -> PairedDifference | None:
        rows = list(self.splits.heldout)
        if not rows:
            return None
        items = [(self.seed, rows)] if best == self.seed else [(self.seed, rows), (best, rows)]
        scored = self.evaluator.evaluate(items, purpose="heldout", iteration=self.state.iteration)
        before, after = scored[0].rollouts, scored[-1].rollouts
        found = paired_difference(
            [rollout.score for rollout in before],
            [rollout.score for rollout in after],
            seed=derive_seed(self.settings.seed, "heldout"),
        )
        self.services.bus.emit(
            HeldoutEvaluated(
                iteration=self.state.iteration,
                before=found.before,
                after=found.after,
                interval=(found.low, found.high),
                confidence=found.confidence,
                size=found.size,
                digest=self.splits.digests["heldout"],
            )
        )
        return found


class _GepaLog:
    """gepa's logger."""

    def log(self, message: str) -> None:
        """Pass a line of gepa on. Its proposals are long: they are debugging output."""
        logger.debug(message)


@contextmanager
def _services(settings: Settings) -> Iterator[_Services]:
    """Start what a run needs, and stop it whatever happens."""
    ledger = Ledger(PriceTable(settings.prices))
    task_lm = dspy.settings.lm
    lms = {"task": task_lm, "proposer": settings.reflection_lm or task_lm}
    recorder = LedgerRecorder(ledger)
    with recorder.installed():
        models = {role: lm.model for role, lm in lms.items() if lm is not None}
        require_prices(settings.budget, models, ledger.prices)
        if settings.probe:
            probe({role: lm for role, lm in lms.items() if lm is not None})
        workers = settings.num_threads or dspy.settings.num_threads
        hooks = list(settings.hooks)
        if settings.progress if settings.progress is not None else sys.stderr.isatty():
            hooks.append(Progress())
        if settings.tracker is not None:
            hooks.append(settings.tracker.open())
        bus = EventBus(hooks)
        session = settings.executor.start(workers)
        try:
            yield _Services(session, bus, ledger, LMPort(session, lms))
        finally:
            session.close()
            bus.close()


def _uses_scan(settings: Settings) -> bool:
    """Whether the reducer proposes, rather than a proposer of DSPy's or the user's."""
    return (
        not settings.like_gepa
        and settings.custom_instruction_proposer is None
        and "reflection_strategy" not in settings.gepa_kwargs
    )


def _rollout_limit(settings: Settings, components: int, splits: Splits) -> int | None:
    """Return the budget in rollouts, by GEPA's own arithmetic."""
    own_valset = splits.validation is not splits.train
    if settings.auto is not None:
        limit: int | None = auto_budget(max(components, 1), AUTO_CANDIDATES[settings.auto], len(splits.validation))
    elif settings.max_full_evals is not None:
        limit = settings.max_full_evals * (len(splits.train) + (len(splits.validation) if own_valset else 0))
    else:
        limit = settings.max_metric_calls
    asked = settings.budget.rollouts if isinstance(settings.budget, Budget) else None
    return min((int(value) for value in (limit, asked) if value is not None), default=None)


def _specs(settings: Settings) -> dict[str, Any]:
    strategies = {
        "aggregator": Spec.of(settings.aggregator).to_dict(),
        "operators": [Spec.of(operator).to_dict() for operator in settings.operators],
        "controller": Spec.of(settings.controller).to_dict(),
        "executor": Spec.of(settings.executor).to_dict(),
    }
    return strategies if _uses_scan(settings) else {"proposer": "dspy", **strategies}


def _models(settings: Settings) -> dict[str, str]:
    task = getattr(dspy.settings.lm, "model", "set per predictor")
    return {"task": task, "proposer": getattr(settings.reflection_lm, "model", task)}


def _name_of(metric: Callable[..., Any]) -> str:
    return f"{getattr(metric, '__module__', '?')}.{getattr(metric, '__qualname__', type(metric).__qualname__)}"


def _packages(*things: object) -> frozenset[str]:
    """Return the top-level packages of the user's own objects, the standard library left out."""
    found = {getattr(thing, "__module__", None) or type(thing).__module__ for thing in things}
    return frozenset(name.split(".", 1)[0] for name in found) - sys.stdlib_module_names
