"""``Combee``: the teleprompter."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal

import dspy
from dspy.teleprompt.teleprompt import Teleprompter

from combee_dspy._private import GEPA_MINIBATCH
from combee_dspy.aggregators import Aggregator
from combee_dspy.artifacts import Artifact, Instruction
from combee_dspy.controllers import BatchController, PowerLaw, Static
from combee_dspy.costs import Costs
from combee_dspy.diversity import Diversity
from combee_dspy.evaluation import Heldout
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.guards import Guards
from combee_dspy.operators import Operator
from combee_dspy.options import Privacy, Search, Validation, option, positive
from combee_dspy.registry import Spec, resolve
from combee_dspy.rollouts import Executor
from combee_dspy.search import (
    check_lm,
    check_metric,
    check_names,
    check_wide,
    checked_gepa_kwargs,
    compile_program,
    keeps,
    of_no_use_to_a_trunk,
)
from combee_dspy.stopping import StoppingRule
from combee_dspy.tracking import Tracker

__all__ = ["Combee"]

_GROUPS: Mapping[str, type[Any]] = {
    "validation": Validation,
    "guards": Guards,
    "diversity": Diversity,
    "costs": Costs,
    "search": Search,
    "privacy": Privacy,
}

_ELSEWHERE: Mapping[str, str] = {
    **{
        one.name: f"{group}={kind.__name__}({one.name}=…)"
        for group, kind in _GROUPS.items()
        for one in dataclasses.fields(kind)
    },
    "ceiling": "budget=Budget(dollars=…): no proxy takes over in the middle of a run any more",
    "fallback": "aggregator=…: a scan's node does not stand in for its root any more",
    "heldout_terms": "compile(heldout=Heldout(rows, target=…))",
    "hooks": "tracker=…, which reads the journal",
    "lesson_ledger": "search=Search(weigher=…): the book keeps every lesson",
    "memoize": "cache=False for no memo",
    "progress": "tracker='progress', or tracker=() for none",
    "receipts": "log_dir=…, whose journal holds the receipts",
    "speculation": "search=Search(staleness=1): updates overlap without guesses",
}


class Combee(Teleprompter):
    """Learns a program's prompts from many rollouts at once. A drop-in for ``dspy.GEPA``.

    What one reflection call did over three rollouts is done by a scan over many: calls at once,
    whose lessons enter a book that weighs them. One text grows with the book, and its lines are
    tested; what only GEPA's search can use gets GEPA's search. Wherever a script says
    ``dspy.GEPA(…)``, ``Combee(…)`` works with the same arguments. Some defaults differ, such as the
    size of minibatches, which is planned; docs/from_gepa.md lists them.

    An object may compile several programs. It keeps no state of a run.

    Args:
        metric: ``(gold, pred, trace, pred_name, pred_trace)`` to a number, or to a
            ``dspy.Prediction`` with ``score``, ``feedback`` and ``objective_scores``.
        auto: GEPA's budget presets. Give at most one of ``auto``, ``max_full_evals`` and
            ``max_metric_calls``. ``budget`` may stand alone or beside it.
        max_full_evals: Budget in passes over train and validation set. Where it would end in the
            first update, it covers that one, as in GEPA.
        max_metric_calls: Budget in rollouts.
        reflection_minibatch_size: Examples in a minibatch; given, the size is fixed.
        candidate_selection_strategy: As in gepa.
        reflection_lm: The proposer's LM.
        skip_perfect_score: Whether minibatches without a mistake are skipped.
        add_format_failure_as_feedback: Whether reflections on answers that did not parse hold the
            answer and the format that it lacks, besides the error.
        instruction_proposer: A proposer of GEPA's kind; it then makes the new instructions instead
            of ``aggregator`` and ``operators``.
        code_proposer: Proposer for the code of ``dspy.Flex`` parts.
        component_selector: As in gepa.
        use_merge: Whether gepa merges candidates.
        max_merge_invocations: How often.
        num_threads: Rollouts and LM calls in flight at most. By default the run finds out how many
            its service takes.
        failure_score: Score of a rollout that failed.
        perfect_score: Score of a success. Where a metric gives more than the default, it is the
            next power of ten.
        log_dir: Folder of the journal; compiling again with it goes on where it ended.
        track_stats: Attach ``detailed_results`` to the program.
        use_wandb: As in gepa.
        wandb_api_key: As in gepa.
        wandb_init_kwargs: As in gepa.
        track_best_outputs: Keep the best outputs on the validation set.
        warn_on_score_mismatch: Warn when the metric's score depends on ``pred_name``.
        use_mlflow: The same as ``tracker="mlflow"``.
        seed: Seed of everything random. ``None`` draws one, and notes it.
        gepa_kwargs: Parts of gepa that our loop calls: ``acceptance_criterion``, ``batch_sampler``,
            ``callbacks``, ``frontier_type``, ``stop_callbacks``, ``val_evaluation_policy`` and
            others.
        artifact: What is learned: ``"instruction"``, or ``"playbook"``, ACE's bullets.
        aggregator: Turns reflections into lessons: ``reference-scan`` by default.
        operators: Each makes one child from what one scan taught; ``insert`` by default.
        controller: Plans the size of minibatches; ``power-law`` by default, in a trunk with three
            updates an epoch at least.
        executor: Where rollouts and LM calls run.
        search: How updates follow each other and what is kept of them.
        validation: How candidates are judged and the result is chosen.
        guards: What no edit may break.
        diversity: What is done against collapse; ``False`` for nothing.
        budget: A stopping rule, such as ``Budget``; rules compose with ``|`` and ``&``.
        tracker: Who reads the journal meanwhile: ``"mlflow"``, ``"progress"``, objects, or several
            of them. By default progress: a panel on a terminal, elsewhere a line an update.
        cache: A file of rollouts that runs share; ``False`` buys even the same rollout of one run
            again.
        costs: Prices and GPUs.
        privacy: What is written of the examples and of who ran what, and what a reflector is shown.
        **elsewhere: Refused, with the place where the name belongs.

    Raises:
        ArgumentTypeError: An argument has a type that cannot be used.
        ArgumentValueError: An argument has a value that cannot be used.
        UnknownStrategyError: A strategy's name is not installed.
        MissingDistributionError: ``use_wandb`` without W&B.
        RefusedError: More than 8 workers with diversity off.
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
        reflection_lm: dspy.BaseLM | None = None,
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
        log_dir: str | PathLike[str] | None = None,
        track_stats: bool = False,
        use_wandb: bool = False,
        wandb_api_key: str | None = None,
        wandb_init_kwargs: dict[str, Any] | None = None,
        track_best_outputs: bool = False,
        warn_on_score_mismatch: bool = True,
        use_mlflow: bool = False,
        seed: int | None = 0,
        gepa_kwargs: dict[str, Any] | None = None,
        artifact: str | Mapping[str, Any] | Artifact | Spec = "instruction",
        aggregator: str | Mapping[str, Any] | Aggregator | Spec = "reference-scan",
        operators: Sequence[str | Mapping[str, Any] | Operator | Spec] | None = None,
        controller: str | Mapping[str, Any] | BatchController | Spec | None = None,
        executor: str | Mapping[str, Any] | Executor | Spec = "threads",
        search: Search | None = None,
        validation: Validation | None = None,
        guards: Guards | None = None,
        diversity: Diversity | bool = True,
        budget: StoppingRule | None = None,
        tracker: Any = None,
        cache: str | PathLike[str] | Literal[False] | None = None,
        costs: Costs | None = None,
        privacy: Privacy | None = None,
        **elsewhere: Any,
    ) -> None:
        for name, value in elsewhere.items():
            if name in _ELSEWHERE:
                raise ArgumentTypeError(
                    name, value, "has a place of its own", f"Give {_ELSEWHERE[name]}."
                )
            raise ArgumentTypeError(
                name, value, "is no argument of Combee", "Compare help(combee_dspy.Combee)."
            )
        check_metric(metric)
        self.metric_fn = metric
        self.auto = _one_of("auto", auto, (None, "light", "medium", "heavy"))
        self.max_full_evals = positive("max_full_evals", max_full_evals)
        self.max_metric_calls = positive("max_metric_calls", max_metric_calls)
        self.reflection_minibatch_size = positive(
            "reflection_minibatch_size", reflection_minibatch_size
        )
        self.candidate_selection_strategy = candidate_selection_strategy
        self.reflection_lm = check_lm("reflection_lm", reflection_lm)
        self.skip_perfect_score = skip_perfect_score
        self.add_format_failure_as_feedback = add_format_failure_as_feedback
        self.custom_instruction_proposer = instruction_proposer
        self.custom_code_proposer = code_proposer
        self.component_selector = component_selector
        self.use_merge = use_merge
        self.max_merge_invocations = max_merge_invocations
        self.num_threads = positive("num_threads", num_threads)
        self.failure_score = failure_score
        self.perfect_score = perfect_score
        self.log_dir = None if log_dir is None else str(log_dir)
        self.track_stats = track_stats
        self.use_wandb = use_wandb
        self.wandb_api_key = wandb_api_key
        self.wandb_init_kwargs = wandb_init_kwargs
        self.track_best_outputs = track_best_outputs
        self.warn_on_score_mismatch = warn_on_score_mismatch
        self.use_mlflow = use_mlflow
        self.seed = secrets.randbits(32) if seed is None else seed
        self.gepa_kwargs = checked_gepa_kwargs(gepa_kwargs or {}, reflection_minibatch_size)
        check_names(self)
        self.search: Search = option("search", search, Search)
        self.validation = option("validation", validation, Validation)
        self.guards = option("guards", guards, Guards)
        if isinstance(diversity, bool):
            diversity = Diversity() if diversity else Diversity.off()
        self.diversity = option("diversity", diversity, Diversity)
        self.budget = budget
        given: object = budget  # whatever it is declared to be
        if given is not None and not isinstance(given, StoppingRule):
            remedy = "Give combee_dspy.Budget(rollouts=…, dollars=…), or another stopping rule."
            raise ArgumentTypeError("budget", budget, "is no stopping rule", remedy)
        self.cache = cache
        self.costs = option("costs", costs, Costs)
        self.privacy = option("privacy", privacy, Privacy)
        self.operators = self._resolved_operators(operators)
        self.artifact = self._resolved_artifact(artifact)
        self.search = self._with_staleness()
        if operators is not None and not isinstance(self.artifact, Instruction):
            remedy = f"Leave it out: artifact {self.artifact.name!r} applies lessons itself."
            raise ArgumentValueError("operators", operators, "edit instructions alone", remedy)
        self.aggregator: Aggregator = resolve("aggregator", aggregator)  # type: ignore[assignment]  # checked by kind
        self.controller = self._resolved_controller(controller)
        self.executor: Executor = resolve("executor", executor)  # type: ignore[assignment]  # checked by kind
        self.trackers = self._resolved_trackers(tracker)
        self._check_together()

    @classmethod
    def parity(cls, metric: Callable[..., Any], **kwargs: Any) -> dspy.GEPA:
        """Return ``dspy.GEPA`` itself: the serial baseline, for those who change one thing at a
        time.

        Args:
            metric: As for :class:`Combee`.
            **kwargs: Arguments of ``dspy.GEPA``.

        Raises:
            ArgumentTypeError: One is an argument of ``Combee`` alone.
        """
        import inspect

        known = inspect.signature(dspy.GEPA).parameters
        for name, value in kwargs.items():
            if name not in known:
                remedy = f"Leave it out, or call Combee(…, {name}=…), which is no longer parity."
                raise ArgumentTypeError(name, value, "is no argument of dspy.GEPA", remedy)
        return dspy.GEPA(metric, **kwargs)

    def compile(
        self,
        student: dspy.Module,
        *,
        trainset: list[dspy.Example],
        teacher: dspy.Module | None = None,
        valset: list[dspy.Example] | None = None,
        heldout: Sequence[dspy.Example] | Heldout | None = None,
    ) -> dspy.Module:
        """Return a better copy of a program.

        Args:
            student: The program. Not changed.
            trainset: Examples to learn from.
            teacher: Not supported, as in GEPA.
            valset: Examples to compare candidates on; the trainset by default, which
                marks the run as unfit for claims.
            heldout: Examples for the final figure: disjoint from both, read at the end.

        Returns:
            The program that was chosen on validation, with ``combee_report`` attached, and
            ``detailed_results`` where ``track_stats`` is set.

        Raises:
            ArgumentError: An argument cannot be used.
            SplitOverlapError: ``heldout`` shares rows with another split.
            JournalError: The journal in ``log_dir`` belongs to another run, is held or is damaged.
            LMUnreachableError: An LM does not answer; nothing was bought.
            InfrastructureError: Rollouts kept failing for reasons outside the program.
            RefusedError: ``budget`` has a target or patience, and validation rows are training
                rows.
            KeyboardInterrupt: It was interrupted, at most two seconds ago: what has ended by then
                is kept.

        Whatever ends a run once the student is validated has an attribute ``program``, the best one
        so far.
        """
        if teacher is not None:
            raise ArgumentValueError(
                "teacher", teacher, "is not supported", "Leave it out, as with dspy.GEPA."
            )
        return compile_program(self, student, trainset=trainset, valset=valset, heldout=heldout)

    def get_params(self) -> dict[str, Any]:
        """Return a copy of the parameters. Changing it changes nothing."""
        return dict(vars(self))

    @property
    def keeps(self) -> Literal["pareto", "trunk"]:
        """How what was learned is kept; without ``Search(keep=…)`` a ``dspy.Flex`` gets
        ``"pareto"`` all the same.
        """
        return keeps(self)

    def _with_staleness(self) -> Search:
        if self.search.staleness is not None:
            return self.search
        selectors = (self.candidate_selection_strategy, self.component_selector)
        written_for_gepa = self.gepa_kwargs or not all(isinstance(one, str) for one in selectors)
        overlapping = 2 if self.keeps == "trunk" else 1
        return dataclasses.replace(self.search, staleness=0 if written_for_gepa else overlapping)

    def _resolved_operators(self, value: Any) -> tuple[Operator, ...]:
        if isinstance(value, (str, Operator, Spec, Mapping)):
            value = (value,)
        chosen = ("insert",) if value is None else tuple(value)
        if not chosen:
            raise ArgumentValueError(
                "operators", value, "is empty", "Give at least one operator, such as 'insert'."
            )
        return tuple(resolve("operator", operator) for operator in chosen)  # type: ignore[misc]  # checked by kind

    def _resolved_artifact(self, value: Any) -> Artifact:
        artifact: Artifact = resolve("artifact", value)  # type: ignore[assignment]  # checked by kind
        return (
            dataclasses.replace(artifact, operators=self.operators)
            if isinstance(artifact, Instruction)
            else artifact
        )

    def _resolved_controller(self, value: Any) -> BatchController:
        if (size := self.reflection_minibatch_size) is not None:
            if value is not None:
                remedy = "Give reflection_minibatch_size for a fixed size, or a controller."
                raise ArgumentValueError(
                    "controller", value, "contradicts reflection_minibatch_size", remedy
                )
            return Static(size, "reflection_minibatch_size was given")
        if value is None and self.custom_instruction_proposer is not None:
            return Static(GEPA_MINIBATCH, "what proposers of GEPA's kind are written for")
        chosen = PowerLaw(min_updates=3 if self.keeps == "trunk" else 4) if value is None else value
        return resolve("controller", chosen)  # type: ignore[return-value]  # by kind

    def _resolved_trackers(self, value: Any) -> tuple[Tracker, ...] | None:
        if value is None:
            return (resolve("tracker", "mlflow"),) if self.use_mlflow else None  # type: ignore[return-value]  # by kind
        values = (value,) if isinstance(value, (str, Tracker, Spec, Mapping)) else tuple(value)
        return tuple(resolve("tracker", one) for one in values)  # type: ignore[misc]  # checked by kind

    def _check_hashes(self) -> None:
        """Refuse what keeps texts where hashes alone may be kept."""
        examples = [one.name for one in self.operators if one.edits_demonstrations]
        for name, value in (("cache", self.cache), ("operators", examples)):
            if value and self.privacy.texts == "hashes":
                remedy = "Leave it out, or give Privacy(texts='redacted')."
                raise ArgumentValueError(
                    name, value, "keeps texts where hashes alone may be kept", remedy
                )

    def _check_removed(self) -> None:
        """Refuse lessons to be removed beside what writes texts outside the book."""
        outside = [operator.name for operator in self.operators if not operator.serves_book]
        if self.custom_instruction_proposer is not None:
            outside.append("instruction_proposer")
        if self.guards.removed and outside:
            problem = f"cannot be held beside {', '.join(outside)}, which write texts of their own"
            raise ArgumentValueError(
                "guards.removed", self.guards.removed, problem, "Use operators='insert'."
            )

    def _check_together(self) -> None:
        """Refuse arguments that contradict each other, or would be ignored in silence."""
        limits = {
            name: getattr(self, name) for name in ("auto", "max_full_evals", "max_metric_calls")
        }
        given = {name: value for name, value in limits.items() if value is not None}
        remedy = "Give one of auto, max_full_evals, max_metric_calls, or a budget."
        if len(given) > 1:
            raise ArgumentValueError(" and ".join(given), given, "cannot be given together", remedy)
        bounded = not isinstance(self.artifact, Instruction) or self.gepa_kwargs.get(
            "stop_callbacks"
        )
        if not given and self.budget is None and not bounded:
            raise ArgumentValueError("budget", None, "is missing: the run would never stop", remedy)
        if (
            self.use_mlflow
            and self.trackers is not None
            and "mlflow" not in [one.name for one in self.trackers]
        ):
            raise ArgumentValueError(
                "use_mlflow", True, "contradicts tracker", "Add 'mlflow' to tracker=[…]."
            )
        if self.track_best_outputs and not self.track_stats:
            raise ArgumentValueError(
                "track_best_outputs", True, "needs track_stats", "Set track_stats=True as well."
            )
        if self.keeps == "pareto" and not isinstance(self.artifact, Instruction):
            remedy = (
                f"Leave keep out, or give 'trunk': artifact {self.artifact.name!r} has one text"
                " that grows."
            )
            raise ArgumentValueError("search.keep", "pareto", "cannot keep this artifact", remedy)
        if self.keeps == "trunk" and (useless := of_no_use_to_a_trunk(self)):
            raise ArgumentValueError(
                useless, "given", "is of no use to a trunk", "Give Search(keep='pareto')."
            )
        if "batch_sampler" in self.gepa_kwargs and (self.guards.anchors or self.search.staleness):
            problem = "cannot be beside anchors or staleness: it draws by gepa's iteration"
            raise ArgumentValueError(
                "gepa_kwargs['batch_sampler']", "given", problem, "Leave one of the two out."
            )
        self._check_hashes()
        self._check_removed()
        check_wide(self.num_threads, self.diversity)
        needed = self.custom_instruction_proposer is None and (
            not isinstance(self.artifact, Instruction)
            or any(operator.needs_lessons for operator in self.operators)
        )
        if needed and self.reflection_lm is None:
            remedy = (
                "Give a strong LM, for example dspy.LM('openai/gpt-5', temperature=1.0,"
                " max_tokens=32000)."
            )
            raise ArgumentValueError(
                "reflection_lm", None, "is missing: nobody would propose", remedy
            )


def _one_of(argument: str, value: Any, known: Sequence[Any]) -> Any:
    if value not in known:
        shown = ", ".join(repr(one) for one in known if one is not None)
        raise ArgumentValueError(argument, value, "is no preset", f"Give one of {shown}.")
    return value
