"""Checks of what a user gives: each argument by itself, and those that contradict each other."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar, cast

from combee_dspy import registry
from combee_dspy.artifacts import Artifact, Instruction
from combee_dspy.costs import Costs
from combee_dspy.diversity import Diversity
from combee_dspy.exceptions import (
    ArgumentTypeError,
    ArgumentValueError,
    MissingDistributionError,
    RefusedError,
    did_you_mean,
)
from combee_dspy.guards import Guards
from combee_dspy.operators import Operator
from combee_dspy.options import Privacy, Search, Validation
from combee_dspy.settings import GepaOptions, Keep, Settings
from combee_dspy.stopping import StoppingRule
from combee_dspy.strategies import Strategy

__all__ = [
    "build",
    "build_all",
    "build_artifact",
    "check_bounded",
    "check_budget",
    "check_cache",
    "check_diversity",
    "check_lm",
    "check_merges",
    "check_metric",
    "check_preset",
    "check_score",
    "check_together",
    "check_wandb",
    "check_wide",
    "choose_keep",
    "refuse_unknown",
]

S = TypeVar("S", bound=Strategy)

_GIVE_A_LIMIT = "Give one of auto, max_full_evals, max_metric_calls, or a budget."

_GROUPS: Mapping[str, type[object]] = {
    "validation": Validation,
    "guards": Guards,
    "diversity": Diversity,
    "costs": Costs,
    "search": Search,
    "privacy": Privacy,
}

_ELSEWHERE: Mapping[str, str] = {
    **{
        name: f"{group}={options.__name__}({name}=…)"
        for group, options in _GROUPS.items()
        for name in inspect.signature(options).parameters
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

_WIDE = 8  # workers
_ALIKE = 0.99  # a threshold above refuses nothing but the same text
_MERGES = 5  # dspy.GEPA's default


def refuse_unknown(arguments: Mapping[str, object], names: Iterable[str]) -> None:
    """Refuse what ``Combee`` does not take, with the place where it belongs, or the nearest of the
    ``names`` that it takes.

    Raises:
        ArgumentTypeError: There is any.
    """
    for name, value in arguments.items():
        if name in _ELSEWHERE:
            raise ArgumentTypeError(
                name, value, "has a place of its own", f"Give {_ELSEWHERE[name]}."
            )
        close = did_you_mean(name, (*names, *_ELSEWHERE))
        raise ArgumentTypeError(
            name, value, "is no argument of Combee", f"{close}See help(combee_dspy.Combee)."
        )


def check_metric(metric: object) -> None:
    """Check that a metric can be called as GEPA calls it.

    Raises:
        ArgumentTypeError: It is not callable, or does not take five arguments.
    """
    remedy = (
        "Give a function (gold, pred, trace=None, pred_name=None, pred_trace=None) that returns a"
        " score."
    )
    if not callable(metric):
        raise ArgumentTypeError("metric", metric, "is not callable", remedy)
    try:
        inspect.signature(metric).bind(None, None, None, None, None)
    except TypeError as error:
        raise ArgumentTypeError(
            "metric", metric, f"does not take GEPA's five arguments: {error}", remedy
        ) from error
    except ValueError:
        return  # Some built-in callables have no signature to look at; the first rollout will tell.


def check_lm(argument: str, lm: object) -> None:
    """Refuse the name of an LM where an LM is needed.

    Raises:
        ArgumentTypeError: It is a text.
    """
    if isinstance(lm, str):
        raise ArgumentTypeError(
            argument, lm, "is the name of an LM and no LM", f"Give dspy.LM({lm!r})."
        )


def check_preset(argument: str, value: object, presets: Sequence[str]) -> None:
    """Check the name of a preset; ``None`` asks for none.

    Raises:
        ArgumentValueError: It is another name.
    """
    if value is not None and value not in presets:
        names = ", ".join(map(repr, presets))
        raise ArgumentValueError(argument, value, "is no preset", f"Give one of {names}.")


def check_score(argument: str, value: float) -> float:
    """Return a score that a run may reckon with.

    Raises:
        ArgumentTypeError: It is no finite number.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ArgumentTypeError(argument, value, "is no finite number", "Give one, such as 0.0.")
    return value


def check_budget(budget: object) -> None:
    """Check that a budget is a stopping rule, or ``None``.

    Raises:
        ArgumentTypeError: It is something else.
    """
    if budget is not None and not isinstance(budget, StoppingRule):
        remedy = "Give combee_dspy.Budget(rollouts=…, dollars=…), or another stopping rule."
        raise ArgumentTypeError("budget", budget, "is no stopping rule", remedy)


def check_cache(cache: object) -> None:
    """Refuse ``True``, which names no file.

    Raises:
        ArgumentTypeError: It is ``True``.
    """
    if cache is True:
        remedy = "Give the path of a file, or leave it out: no rollout is bought twice in one run."
        raise ArgumentTypeError("cache", True, "is no file", remedy)


