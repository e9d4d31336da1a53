"""Checks arguments of gepa: a run takes some, and names the place of the others."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, cast, get_args

import dspy

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.settings import FrontierType, GepaOptions

__all__ = ["check_gepa_kwargs", "check_names"]

_NAMES: Mapping[str, tuple[str, ...]] = {
    "candidate_selection_strategy": ("pareto", "current_best", "epsilon_greedy", "top_k_pareto"),
    "component_selector": ("round_robin", "all"),
    "frontier_type": get_args(FrontierType),
}

_COMPARED = "Leave it out: the children of an update are compared row by row."
_ALL_ROWS = "Leave it out: candidates are validated on all rows."
_MLFLOW = "Give tracker='mlflow', and tell mlflow itself where it writes."
# What gepa.optimize takes and our loop does not call, and the way to do it.
_REFUSED: Mapping[str, str] = {
    **{name: f"Give {name} to Combee." for name in inspect.signature(dspy.GEPA).parameters},
    "acceptance_criterion": _COMPARED,
    "selection_strategy": _COMPARED,
    "merge_val_overlap_floor": _ALL_ROWS,
    "val_evaluation_policy": _ALL_ROWS,
    "mlflow_tracking_uri": _MLFLOW,
    "mlflow_experiment_name": _MLFLOW,
    "mlflow_attach_existing": _MLFLOW,
    "tracking_key_prefix": _MLFLOW,
    "use_mlflow": "Give tracker='mlflow' to Combee.",
    "wandb_attach_existing": "Give use_wandb to Combee.",
    "batch_sampler": "Give a controller, which plans the size of minibatches.",
    "use_cloudpickle": "Leave it out: nothing is pickled.",
    "sampling_strategy": "Give Search(children=…, staleness=…).",
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
    "display_progress_bar": "Give tracker='progress' to Combee.",
    "raise_on_exception": "Leave it out: an error always ends the run.",
    "task_lm": "Call dspy.configure(lm=…).",
    "evaluator": "Give metric to Combee.",
}


def check_gepa_kwargs(values: object) -> GepaOptions:
    """Return what ``gepa_kwargs`` ask for.

    Raises:
        ArgumentTypeError: One is no argument of ``gepa.optimize``.
        ArgumentValueError: One would replace our loop, or has a place elsewhere.
    """
    if not isinstance(values, Mapping):
        raise ArgumentTypeError("gepa_kwargs", values, "is no mapping", "Give a dict.")
    names = {field.name for field in fields(GepaOptions)}
    for name, value in values.items():
        label = f"gepa_kwargs[{name!r}]"
        if name in _REFUSED:
            problem = "cannot be used from Combee's own loop"
            remedy = f"{_REFUSED[name]} Or use Combee.parity, which is dspy.GEPA itself."
            raise ArgumentValueError(label, value, problem, remedy)
        if name not in names:
            raise ArgumentTypeError(label, value, "is no argument of gepa.optimize", "Remove it.")
    check_names(values)
    return GepaOptions(
        callbacks=_several(values.get("callbacks")),
        frontier_type=cast("FrontierType", values.get("frontier_type") or "instance"),
        stop_callbacks=_several(values.get("stop_callbacks")),
    )


def _several(value: object) -> tuple[Any, ...]:
    """Return none, one or several objects as a tuple."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, Iterable) else (value,)


def check_names(values: Mapping[str, object]) -> None:
    """Check what names parts of gepa.

    Args:
        values: What the user gave, by argument.

    Raises:
        ArgumentValueError: A name is unknown.
    """
    for argument, names in _NAMES.items():
        value = values.get(argument)
        if isinstance(value, str) and value not in names:
            remedy = f"Give one of {', '.join(names)}, or an object."
            raise ArgumentValueError(argument, value, "is unknown", remedy)
