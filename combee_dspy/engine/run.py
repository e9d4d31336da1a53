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
from combee_dspy.engine.adapter import CombeeAdapter
from combee_dspy.engine.candidates import Candidate, candidate_id
from combee_dspy.engine.checkpoint import check_log_dir, claim_log_dir
from combee_dspy.engine.evaluator import Evaluator
from combee_dspy.engine.fanout import Fanout, SelectOnce, component_selector
from combee_dspy.engine.feedback import feedback_map
from combee_dspy.engine.listener import Listener
from combee_dspy.engine.minibatches import ControlledSampler
from combee_dspy.engine.reflection import ScanReflection
from combee_dspy.engine.sampling import EpochStream
from combee_dspy.engine.seed import seed_candidate
from combee_dspy.engine.services import Services, started
from combee_dspy.engine.settings import Models, Settings, minibatches_of, rollout_limit, specs_of, uses_scan
from combee_dspy.engine.state import RunState
from combee_dspy.engine.stop import Stopper
from combee_dspy.engine.views import ViewMaker
from combee_dspy.evaluation import PairedDifference, paired_difference
from combee_dspy.events import HeldoutEvaluated, RunFinished, RunStarted
from combee_dspy.report import CombeeReport
from combee_dspy.streams import derive_seed

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
    splits = check_splits(trainset, valset, heldout)
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
        self.state = RunState(ledger=services.ledger)
        self.limit = rollout_limit(settings, seed, splits)
        # How many children each minibatch gets, and how many minibatches an iteration draws.
        self.children = len(settings.operators) if uses_scan(settings) else 0
        self.groups = minibatches_of(settings.gepa_kwargs.get("sampling_strategy"))
        self.plans = not settings.like_gepa and "batch_sampler" not in settings.gepa_kwargs
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
        self.listener = Listener(self.adapter, self.state, services.bus.emit, self.costs)
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
            self.reflection,
            self.state,
            len(splits.train),
            least=self.groups * (1 + max(1, self.children)) + len(splits.validation) if self.plans else 0,
        )

    def costs(self) -> Mapping[str, Any]:
        """Return the run's totals as plain data."""
        return self.state.totals().to_dict()

    def execute(self) -> dspy.Module:
        """Search, read the held-out set, and return the best program."""
        self._announce()
        begun = self.state.clock()
        # A proposer that DSPy calls itself makes its calls in this thread; rollouts name their own role.
        with role_scope("proposer"):
            result = optimize(**self._arguments())
        # A stop of gepa's or the user's own may have come between the error and our next check.
        self.stopper.raise_failure()
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
            seconds=self.state.spent.seconds + self.state.clock() - begun,
            costs=self.costs(),
            heldout=heldout,
            digests=self.splits.digests,
            decisions=tuple(self.state.decisions),
            specs=specs_of(self.settings),
            models=self.models.by_role(),
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
            "trainset": list(self.splits.train),
            "valset": list(self.splits.validation),
            "adapter": self.adapter,
            "candidate_selection_strategy": settings.candidate_selection_strategy,
            "skip_perfect_score": settings.skip_perfect_score,
            "perfect_score": settings.perfect_score,
            "use_merge": settings.use_merge,
            "max_merge_invocations": settings.max_merge_invocations,
            "max_metric_calls": self.limit,
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
        arguments["module_selector"] = SelectOnce(self.selector, self.children)
        arguments["sampling_strategy"] = Fanout(self.children, self.state, strategy)
        if settings.like_gepa:
            arguments["reflection_minibatch_size"] = settings.reflection_minibatch_size
        elif self.plans:
            views = ViewMaker(self.state, self.splits, self.services.ledger, settings.aggregator, self.limit)
            arguments["batch_sampler"] = ControlledSampler(
                settings.controller,
                EpochStream(len(self.splits.train), settings.seed),
                self.state,
                views.maker(self.services.session.workers, max(1, self.children), self.groups),
                self.services.bus.emit,
            )
        return {**arguments, **extra}

    def _read_heldout(self, best: Candidate) -> PairedDifference | None:
        rows = list(self.splits.heldout)
        if not rows:
            return None
        scored = self.adapter.heldout_scores([self.seed] if best == self.seed else [self.seed, best], rows)
        found = paired_difference(scored[0], scored[-1], seed=derive_seed(self.settings.seed, "heldout"))
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
        head = message.partition("\n")[0]
        trouble = "Proposed new text" not in head and ("Exception" in head or "failed" in head)
        logger.log(logging.WARNING if trouble else logging.DEBUG, "%s", message)


def _name_of(metric: Callable[..., Any]) -> str:
    return f"{getattr(metric, '__module__', '?')}.{getattr(metric, '__qualname__', type(metric).__qualname__)}"


def _packages(*things: object) -> frozenset[str]:
    """Return the top-level packages of the user's own objects, the standard library left out."""
    found = {getattr(thing, "__module__", None) or type(thing).__module__ for thing in things}
    return frozenset(name.split(".", 1)[0] for name in found) - sys.stdlib_module_names