def check_diversity(diversity: Diversity | bool) -> Diversity:
    """Return options of diversity for what may be a switch.

    Raises:
        ArgumentTypeError: It is something else.
    """
    if isinstance(diversity, bool):
        return Diversity() if diversity else Diversity.off()
    return diversity


def check_wandb(use_wandb: bool) -> None:
    """Check that W&B is there where it is asked for.

    Raises:
        MissingDistributionError: It is not installed.
    """
    if use_wandb and "wandb" not in sys.modules and importlib.util.find_spec("wandb") is None:
        raise MissingDistributionError("what use_wandb=True logs to", "wandb")


def check_merges(most: int | None) -> None:
    """Refuse a number of merges of one's own: this loop makes none.

    Raises:
        ArgumentValueError: It is not ``dspy.GEPA``'s default.
    """
    if most != _MERGES:
        remedy = "Leave it out, or use Combee.parity, which is dspy.GEPA itself."
        raise ArgumentValueError("max_merge_invocations", most, "merges no candidates", remedy)


def check_wide(workers: int | None, diversity: Diversity) -> None:
    """Refuse many workers where no near copy is refused, or hardly any.

    Raises:
        RefusedError: So it is.
    """
    threshold = 1.0 if diversity.embedder is None else diversity.threshold
    if workers is not None and workers > _WIDE and threshold is not None and threshold > _ALIKE:
        reason = "so many workers on one text propose the same child many times over"
        remedy = f"Leave diversity at its defaults, or search with {_WIDE} workers at most."
        raise RefusedError(f"{workers} workers with diversity off", reason, remedy)


def build(base: type[S], value: object) -> S:
    """Return a strategy of a kind from its name, a mapping, a spec or itself.

    Args:
        base: The base class of its kind.
        value: What the user gave.

    Raises:
        ArgumentError: It is no strategy of that kind, or not installed.
        PluginError: It is installed but cannot be loaded.
    """
    return cast("S", registry.resolve(base.kind, value))


def build_all(base: type[S], values: object) -> tuple[S, ...]:
    """Return several strategies of a kind, from one value or several."""
    if isinstance(values, (str, Strategy, registry.Spec, Mapping)):
        values = (values,)
    return tuple(build(base, value) for value in cast("Iterable[object]", values))


def build_artifact(value: object, operators: object) -> tuple[Artifact, tuple[Operator, ...]]:
    """Return an artifact, and the operators that edit it: its usual ones for ``None``.

    Raises:
        ArgumentValueError: There are no operators.
    """
    artifact = build(Artifact, value)
    if operators is None and isinstance(artifact, Instruction):
        operators = artifact.usual_operators()
    edits = build_all(Operator, "insert" if operators is None else operators)
    if not edits:
        raise ArgumentValueError(
            "operators", operators, "is empty", "Give at least one operator, such as 'insert'."
        )
    if isinstance(artifact, Instruction):
        artifact = dataclasses.replace(artifact, operators=edits)
    return artifact, edits


def choose_keep(settings: Settings) -> Keep:
    """Return how a run keeps what it learns.

    One text grows by default. Where something is set that only GEPA's search can use, that search
    goes on as before.
    """
    if settings.search.keep is not None:
        return settings.search.keep
    if not settings.edits_instructions:
        return "trunk"
    # A trunk runs any operator, but each after the other and unscreened: such edits are better
    # compared. Stoppers, too, count by gepa's iterations.
    compares = settings.gepa != GepaOptions() or not all(
        operator.serves_book for operator in settings.operators
    )
    return "pareto" if compares or _unused_by_a_trunk(settings) else "trunk"


def _unused_by_a_trunk(settings: Settings) -> Iterable[str]:
    """Return the arguments that a trunk, one text with nothing to choose from, would ignore."""
    search, diversity = settings.search, settings.diversity
    likeness = dataclasses.replace(
        Diversity(), temperature=diversity.temperature, restart=diversity.restart
    )
    is_set = {
        "instruction_proposer": settings.instruction_proposer is not None,
        "candidate_selection_strategy": settings.candidate_selection_strategy != "pareto",
        "component_selector": not isinstance(settings.component_selector, str),
        "gepa_kwargs['callbacks']": bool(settings.gepa.callbacks),
        "gepa_kwargs['frontier_type']": settings.gepa.frontier_type != "instance",
        "search.children": search.children is not None,
        "search.screen": search.screen != Search().screen,
        "diversity.restart": diversity.restart is not None,
        # One text is compared with no other.
        "diversity": diversity.embedder is not None and diversity != likeness,
    }
    return [name for name, present in is_set.items() if present]


def check_bounded(settings: Settings) -> None:
    """Refuse a search that would never stop.

    Raises:
        ArgumentValueError: Nothing limits it.
    """
    limits = (settings.auto, settings.max_full_evals, settings.max_metric_calls, settings.budget)
    bounded = not settings.edits_instructions or settings.gepa.stop_callbacks
    if limits == (None,) * 4 and not bounded:
        problem = "is missing: the run would never stop"
        raise ArgumentValueError("budget", None, problem, _GIVE_A_LIMIT)


