"""``Combee``, a drop-in for ``dspy.GEPA``: learns prompts from many rollouts at once."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Never

import dspy
from dspy.teleprompt.teleprompt import Teleprompter
from gepa.core.adapter import ProposalFn
from gepa.proposer.reflective_mutation.base import CandidateSelector, ReflectionComponentSelector

from combee_dspy.aggregators import Aggregator
from combee_dspy.arguments import (
    check_arguments,
    check_together,
    choose_keep,
    refuse_elsewhere,
    refuse_unknown,
)
from combee_dspy.artifacts import Artifact
from combee_dspy.controllers import BatchController
from combee_dspy.costs import Costs
from combee_dspy.diversity import Diversity
from combee_dspy.evaluation import Heldout
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError, did_you_mean
from combee_dspy.guards import Guards
from combee_dspy.operators import Operator
from combee_dspy.options import Privacy, Search, Validation
from combee_dspy.records import Metric
from combee_dspy.registry import Spec
from combee_dspy.rollouts import Executor
from combee_dspy.search import Data, compile_program
from combee_dspy.settings import Auto, Settings
from combee_dspy.stopping import StoppingRule
from combee_dspy.traces import Selection, Traces
from combee_dspy.tracking import Tracker

__all__ = ["Combee"]

_SETTINGS = {field.name: field.name for field in dataclasses.fields(Settings)}
# As dspy.GEPA names them.
_READABLE = {
    **_SETTINGS,
    "metric_fn": "metric",
    "custom_instruction_proposer": "instruction_proposer",
}
_ARGUMENTS = frozenset(("controller", "gepa_kwargs", "operators", "tracker", "use_mlflow"))


class Combee(Teleprompter):
    """Learns a program's prompts from many rollouts at once. A drop-in for ``dspy.GEPA``.

    What one reflection call did over three rollouts is done over many: shards are read at once,
    their lessons are compared by number, and enter a book that weighs them. A trunk serves the book
    in one text, whose lines are tested; what only GEPA's search can use gets GEPA's search.
    ``Combee(…)`` works with the arguments of ``dspy.GEPA(…)``. Some defaults differ, such as the
    size of minibatches, which is planned; docs/from_gepa.md lists them.

    An object may compile several programs. It keeps no state of a run.

    Args:
        metric: ``(gold, pred, trace, pred_name, pred_trace)`` to a number, or to a
            ``dspy.Prediction`` with ``score``, ``feedback`` and ``objective_scores``. May be a
            coroutine function. Must be thread-safe: several worker threads call it at once, and
            never the caller's. ``executor="threads"`` calls it in the thread that ran the program;
            ``"asyncio"`` awaits a coroutine function on the rollouts' loop, and calls any other in
            a worker thread; ``"ray"`` calls it in the actor's process. For feedback on one
            predictor it is called again, with ``pred_name``, in a worker thread of this process.
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
        use_merge: Taken for ``dspy.GEPA``'s sake. This loop merges no candidates; ``Combee.parity``
            does.
        max_merge_invocations: The same.
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
        gepa_kwargs: Parts of gepa that our loop calls: ``callbacks``, ``frontier_type`` and
            ``stop_callbacks``. Updates then go one after another.
        artifact: What is learned: ``"instruction"``; ``"memory"``, of which each call is shown what
            its inputs need; or ``"playbook"``, ACE's bullets.
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
        metric: Metric,
        *,
        auto: Auto | None = None,
        max_full_evals: int | None = None,
        max_metric_calls: int | None = None,
        reflection_minibatch_size: int | None = None,
        candidate_selection_strategy: str | CandidateSelector = "pareto",
        reflection_lm: dspy.BaseLM | None = None,
        skip_perfect_score: bool = True,
        add_format_failure_as_feedback: bool = False,
        instruction_proposer: ProposalFn | None = None,
        code_proposer: ProposalFn | None = None,
        component_selector: str | ReflectionComponentSelector = "round_robin",
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
        gepa_kwargs: Mapping[str, Any] | None = None,
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
        tracker: str | Mapping[str, Any] | Tracker | Spec | Sequence[str | Tracker] | None = None,
        cache: str | PathLike[str] | Literal[False] | None = None,
        costs: Costs | None = None,
        privacy: Privacy | None = None,
        **elsewhere: Never,
    ) -> None:
        arguments = dict(locals())
        del arguments["self"], arguments["elsewhere"]
        refuse_unknown(elsewhere, arguments)
        self.settings = check_arguments(arguments)

    def __setattr__(self, name: str, value: object) -> None:
        if name == "settings":
            if not isinstance(value, Settings):
                remedy = "Give dataclasses.replace(combee.settings, seed=1)."
                raise ArgumentTypeError(name, value, "is no Settings", remedy)
            # What follows from a setting follows from a changed one too.
            value = dataclasses.replace(value, keep=choose_keep(value))
            check_together(value)
        elif name in _READABLE or name in _ARGUMENTS:
            name = _READABLE.get(name, name)
            remedy = (
                f"Give {name} to Combee, or assign combee.settings ="
                f" dataclasses.replace(combee.settings, {name}=…)."
            )
            raise ArgumentTypeError(name, value, "is a setting and no attribute", remedy)
        super().__setattr__(name, value)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Return a setting by its name, or by that which ``dspy.GEPA`` has for it."""
            if name not in _READABLE or "settings" not in vars(self):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return getattr(self.settings, _READABLE[name])

    @classmethod
    def parity(cls, metric: Metric, **kwargs: object) -> dspy.GEPA:
        """Return ``dspy.GEPA`` itself: the serial baseline, for those who change one thing at a
        time.

        Args:
            metric: As for :class:`Combee`.
            **kwargs: Arguments of ``dspy.GEPA``.

        Raises:
            ArgumentTypeError: One is an argument of ``Combee`` alone.
        """
        arguments: dict[str, Any] = kwargs
        theirs = inspect.signature(dspy.GEPA).parameters
        for name, value in arguments.items():
            if name not in theirs:
                remedy = did_you_mean(name, theirs) or (
                    f"Leave it out, or call Combee(…, {name}=…), which is no longer parity."
                )
                raise ArgumentTypeError(name, value, "is no argument of dspy.GEPA", remedy)
        return dspy.GEPA(metric, **arguments)

    def compile(
        self,
        student: dspy.Module,
        *,
        trainset: list[dspy.Example] | None = None,
        teacher: dspy.Module | None = None,
        valset: list[dspy.Example] | None = None,
        heldout: Sequence[dspy.Example] | Heldout | None = None,
        traces: Traces | None = None,
        selection: Selection | None = None,
        **elsewhere: Never,
    ) -> dspy.Module:
        """Return a better copy of a program.

        Args:
            student: The program. Not changed.
            trainset: Examples to learn from; may be left out beside ``traces``.
            teacher: Not supported, as in GEPA.
            valset: Examples to compare candidates on; the trainset by default, which
                marks the run as unfit for claims.
            heldout: Examples for the final figure: disjoint from both, read at the end.
            traces: Rollouts that were recorded elsewhere: a source, or any iterable of
                :class:`~combee_dspy.traces.Trace`, of MLflow's traces or of records. They are read
                before the trainset, each once, and nothing is run for it. The metric scores
                recorded outputs where a trace has expected answers. Without a trainset and a
                valset nothing is validated, and the report's first line says so.
            selection: Which traces are read; by default
                :class:`~combee_dspy.traces.Selection`'s.
            **elsewhere: Refused: settings belong to ``Combee(…)``.

        Returns:
            The program that was chosen on validation, with ``combee_report`` attached, and
            ``detailed_results`` where ``track_stats`` is set.

        Raises:
            ArgumentError: An argument cannot be used.
            SplitOverlapError: ``heldout`` shares rows with another split.
            TraceSourceError: The traces cannot be read.
            JournalError: The journal in ``log_dir`` belongs to another run, is held or is damaged.
            LMUnreachableError: An LM does not answer; hardly anything was bought.
            InfrastructureError: Rollouts kept failing for reasons outside the program.
            RefusedError: ``budget`` has a target or patience, and validation rows are training
                rows.
            KeyboardInterrupt: It was interrupted, at most two seconds ago: what has ended by then
                is kept.

        Whatever ends a run once the student is validated has an attribute ``program``, the best one
        so far.
        """
        refuse_elsewhere(elsewhere, Combee)
        if teacher is not None:
            raise ArgumentValueError(
                "teacher", teacher, "is not supported", "Leave it out, as with dspy.GEPA."
            )
        data = Data(trainset, valset, heldout, traces, selection)
        return compile_program(self.settings, student, data)

    def get_params(self) -> dict[str, object]:
        """Return the settings by name. Changing the mapping changes nothing."""
        return {
            field.name: getattr(self.settings, field.name)
            for field in dataclasses.fields(self.settings)
        }
