"""gepa's own parts, called from our loop at the moments at which gepa calls them."""

from __future__ import annotations

import importlib.util
import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gepa.core.callbacks import notify_callbacks
from gepa.logging.experiment_tracker import create_experiment_tracker
from gepa.strategies.acceptance import ImprovementOrEqualAcceptance, StrictImprovementAcceptance
from gepa.strategies.candidate_selector import (
    CurrentBestCandidateSelector,
    EpsilonGreedyCandidateSelector,
    ParetoCandidateSelector,
    TopKParetoCandidateSelector,
)
from gepa.strategies.component_selector import (
    AllReflectionComponentSelector,
    RoundRobinReflectionComponentSelector,
)
from gepa.strategies.eval_policy import FullEvaluationPolicy
from gepa.utils import FileStopper

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError, MissingDistributionError

__all__ = ["ONLY_PARETO", "GepaParts", "check_names", "checked_gepa_kwargs", "make_parts"]

_SELECTORS: Mapping[str, Callable[[random.Random], Any]] = {
    "pareto": lambda rng: ParetoCandidateSelector(rng=rng),
    "current_best": lambda _: CurrentBestCandidateSelector(),
    "epsilon_greedy": lambda rng: EpsilonGreedyCandidateSelector(epsilon=0.1, rng=rng),
    "top_k_pareto": lambda rng: TopKParetoCandidateSelector(k=5, rng=rng),
}
_COMPONENTS = {
    "round_robin": RoundRobinReflectionComponentSelector,
    "all": AllReflectionComponentSelector,
}
_POLICIES = {"full_eval": FullEvaluationPolicy}
_ACCEPTANCE = {
    "strict_improvement": StrictImprovementAcceptance,
    "improvement_or_equal": ImprovementOrEqualAcceptance,
}

# What gepa.optimize takes and our loop calls.
_OURS = (
    "acceptance_criterion",
    "batch_sampler",
    "callbacks",
    "frontier_type",
    "merge_val_overlap_floor",
    "stop_callbacks",
    "val_evaluation_policy",
    "wandb_attach_existing",
)

ONLY_PARETO = (
    "acceptance_criterion",
    "batch_sampler",
    "callbacks",
    "frontier_type",
    "merge_val_overlap_floor",
)
"""Those that have nothing to do where one text grows."""

_BY_THE_SAME_NAME = (
    "candidate_selection_strategy",
    "max_merge_invocations",
    "max_metric_calls",
    "perfect_score",
    "reflection_lm",
    "reflection_minibatch_size",
    "seed",
    "skip_perfect_score",
    "track_best_outputs",
    "use_merge",
    "use_wandb",
    "wandb_api_key",
    "wandb_init_kwargs",
)

# What would hand the loop to somebody else, or would not do what it says, and the way to do it.
_MLFLOW = (
    "mlflow_tracking_uri",
    "mlflow_experiment_name",
    "mlflow_attach_existing",
    "tracking_key_prefix",
)
_REFUSED: Mapping[str, str] = {
    **dict.fromkeys(_MLFLOW, "Give tracker='mlflow', and tell mlflow itself where it writes."),
    "use_cloudpickle": "Leave it out: nothing is pickled.",
    **{name: f"Give {name} to Combee." for name in _BY_THE_SAME_NAME},
    "sampling_strategy": (
        "Give Search(children=…, staleness=…), or use Combee.parity, which is dspy.GEPA itself."
    ),
    "selection_strategy": (
        "Give acceptance_criterion, or use Combee.parity, which is dspy.GEPA itself."
    ),
    "reflection_strategy": (
        "Give gepa.optimize(reflection_strategy=CombeeReflection(lm)), or an aggregator."
    ),
    "custom_candidate_proposer": (
        "Give instruction_proposer, or dspy.GEPA(instruction_proposer=CombeeProposer())."
    ),
    "max_reflection_cost": "Give budget=Budget(dollars=…), which counts every role.",
    "cache_evaluation": (
        "Leave it out: no rollout is bought twice. cache= shares rollouts between runs."
    ),
    "reflection_prompt_template": (
        "Give instruction_proposer=InstructionProposer(base_instructions=…)."
    ),
    "seed_candidate": "Give the program to compile().",
    "trainset": "Give trainset to compile().",
    "valset": "Give valset to compile().",
    "adapter": "Leave it out: Combee adapts the program itself.",
    "reflection_lm_kwargs": "Give reflection_lm=dspy.LM(…, **kwargs) to Combee.",
    "module_selector": "Give component_selector to Combee.",
    "logger": "Set the level of logging.getLogger('combee_dspy').",
    "run_dir": "Give log_dir to Combee.",
    "use_mlflow": "Give tracker='mlflow' to Combee.",
    "display_progress_bar": "Give tracker='progress' to Combee.",
    "raise_on_exception": "Leave it out: an error always ends the run.",
    "task_lm": "Call dspy.configure(lm=…).",
    "evaluator": "Give metric to Combee.",
}