def check_together(settings: Settings) -> None:
    """Refuse arguments that contradict each other, or would be ignored in silence.

    Raises:
        ArgumentValueError: There are any.
        RefusedError: More than 8 workers with diversity off.
    """
    _check_limits(settings)
    _check_trackers(settings)
    _check_keep(settings)
    _check_guards(settings)
    _check_hashes(settings)
    _check_removed(settings)
    check_wide(settings.num_threads, settings.diversity)
    needed = settings.instruction_proposer is None and (
        not settings.edits_instructions
        or any(operator.needs_lessons for operator in settings.operators)
    )
    if needed and settings.reflection_lm is None:
        remedy = (
            "Give a strong LM, for example dspy.LM('openai/gpt-5', temperature=1.0,"
            " max_tokens=32000)."
        )
        raise ArgumentValueError(
            "reflection_lm", None, "is required: it writes the new prompts", remedy
        )


def _check_limits(settings: Settings) -> None:
    limits = {
        "auto": settings.auto,
        "max_full_evals": settings.max_full_evals,
        "max_metric_calls": settings.max_metric_calls,
    }
    limits = {name: value for name, value in limits.items() if value is not None}
    if len(limits) > 1:
        problem = "cannot be given together"
        raise ArgumentValueError(" and ".join(limits), limits, problem, _GIVE_A_LIMIT)


def _check_trackers(settings: Settings) -> None:
    trackers = settings.trackers
    if (
        settings.use_mlflow
        and trackers is not None
        and "mlflow" not in [tracker.name for tracker in trackers]
    ):
        raise ArgumentValueError(
            "use_mlflow", True, "contradicts tracker", "Add 'mlflow' to tracker=[…]."
        )
    if settings.track_best_outputs and not settings.track_stats:
        raise ArgumentValueError(
            "track_best_outputs", True, "needs track_stats", "Set track_stats=True as well."
        )


def _check_keep(settings: Settings) -> None:
    artifact = settings.artifact
    if settings.keep == "pareto" and not settings.edits_instructions:
        remedy = (
            f"Leave keep out, or give 'trunk': artifact {artifact.name!r} has one text that grows."
        )
        raise ArgumentValueError("search.keep", "pareto", "cannot keep this artifact", remedy)
    if settings.chosen_controller is not None and settings.reflection_minibatch_size is not None:
        remedy = "Give reflection_minibatch_size for a fixed size, or a controller."
        raise ArgumentValueError(
            "controller",
            settings.chosen_controller,
            "contradicts reflection_minibatch_size",
            remedy,
        )
    for argument in _unused_by_a_trunk(settings) if settings.keep == "trunk" else ():
        remedy = (
            "Leave it out, or give Search(keep='pareto')."
            if settings.edits_instructions
            else f"Leave it out: artifact {artifact.name!r} has one text that grows."
        )
        raise ArgumentValueError(argument, "given", "is of no use to a trunk", remedy)
    if settings.search.staleness and settings.in_gepas_order:
        name = settings.in_gepas_order[0]
        raise ArgumentValueError(
            "search.staleness",
            settings.search.staleness,
            f"overlaps updates, and {name} is written for one after another",
            f"Leave it out, or give Search(staleness=0), or leave {name} out.",
        )


def _check_guards(settings: Settings) -> None:
    """Refuse guards of instructions where there are none."""
    guards, usual = settings.guards, Guards()
    is_set = {
        "guards.max_tokens": guards.max_tokens != usual.max_tokens,
        "guards.keep": guards.keep != usual.keep,
        "guards.max_copied_words": guards.max_copied_words != usual.max_copied_words,
    }
    for argument in (name for name, present in is_set.items() if present):
        if not settings.edits_instructions:
            remedy = f"Leave it out of artifact {settings.artifact.name!r}."
            raise ArgumentValueError(argument, guards, "holds for instructions alone", remedy)


def _check_hashes(settings: Settings) -> None:
    """Refuse what keeps texts where hashes alone may be kept."""
    examples = [operator.name for operator in settings.operators if operator.edits_demonstrations]
    # What is looked up is found by words of the rows, and may be rows.
    memory = settings.artifact if settings.artifact.looks_up else None
    places = (("cache", settings.cache), ("operators", examples), ("artifact", memory))
    for name, value in places:
        if value and settings.privacy.texts == "hashes":
            remedy = "Leave it out, or give Privacy(texts='redacted')."
            raise ArgumentValueError(
                name, value, "keeps texts where hashes alone may be kept", remedy
            )


def _check_removed(settings: Settings) -> None:
    """Refuse lessons to be removed beside what writes texts outside the book."""
    outside = [operator.name for operator in settings.operators if not operator.serves_book]
    if settings.instruction_proposer is not None:
        outside.append("instruction_proposer")
    if settings.guards.removed and outside:
        problem = f"cannot be held beside {', '.join(outside)}, which write texts of their own"
        raise ArgumentValueError(
            "guards.removed", settings.guards.removed, problem, "Use operators='insert'."
        )
