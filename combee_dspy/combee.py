"""``Combee``: the teleprompter."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, get_args

import dspy
from dspy.teleprompt.teleprompt import Teleprompter

from combee_dspy.aggregators import Aggregator, SingleCall
from combee_dspy.artifacts import Artifact, Instruction, PlaybookArtifact
from combee_dspy.checks import as_diversity, check_metric, check_positive, checked_guards, memoizes
from combee_dspy.controllers import BatchController, Static
from combee_dspy.costs import PriceTable, check_gpus
from combee_dspy.diversity import Diversity
from combee_dspy.evaluation import Calibration, CostCeiling, HeldoutTerms, ReceiptBook
from combee_dspy.exceptions import ArgumentError, ArgumentTypeError, ArgumentValueError
from combee_dspy.gepa_kwargs import checked_gepa_kwargs
from combee_dspy.guards import Guards
from combee_dspy.operators import Operator
from combee_dspy.records import Role
from combee_dspy.registry import Spec, resolve
from combee_dspy.rollouts import EvaluationCache, Executor
from combee_dspy.stopping import StoppingRule
from combee_dspy.strategies import Strategy
from combee_dspy.tracking import Hook, Tracker

__all__ = ["Combee"]

GEPA_MINIBATCH = 3
"""Default minibatch of ``dspy.GEPA``."""

DEFAULT_OPERATORS = ("insert",)


class Combee(Teleprompter):
    """Learns a program's prompts from many rollouts at once. A drop-in for ``dspy.GEPA``.

    GEPA's search is kept (Pareto front, acceptance, merge, checkpoints); what one
    reflection call did over three rollouts is done by a parallel scan over many.
    Wherever a script says ``dspy.GEPA(…)``, ``Combee(…)`` works with the same
    arguments. Some defaults differ, first of all the size of minibatches, which is planned
    (``reflection_minibatch_size=None``); the README lists them, and :meth:`parity` has GEPA's.

    An object may compile several programs, one after the other. It keeps no
    state of a run. Not for use by several threads at once.

    Args:
        metric: ``(gold, pred, trace, pred_name, pred_trace)`` to a number, or to a
            ``dspy.Prediction`` with ``score``, ``feedback`` and ``objective_scores``.
        auto: GEPA's budget presets. Give at most one of ``auto``,
            ``max_full_evals`` and ``max_metric_calls``. ``budget`` may stand alone or
            beside it: the first limit that is reached stops the run.
        max_full_evals: Budget in passes over train and validation set.
        max_metric_calls: Budget in rollouts. Like GEPA's it is soft: it is looked
            at between iterations.
        reflection_minibatch_size: Examples in a minibatch; given, the size is
            static. ``None`` leaves it to ``controller``.
        candidate_selection_strategy: As in gepa.
        reflection_lm: The proposer's LM.
        skip_perfect_score: Whether minibatches without a mistake are skipped.
        add_format_failure_as_feedback: Whether answers that did not parse are reflected on.
        instruction_proposer: A proposer of GEPA's kind; it then makes the new
            instructions instead of ``aggregator`` and ``operators``.
        code_proposer: Proposer for the code of ``dspy.Flex`` parts.
        component_selector: As in gepa.
        use_merge: Whether gepa merges candidates.
        max_merge_invocations: How often.
        num_threads: Rollouts and LM calls in flight at most; fewer where the service says that it is full. By
            default the run finds out how many its service takes: it begins with
            ``dspy.settings.num_threads``, which is 8 unless set, and goes up to 256.
        failure_score: Score of a rollout that failed.
        perfect_score: Score of a success.
        log_dir: Directory for checkpoints; compiling again with it resumes.
        track_stats: Attach ``detailed_results`` to the program.
        use_wandb: As in gepa.
        wandb_api_key: As in gepa.
        wandb_init_kwargs: As in gepa.
        track_best_outputs: Keep the best outputs on the validation set.
        warn_on_score_mismatch: Warn when the metric's score depends on ``pred_name``.
        use_mlflow: The same as ``tracker="mlflow"``.
        seed: Seed of everything random. ``None`` draws one, and logs it.
        gepa_kwargs: Further arguments of ``gepa.optimize``; none that Combee sets itself.
        artifact: What is learned: ``"instruction"``, by gepa's search, or ``"playbook"``, ACE's bullets
            that deltas edit (see :class:`~combee_dspy.artifacts.PlaybookArtifact`). A playbook has
            no search: each minibatch is predicted, reflected on and curated, by shards of
            ``aggregator``'s shuffle; its epochs bound the run, a budget may end it sooner.
        aggregator: Turns reflections into lessons: a name, or an object. By default ``union``:
            the paper's shards, sixteen records at most in each, joined by code rather than by further
            calls. In this project's simulated sweep it kept the most lessons of large batches; the paper's own
            is ``parallel-scan``. ``single-call`` with its defaults, a ``reflection_minibatch_size`` and nothing else of
            Combee's own is parity with ``dspy.GEPA``: see :meth:`parity`.
        operators: Each makes one child from what one scan taught. By default ``insert``: instructions
            are edited, as GEPA's are, at about GEPA's tokens. With ``few-shot-swap`` beside it
            demonstrations are learned too: they help small models most, every rollout reads them, and a
            second child is validated.
        controller: Plans the size of minibatches. By default ``power-law``.
        executor: Where rollouts and LM calls run.
        budget: A stopping rule, such as ``Budget`` with limits in rollouts, calls, tokens,
            dollars and seconds; rules compose with ``|`` and ``&``.
        tracker: Where the run is recorded: ``"mlflow"``, an object, or ``None``.
        hooks: Objects that hear every event.
        prices: :class:`~combee_dspy.costs.Price` by model name, over the built-in list prices.
        gpus: GPUs that serve each role, for GPU-seconds: ``{"task": 8}``. A role that is left out has none to count.
        children: Children made of each minibatch, each by another operator. By default as
            many as there are operators; with fewer, operators are drawn by what they
            have brought on validation.
        diversity: What is done against collapse (see :class:`~combee_dspy.diversity.Diversity`);
            ``False`` for nothing.
        guards: What no edit may break: a token budget, protected rules, no copied
            examples (see :class:`~combee_dspy.guards.Guards`).
        anchors: Examples that are in every minibatch and may not regress: a child that scores lower
            than its parent on one is refused. They cost a rollout each for every child, and
            switch gepa's merge off, which would not ask them.
        fallback: ``"best-node"`` lets the lessons of a scan's node stand in for those of its root
            where they do better on a screen.
        screen: Examples of its minibatch that a child runs on before its validation; the parent has run
            on all of them. A child that they do not show to be worse is validated (see
            :class:`~combee_dspy.engine.screening.Screening`).
        staleness: 1 lets the next iteration's minibatch run beside this one, on a parent chosen before this
            one's children are known: faster, and its effect on quality is measured on the results page.
        speculation: The largest share of the calls of an epoch, rollouts and reads of them, that may be made on a
            guess and not be needed, in [0, 1), to within half a per cent of itself; one minibatch may pass it
            where the first children are refused. They are counted in the budget and reported
            (``report.speculative``, ``report.speculative_reads``).
        rescue: Whether reflections that a scan's result does not cover are offered to the next scan, once.
        lesson_ledger: Whether lessons that a parent's text lacks, because a sibling's child
            found them or was refused, are offered to its next update.
        calibration: Compares a judge with a trusted reference on a share of the rollouts, and ends the run
            where they disagree. Needed where the metric's LM is the one that proposes.
        ceiling: What one evaluation may cost on average before a cheaper proxy takes over.
        heldout_terms: What the held-out set is to show: a target, power, confidence.
        receipts: Where readings of the held-out set are noted, so that a study cannot move it: a file,
            or a :class:`~combee_dspy.evaluation.ReceiptBook`; by default a file in ``log_dir``.
        finalists: How many of the best candidates may be validated once more before one is chosen: the best and
            those within reach of it (a sign test with p of a quarter or more), where the task LM samples and the
            budget has room for it, which a reached limit in calls, tokens, dollars, seconds or GPU-seconds has
            not. 1 chooses at once.
        memoize: Whether a (candidate, example) pair is bought only once in a run. By
            default it is, except in parity with ``dspy.GEPA``, which buys it again.
        cache: Where rollouts that have been paid for are kept: a path, for every run that names
            it, or an :class:`~combee_dspy.EvaluationCache` that several runs share. By default
            the run has one of its own, in memory; ``False`` is ``memoize=False``.
        probe: Whether each LM is asked for one token before anything is bought.
        progress: Whether progress is shown; by default when stderr is a terminal.
        replay: The ``log_dir`` of an earlier run, or its schedule file. What that run decided by the clock, the service
            or the bill is done again: the sizes of its minibatches, the order in which its tasks began, where a
            budget in seconds or dollars or a callback ended it, and that finalists were not drawn again there. With
            the same program, data, settings and ``seed`` this gives the same candidates and scores, whatever
            ``num_threads`` is, where the models answer the same.

    Raises:
        ArgumentTypeError: An argument has a type that cannot be used.
        ArgumentValueError: An argument has a value that cannot be used.
        UnknownStrategyError: A strategy's name is not installed.
    """

    def __init__(  # noqa: PLR0913 - dspy.GEPA's arguments, by their names, and ours
        self,
        metric: Callable[..., Any],
        *,
        auto: Literal["light", "medium", "heavy"] | None = None,
        max_full_evals: int | None = None,
        max_metric_calls: int | None = None,
        reflection_minibatch_size: int | None = None,
        candidate_selection_strategy: Any = "pareto",
        reflection_lm: dspy.LM | None = None,
        skip_perfect_score: bool = True,
        add_format_failure_as_feedback: bool = False,
        instruction_proposer: Callable[..., Any] | None = None,
        code_proposer: Callable[..., Any] | None = None,
        component_selector: Any = "round_robin",
        use_merge: bool = True,
        max_merge_invocations: int | None = 5,
        num_threads: int | None = None,
        failure_score: float = 0.0,
        perfect_score: float = 1.0,
        log_dir: str | None = None,
        track_stats: bool = False,
        use_wandb: bool = False,
        wandb_api_key: str | None = None,
        wandb_init_kwargs: dict[str, Any] | None = None,
        track_best_outputs: bool = False,
        warn_on_score_mismatch: bool = True,
        use_mlflow: bool = False,
        seed: int | None = 0,
        gepa_kwargs: dict[str, Any] | None = None,
        artifact: str | Artifact | Spec = "instruction",
        aggregator: str | Aggregator | Spec = "union",
        operators: Sequence[str | Operator | Spec] | None = None,
        controller: str | BatchController | Spec | None = None,
        executor: str | Executor | Spec = "threads",
        budget: StoppingRule | None = None,
        tracker: str | Tracker | Spec | None = None,
        hooks: Sequence[Hook] = (),
        prices: Mapping[str, Any] | None = None,
        gpus: Mapping[str, float] | None = None,
        children: int | None = None,
        diversity: Diversity | bool = True,
        guards: Guards | None = None,
        anchors: Sequence[dspy.Example] = (),
        fallback: Literal["best-node"] | None = None,
        screen: int = 8,
        staleness: int = 0,
        speculation: float = 0.1,
        rescue: bool = False,
        lesson_ledger: bool = True,
        calibration: Calibration | None = None,
        ceiling: CostCeiling | None = None,
        heldout_terms: HeldoutTerms | None = None,
        receipts: str | PathLike[str] | ReceiptBook | None = None,
        finalists: int = 3,
        memoize: bool | None = None,
        cache: EvaluationCache | str | os.PathLike[str] | bool | None = None,
        probe: bool = True,
        progress: bool | None = None,
        replay: str | PathLike[str] | None = None,
    ) -> None:
        check_metric(metric)
        self.metric_fn = metric
        self.auto = auto
        self.max_full_evals = max_full_evals
        self.max_metric_calls = max_metric_calls
        self.reflection_minibatch_size = reflection_minibatch_size
        self.candidate_selection_strategy = candidate_selection_strategy
        self.reflection_lm = reflection_lm
        self.skip_perfect_score = skip_perfect_score
        self.add_format_failure_as_feedback = add_format_failure_as_feedback
        self.custom_instruction_proposer = instruction_proposer
        self.custom_code_proposer = code_proposer
        self.component_selector = component_selector
        self.use_merge = use_merge
        self.max_merge_invocations = max_merge_invocations
        self.num_threads = num_threads
        self.failure_score = failure_score
        self.perfect_score = perfect_score
        self.log_dir = log_dir
        self.track_stats = track_stats
        self.use_wandb = use_wandb
        self.wandb_api_key = wandb_api_key
        self.wandb_init_kwargs = wandb_init_kwargs
        self.track_best_outputs = track_best_outputs
        self.warn_on_score_mismatch = warn_on_score_mismatch
        self.use_mlflow = use_mlflow
        self.seed = secrets.randbits(32) if seed is None else seed
        self.gepa_kwargs = checked_gepa_kwargs(gepa_kwargs or {}, reflection_minibatch_size)
        self.budget = budget
        self.hooks = tuple(hooks)
        PriceTable(prices)  # Checks them: wrong prices would be found out only after the first call.
        self.prices = dict(prices or {})
        self.gpus = check_gpus(gpus, get_args(Role))
        self.probe = probe
        self.progress = progress
        self.replay = replay
        self.children = children
        self.diversity = as_diversity(diversity)
        self.guards = checked_guards(guards)
        self.anchors = tuple(anchors)
        self.fallback = fallback
        self.screen = screen
        self.staleness = staleness
        self.speculation = speculation
        self.rescue = rescue
        self.lesson_ledger = lesson_ledger
        self.calibration = calibration
        self.ceiling = ceiling
        self.heldout_terms = heldout_terms
        self.receipts = receipts
        self.finalists = finalists
        self.artifact: Artifact = resolve("artifact", artifact)  # type: ignore[assignment]  # checked by kind
        self._check_limits()
        self.aggregator: Aggregator = resolve("aggregator", aggregator)  # type: ignore[assignment]  # checked by kind
        self.operators: tuple[Operator, ...] = self._resolve_operators(operators)
        self.like_gepa = (
            self.aggregator == SingleCall()
            and isinstance(self.artifact, Instruction)
            and reflection_minibatch_size is not None
            and operators is None
            and controller is None
            and instruction_proposer is None
        )
        self._check_bound()
        self.controller: BatchController = self._resolve_controller(controller)
        self.executor: Executor = resolve("executor", executor)  # type: ignore[assignment]  # checked by kind
        self.tracker = self._resolve_tracker(tracker)
        for strategy in (self.artifact, self.aggregator, *self.operators, self.controller, self.executor, self.tracker):
            if strategy is not None:
                _validate(strategy)
        self.cache = cache
        self.memoize = memoizes(memoize, cache, not self.like_gepa)
        self._check_proposer()

    @classmethod
    def parity(cls, metric: Callable[..., Any], **kwargs: Any) -> Combee:
        """Return a ``Combee`` that sends the requests of ``dspy.GEPA``, one for one.

        One reflection call over a minibatch of three by DSPy's own
        ``InstructionProposer``, gepa's own sampler, no copies, no memo: for the
        same seed the same requests in the same order with one thread, and the
        same set of requests with many. For those who want to see that nothing
        else has changed before they change something.

        Args:
            metric: As for :class:`Combee`.
            **kwargs: As for :class:`Combee`, except ``aggregator``, ``operators``,
                ``controller`` and ``instruction_proposer``. ``probe`` is off by
                default: its one-token calls are requests too.

        Raises:
            ArgumentValueError: One of these is given, or an argument has a value that cannot be used.
        """
        for name in ("aggregator", "operators", "controller", "instruction_proposer"):
            if kwargs.get(name) is not None:
                remedy = f"Leave it out, or call Combee(…, {name}=…), which is no longer parity."
                raise ArgumentValueError(name, kwargs[name], "would send other requests than dspy.GEPA", remedy)
        if kwargs.get("reflection_minibatch_size", GEPA_MINIBATCH) is None:
            remedy = f"Leave it out for dspy.GEPA's {GEPA_MINIBATCH}, or give a number."
            raise ArgumentValueError("reflection_minibatch_size", None, "leaves the size open", remedy)
        chosen = {name: value for name, value in kwargs.items() if value is not None or name == "seed"}
        given = {"reflection_minibatch_size": GEPA_MINIBATCH, "aggregator": "single-call", "probe": False, **chosen}
        return cls(metric, **given)

    def compile(
        self,
        student: dspy.Module,
        *,
        trainset: list[dspy.Example],
        teacher: dspy.Module | None = None,
        valset: list[dspy.Example] | None = None,
        heldout: list[dspy.Example] | None = None,
    ) -> dspy.Module:
        """Return a better copy of a program.

        Args:
            student: The program. Not changed.
            trainset: Examples to learn from.
            teacher: Not supported, as in GEPA.
            valset: Examples to compare candidates on; the trainset by default, which
                marks the run as unfit for claims.
            heldout: Examples for the final figure: disjoint from both, read once, at the end.

        Returns:
            The best program on validation, with ``combee_report`` attached, and
            ``detailed_results`` where ``track_stats`` is set.

        Raises:
            ArgumentTypeError: An argument has a type that cannot be used.
            ArgumentValueError: An argument has a value that cannot be used.
            SplitOverlapError: ``heldout`` shares rows with another split.
            LMUnreachableError: An LM does not answer; nothing was bought.
            InfrastructureError: Rollouts kept failing for reasons outside the program.
        """
        from combee_dspy.engine.run import search

        if teacher is not None:
            raise ArgumentValueError("teacher", teacher, "is not supported", "Leave it out, as with dspy.GEPA.")
        if isinstance(self.artifact, PlaybookArtifact):
            from combee_dspy.engine.playbook import learn_playbook

            return learn_playbook(self, self.artifact, student, trainset=trainset, valset=valset, heldout=heldout)
        if not isinstance(self.artifact, Instruction):
            remedy = "Give 'instruction', 'playbook', or a subclass of PlaybookArtifact."
            raise ArgumentTypeError("artifact", self.artifact, "is none that a run can learn", remedy)
        return search(self, student, trainset=trainset, valset=valset, heldout=heldout)

    def get_params(self) -> dict[str, Any]:
        """Return a copy of the parameters. Changing it changes nothing."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def _check_limits(self) -> None:
        limits = {
            "auto": self.auto,
            "max_full_evals": self.max_full_evals,
            "max_metric_calls": self.max_metric_calls,
        }
        given = {name: value for name, value in limits.items() if value is not None}
        remedy = "Give one of auto, max_full_evals, max_metric_calls, or a budget."
        if len(given) > 1:
            raise ArgumentValueError(" and ".join(given), given, "cannot be given together", remedy)
        bounded = isinstance(self.artifact, PlaybookArtifact) or self.gepa_kwargs.get("stop_callbacks")
        if not given and self.budget is None and not bounded:
            raise ArgumentValueError("budget", None, "is missing: the run would never stop", remedy)
        if self.auto is not None and self.auto not in ("light", "medium", "heavy"):
            raise ArgumentValueError("auto", self.auto, "is no preset", "Give 'light', 'medium' or 'heavy'.")
        budget: object = self.budget
        if budget is not None and not isinstance(budget, StoppingRule):
            example = "Give combee_dspy.Budget(rollouts=…, dollars=…), or another stopping rule."
            raise ArgumentTypeError("budget", budget, "is no stopping rule", example)
        check_positive("max_full_evals", self.max_full_evals)
        check_positive("max_metric_calls", self.max_metric_calls)
        check_positive("reflection_minibatch_size", self.reflection_minibatch_size)
        check_positive("num_threads", self.num_threads)
        check_positive("children", self.children)
        check_positive("screen", self.screen, optional=False)
        check_positive("finalists", self.finalists, optional=False)
        self._check_choices()

    def _check_choices(self) -> None:
        if self.staleness not in (0, 1):
            raise ArgumentValueError("staleness", self.staleness, "is neither 0 nor 1", "Give 0, or 1 for speed.")
        share: object = self.speculation
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < 1:
            raise ArgumentValueError("speculation", share, "is no share in [0, 1)", "Give 0.1, or 0 for no guesses.")
        for name, kind in (("calibration", Calibration), ("ceiling", CostCeiling), ("heldout_terms", HeldoutTerms)):
            given = getattr(self, name)
            if given is not None and not isinstance(given, kind):
                remedy = f"Give a combee_dspy.evaluation.{kind.__name__}, or leave it out."
                raise ArgumentTypeError(name, given, f"is no {kind.__name__}", remedy)
        if self.fallback not in (None, "best-node"):
            raise ArgumentValueError("fallback", self.fallback, "is no fallback", "Give 'best-node', or leave it out.")
        if self.track_best_outputs and not self.track_stats:
            raise ArgumentValueError("track_best_outputs", True, "needs track_stats", "Set track_stats=True as well.")

    def _check_bound(self) -> None:
        """Refuse arguments that would be ignored in silence beside others."""
        if self.anchors and (self.like_gepa or "batch_sampler" in self.gepa_kwargs):
            whose = "dspy.GEPA's own minibatches" if self.like_gepa else "a batch_sampler of your own"
            remedy = "Leave one of the two out."
            raise ArgumentValueError("anchors", len(self.anchors), f"cannot be put into {whose}", remedy)
        whole = self.calibration is not None or self.ceiling is not None
        if self.staleness and (whole or self.custom_instruction_proposer is not None):
            other = "a calibration or a ceiling, which" if whole else "an instruction_proposer, which"
            remedy = "Leave one of the two out."
            raise ArgumentValueError("staleness", 1, f"is of no use beside {other} begins nothing early", remedy)
        if self.staleness and (self.like_gepa or "batch_sampler" in self.gepa_kwargs):
            whose = "dspy.GEPA's own minibatches" if self.like_gepa else "those of a batch_sampler of your own"
            raise ArgumentValueError("staleness", 1, f"cannot draw ahead {whose}", "Leave one of the two out.")
        epochs = None if self.budget is None else self.budget.epoch_limit()
        if epochs is not None and (self.like_gepa or "batch_sampler" in self.gepa_kwargs):
            whose = "dspy.GEPA's own minibatches" if self.like_gepa else "those of a batch_sampler of your own"
            raise ArgumentValueError("budget.epochs", epochs, f"cannot count {whose}", "Set it in rollouts.")
        if self.anchors and "selection_strategy" in self.gepa_kwargs:
            remedy = "It may keep what an anchor refuses: leave one of the two out."
            raise ArgumentValueError("anchors", len(self.anchors), "do not bind a selection_strategy", remedy)
        if self.guards != Guards() and "reflection_strategy" in self.gepa_kwargs:
            remedy = "Check its texts yourself, or leave one of the two out."
            raise ArgumentValueError("guards", self.guards, "cannot bind a reflection_strategy of your own", remedy)

    def _resolve_operators(self, value: Sequence[str | Operator | Spec] | None) -> tuple[Operator, ...]:
        if isinstance(value, (str, Operator, Spec)):
            value = (value,)
        chosen = DEFAULT_OPERATORS if value is None else value
        if not chosen:
            raise ArgumentValueError("operators", value, "is empty", "Give at least one operator, such as 'insert'.")
        return tuple(resolve("operator", operator) for operator in chosen)  # type: ignore[misc]  # checked by kind

    def _resolve_controller(self, value: str | BatchController | Spec | None) -> BatchController:
        size = self.reflection_minibatch_size
        if size is not None:
            if value is not None:
                remedy = "Give reflection_minibatch_size for a static size, or a controller."
                raise ArgumentValueError("controller", value, "contradicts reflection_minibatch_size", remedy)
            return Static(size, "reflection_minibatch_size was given")
        if value is None and self.custom_instruction_proposer is not None:
            # A proposer of GEPA's kind was written for GEPA's minibatch: forty records could overflow its call.
            return Static(GEPA_MINIBATCH, "dspy.GEPA's default, which the instruction_proposer was written for")
        return resolve("controller", "power-law" if value is None else value)  # type: ignore[return-value]  # by kind

    def _resolve_tracker(self, value: str | Tracker | Spec | None) -> Tracker | None:
        if value is None and self.use_mlflow:
            value = "mlflow"
        return None if value is None else resolve("tracker", value)  # type: ignore[return-value]  # checked by kind

    def _check_proposer(self) -> None:
        needed = self.custom_instruction_proposer is None and any(operator.needs_lessons for operator in self.operators)
        if needed and self.reflection_lm is None and "reflection_strategy" not in self.gepa_kwargs:
            remedy = "Give a strong LM, for example dspy.LM('openai/gpt-5', temperature=1.0, max_tokens=32000)."
            raise ArgumentValueError("reflection_lm", None, "is missing: nobody would propose", remedy)


def _validate(strategy: Strategy) -> None:
    """Check a strategy's parameters; a comparison that a wrong type breaks is an error of the argument.

    Raises:
        ArgumentError: A parameter cannot be used.
    """
    try:
        strategy.validate()
    except ArgumentError:
        raise
    except TypeError as error:
        given = Spec.of(strategy).params
        problem = f"has a parameter of a type that cannot be used ({error})"
        remedy = "Compare the types with the signature in its documentation: a number is written without quotes."
        raise ArgumentTypeError(f"{strategy.kind} {strategy.name!r}", given, problem, remedy) from error
