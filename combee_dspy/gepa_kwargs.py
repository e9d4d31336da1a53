"""What may be handed through to ``gepa.optimize``, and what may not."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError

__all__ = ["checked_gepa_kwargs"]

# Arguments of gepa.optimize that Combee sets, and where to give each: from here they would be
# overridden in silence, or override what the checks have seen.
_SET_BY_COMBEE: Mapping[str, str] = {
    "seed_candidate": "Give the program to compile().",
    "trainset": "Give trainset to compile().",
    "valset": "Give valset to compile().",
    "adapter": "Combee is the adapter: remove it.",
    "reflection_lm": "Give reflection_lm to Combee.",
    "reflection_lm_kwargs": "Give reflection_lm=dspy.LM(…, **kwargs) to Combee.",
    "candidate_selection_strategy": "Give candidate_selection_strategy to Combee.",
    "skip_perfect_score": "Give skip_perfect_score to Combee.",
    "reflection_minibatch_size": "Give reflection_minibatch_size to Combee.",
    "perfect_score": "Give perfect_score to Combee.",
    "custom_candidate_proposer": "Give instruction_proposer to Combee.",
    "module_selector": "Give component_selector to Combee.",
    "use_merge": "Give use_merge to Combee.",
    "max_merge_invocations": "Give max_merge_invocations to Combee.",
    "max_metric_calls": "Give max_metric_calls to Combee.",
    "logger": "Set the level of logging.getLogger('combee_dspy').",
    "run_dir": "Give log_dir to Combee.",
    "use_wandb": "Give use_wandb to Combee.",
    "wandb_api_key": "Give wandb_api_key to Combee.",
    "wandb_init_kwargs": "Give wandb_init_kwargs to Combee.",
    "use_mlflow": "Give use_mlflow to Combee.",
    "track_best_outputs": "Give track_best_outputs to Combee.",
    "display_progress_bar": "Give progress to Combee.",
    "raise_on_exception": "An error always ends the run: remove it.",
    "seed": "Give seed to Combee.",
}

# Arguments that would not do what they say.
_UNUSABLE: Mapping[str, tuple[str, str]] = {
    "max_reflection_cost": ("is not supported", "Give budget=Budget(dollars=…), which counts every role."),
    "cache_evaluation": (
        "would confuse training with validation examples, whose positions are its keys",
        "Combee buys no rollout twice without it (memoize, cache).",
    ),
    "reflection_prompt_template": (
        "would not be used",
        "Give instruction_proposer=InstructionProposer(base_instructions=…) instead.",
    ),
}


def checked_gepa_kwargs(given: Mapping[str, Any], minibatch_size: int | None) -> dict[str, Any]:
    """Return a copy of ``gepa_kwargs`` that changes only what Combee leaves open.

    gepa's own name for its default sampler asks for nothing, and is left out.

    Args:
        given: Arguments of ``gepa.optimize``.
        minibatch_size: ``reflection_minibatch_size``, which a sampler of the user's would contradict.

    Raises:
        ArgumentTypeError: One is no argument of ``gepa.optimize``.
        ArgumentValueError: One is set by Combee, would not do what it says, or contradicts another.
    """
    from gepa import optimize

    kept = {name: value for name, value in given.items() if (name, value) != ("batch_sampler", "epoch_shuffled")}
    known = inspect.signature(optimize).parameters
    for name, value in kept.items():
        label = f"gepa_kwargs[{name!r}]"
        if name not in known:
            raise ArgumentTypeError(label, value, "is no argument of gepa.optimize", "Remove it.")
        if name in _SET_BY_COMBEE:
            raise ArgumentValueError(label, value, "is set by Combee", _SET_BY_COMBEE[name])
        if name in _UNUSABLE and (value is not None or name != "max_reflection_cost"):
            raise ArgumentValueError(label, value, *_UNUSABLE[name])
    if "batch_sampler" in kept and minibatch_size is not None:
        problem = "sets the size of minibatches, and so does reflection_minibatch_size"
        raise ArgumentValueError("gepa_kwargs['batch_sampler']", kept["batch_sampler"], problem, "Give one of them.")
    return kept