def checked_gepa_kwargs(given: Mapping[str, Any], minibatch_size: int | None) -> dict[str, Any]:
    """Return a copy of ``gepa_kwargs`` that holds only what our loop calls; a sampler would
    contradict a given size.

    Raises:
        ArgumentTypeError: One is no argument of ``gepa.optimize``.
        ArgumentValueError: One would hand the loop to somebody else, or contradicts another.
    """
    kept = {
        name: value
        for name, value in given.items()
        if (name, value) != ("batch_sampler", "epoch_shuffled")
    }
    for name, value in kept.items():
        label = f"gepa_kwargs[{name!r}]"
        if name in _REFUSED:
            raise ArgumentValueError(
                label, value, "cannot be used from Combee's own loop", _REFUSED[name]
            )
        if name not in _OURS:
            raise ArgumentTypeError(label, value, "is no argument of gepa.optimize", "Remove it.")
    if "batch_sampler" in kept and minibatch_size is not None:
        problem = "sets the size of minibatches, and so does reflection_minibatch_size"
        raise ArgumentValueError(
            "gepa_kwargs['batch_sampler']", kept["batch_sampler"], problem, "Give one of them."
        )
    return kept


def check_names(settings: Any) -> None:
    """Check what a teleprompter names of gepa's parts, and that W&B is there where it is asked for.

    Raises:
        ArgumentValueError: A name is unknown.
        MissingDistributionError: W&B is not installed.
    """
    own, kwargs = vars(settings), settings.gepa_kwargs
    for argument, given, known in (
        ("candidate_selection_strategy", own, _SELECTORS),
        ("component_selector", own, _COMPONENTS),
        ("acceptance_criterion", kwargs, _ACCEPTANCE),
        ("val_evaluation_policy", kwargs, _POLICIES),
    ):
        value = given.get(argument)
        if isinstance(value, str) and value not in known:
            raise ArgumentValueError(
                argument, value, "is unknown", f"Give one of {', '.join(known)}, or an object."
            )
    if (
        settings.use_wandb
        and "wandb" not in sys.modules
        and importlib.util.find_spec("wandb") is None
    ):
        raise MissingDistributionError("what use_wandb=True logs to", "wandb")


@dataclass(frozen=True, slots=True)
class GepaParts:
    """gepa's parts of one run, or the user's in their place."""

    selector: Any  # of parents
    components: Any  # what is edited
    sampler: Any | None  # of minibatches; none where ours draws them
    acceptance: Any | None  # of children; none where ours judges them
    policy: Any  # what is validated, and which is the best
    callbacks: Sequence[Any]
    stoppers: tuple[Any, ...]  # the user's, and the file gepa.stop in log_dir
    merge_floor: int  # validation examples that two parents must share to be merged
    frontier_type: str
    experiment: Any  # gepa's way to W&B, where that was asked for
    # whether everything that reads gepa's state is gepa's own: the first updates need not wait for
    # it
    plain: bool
    # whether the user's parts judge children: asked on arrival, they would see another state in
    # each run
    ordered: bool

    def notify(self, method: str, event: Any) -> None:
        """Tell the user's callbacks; gepa logs what they raise."""
        if self.callbacks:
            notify_callbacks(list(self.callbacks), method, event)

    def known_components(self, visible: Sequence[str], turn: int) -> tuple[str, ...] | None:
        """Return what will be selected, where that does not hang on rollouts; ``turn`` is the
        candidate's.
        """
        if isinstance(self.components, AllReflectionComponentSelector):
            return tuple(visible)
        if isinstance(self.components, RoundRobinReflectionComponentSelector):
            return (visible[turn % len(visible)],)
        return None


def make_parts(settings: Any, rng: random.Random) -> GepaParts:
    """Return the parts that the settings of a run, a teleprompter, name; selectors share gepa's
    stream with merges.
    """
    kwargs, selects, chosen = (
        settings.gepa_kwargs,
        settings.component_selector,
        settings.candidate_selection_strategy,
    )
    stoppers = kwargs.get("stop_callbacks") or ()
    stoppers = tuple(stoppers) if isinstance(stoppers, Sequence) else (stoppers,)
    if settings.log_dir is not None:
        stoppers += (FileStopper(os.path.join(settings.log_dir, "gepa.stop")),)  # noqa: PTH118 - gepa takes a text
    callbacks, acceptance = tuple(kwargs.get("callbacks") or ()), kwargs.get("acceptance_criterion")
    policy = kwargs.get("val_evaluation_policy") or "full_eval"
    return GepaParts(
        selector=_part(chosen, _SELECTORS, rng),
        components=_part(selects, _COMPONENTS),
        sampler=kwargs.get("batch_sampler"),
        acceptance=_part(acceptance, _ACCEPTANCE),
        policy=_part(policy, _POLICIES),
        callbacks=callbacks,
        stoppers=stoppers,
        merge_floor=kwargs.get("merge_val_overlap_floor", 5),
        frontier_type=kwargs.get("frontier_type", "instance"),
        experiment=create_experiment_tracker(
            use_wandb=settings.use_wandb,
            wandb_api_key=settings.wandb_api_key,
            wandb_init_kwargs=settings.wandb_init_kwargs,
            wandb_attach_existing=kwargs.get("wandb_attach_existing", False),
        ),
        plain=all(isinstance(one, str) for one in (chosen, selects, policy))
        and acceptance is None
        and not callbacks
        and not kwargs.get("stop_callbacks")
        and "batch_sampler" not in kwargs,
        ordered=not isinstance(policy, str) or not isinstance(acceptance, str | None),
    )


def _part(value: Any, known: Mapping[str, Callable[..., Any]], *given: Any) -> Any:
    return known[value](*given) if isinstance(value, str) else value
