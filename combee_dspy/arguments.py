"""Checks of what a user gives ``Combee``: each argument by itself, and those that contradict each
other.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import cast

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
from combee_dspy.gepa_arguments import check_gepa_kwargs, check_names
from combee_dspy.guards import Guards
from combee_dspy.operators import Operator
from combee_dspy.options import Privacy, Search, Validation
from combee_dspy.settings import GepaOptions, Keep, Settings, resolve_all, to_settings
from combee_dspy.stopping import Budget

__all__ = [
    "check_arguments",
    "check_bounded",
    "check_lm",
    "check_metric",
    "check_together",
    "check_wide",
    "choose_keep",
    "refuse_unknown",
]

_GIVE_A_LIMIT = "Give one of auto, max_full_evals, max_metric_calls, or a budget."

_GROUPS: Mapping[str, type[object]] = {
    "budget": Budget,
    "validation": Validation,
    "guards": Guards,
    "diversity": Diversity,
    "costs": Costs,
    "search": Search,
    "privacy": Privacy,
}

_COMPILED = ("trainset", "valset", "heldout", "traces", "selection")
"""What ``compile`` takes beside the program."""

_ELSEWHERE: Mapping[str, str] = {
    **{
        name: f"{group}={options.__name__}({name}=…)"
        for group, options in _GROUPS.items()
        for name in inspect.signature(options).parameters
    },
    **{name: f"compile(program, {name}=…)" for name in _COMPILED},
    "patience": (
        "budget=Budget(…) | Patience(updates=…) to end a run that stands still, or"
        " search=Search(patience=…), seconds that a call waits for its service"
    ),
    "target": "budget=Budget(…) | Target(score=…)",
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
    """Refuse what ``Combee`` does not take.

    The error says where the argument belongs, or which of the ``names`` is nearest to it.

    Raises:
        ArgumentTypeError: There is any.
    """
    for name, value in arguments.items():
        problem, remedy = "is no argument of Combee", "See help(combee_dspy.Combee)."
        if name in _ELSEWHERE:
            problem, remedy = "has a place of its own", f"Give {_ELSEWHERE[name]}."
        close = "" if name in _ELSEWHERE else did_you_mean(name, (*names, *_ELSEWHERE))
        raise ArgumentTypeError(name, value, problem, f"{close}{remedy}")


def refuse_elsewhere(arguments: Mapping[str, object], teleprompter: type) -> None:
    """Refuse what ``compile`` does not take.

    The error says whether the teleprompter takes it, or which name of ``compile`` is nearest to it.

    Raises:
        ArgumentTypeError: There is any.
    """
    settings = inspect.signature(teleprompter).parameters
    for name, value in arguments.items():
        remedy = f"Give it to Combee(…, {name}=…)."
        if name not in settings:
            remedy = f"{did_you_mean(name, _COMPILED)}It takes {', '.join(_COMPILED)}."
        raise ArgumentTypeError(name, value, "is no argument of compile", remedy)


def check_arguments(arguments: Mapping[str, object]) -> Settings:
    """Return the settings that the arguments of ``Combee`` ask for, each checked by itself.

    Raises:
        ArgumentTypeError: An argument has a type that cannot be used.
        ArgumentValueError: An argument has a value that cannot be used.
        UnknownStrategyError: A strategy's name is not installed.
        MissingDistributionError: ``use_wandb`` without W&B.
    """
    check_metric(arguments["metric"])
    check_lm("reflection_lm", arguments["reflection_lm"])
    check_names(arguments)
    if arguments["cache"] is True:
        remedy = "Give the path of a file, or leave it out: no rollout is bought twice in one run."
        raise ArgumentTypeError("cache", True, "is no file", remedy)
    if (merges := arguments["max_merge_invocations"]) != _MERGES:
        remedy = "Leave it out, or use Combee.parity, which is dspy.GEPA itself."
        raise ArgumentValueError(
            "max_merge_invocations", merges, "has no effect: Combee merges no candidates", remedy
        )
    if arguments["use_wandb"] and not _is_installed("wandb"):
        raise MissingDistributionError("use_wandb=True", "wandb")
    artifact, operators = _build_artifact(arguments["artifact"], arguments["operators"])
    tracker = arguments["tracker"]
    if tracker is None and arguments["use_mlflow"]:
        tracker = "mlflow"
    gepa = check_gepa_kwargs(arguments["gepa_kwargs"] or {})
    resolved = {"artifact": artifact, "operators": operators, "tracker": tracker, "gepa": gepa}
    return to_settings({**arguments, **resolved})


def _is_installed(module: str) -> bool:
    return module in sys.modules or importlib.util.find_spec(module) is not None


def _build_artifact(value: object, operators: object) -> tuple[Artifact, tuple[Operator, ...]]:
    """Return an artifact, and the operators that edit it: its usual ones for ``None``."""
    artifact = cast("Artifact", registry.resolve("artifact", value))
    if not isinstance(artifact, Instruction):
        if operators is not None:
            remedy = f"Leave it out: artifact {artifact.name!r} applies lessons itself."
            raise ArgumentValueError("operators", operators, "edit instructions alone", remedy)
        return artifact, cast("tuple[Operator, ...]", resolve_all("operator", "insert"))
    chosen = artifact.usual_operators() if operators is None else operators
    edits = cast("tuple[Operator, ...]", resolve_all("operator", chosen))
    if not edits:
        remedy = "Give at least one operator, such as 'insert'."
        raise ArgumentValueError("operators", operators, "is empty", remedy)
    return dataclasses.replace(artifact, operators=edits), edits


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
        problem = f"does not take GEPA's five arguments: {error}"
        raise ArgumentTypeError("metric", metric, problem, remedy) from error
    except ValueError:
        return  # Some built-in callables have no signature to look at; the first rollout will tell.


def check_lm(argument: str, lm: object) -> None:
    """Refuse the name of an LM where an LM is needed.

    Raises:
        ArgumentTypeError: It is a text.
    """
    if isinstance(lm, str):
        problem = "is the name of an LM and no LM"
        raise ArgumentTypeError(argument, lm, problem, f"Give dspy.LM({lm!r}).")


def check_wide(workers: int | None, diversity: Diversity) -> None:
    """Refuse many workers where no near copy is refused, or hardly any.

    Raises:
        RefusedError: There are more than 8 workers, and the threshold is above 0.99.
    """
    threshold = 1.0 if diversity.embedder is None else diversity.threshold
    if workers is not None and workers > _WIDE and threshold is not None and threshold > _ALIKE:
        reason = "so many workers on one text propose the same child many times over"
        remedy = f"Leave diversity at its defaults, or search with {_WIDE} workers at most."
        raise RefusedError(f"{workers} workers with diversity off", reason, remedy)


def choose_keep(settings: Settings) -> Keep:
    """Return how a run keeps what it learns.

    One text grows by default. Where something is set that only GEPA's search can use, that search
    is the default.
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


def _unused_by_a_trunk(settings: Settings) -> list[str]:
    """Return the arguments that a trunk, one text with nothing to choose from, would ignore."""
    search, diversity = settings.search, settings.diversity
    # One text is compared with no other: of diversity, the temperature and restarts are left.
    likeness = Diversity(temperature=diversity.temperature, restart=diversity.restart)
    is_set = {
        "instruction_proposer": settings.instruction_proposer is not None,
        "candidate_selection_strategy": settings.candidate_selection_strategy != "pareto",
        "component_selector": not isinstance(settings.component_selector, str),
        "gepa_kwargs['callbacks']": bool(settings.gepa.callbacks),
        "gepa_kwargs['frontier_type']": settings.gepa.frontier_type != "instance",
        "search.children": search.children is not None,
        "search.screen": search.screen != Search().screen,
        "diversity.restart": diversity.restart is not None,
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
    for check in (_limits, _trackers, _keep, _guards, _texts, _removed, _proposer):
        for contradiction in check(settings):
            raise contradiction
    check_wide(settings.num_threads, settings.diversity)


def _limits(settings: Settings) -> Iterator[ArgumentValueError]:
    names = ("auto", "max_full_evals", "max_metric_calls")
    limits = {name: limit for name in names if (limit := getattr(settings, name)) is not None}
    if len(limits) > 1:
        problem = "cannot be given together"
        yield ArgumentValueError(" and ".join(limits), limits, problem, _GIVE_A_LIMIT)


def _trackers(settings: Settings) -> Iterator[ArgumentValueError]:
    names = None if settings.trackers is None else [tracker.name for tracker in settings.trackers]
    if settings.use_mlflow and names is not None and "mlflow" not in names:
        remedy = "Add 'mlflow' to tracker=[…]."
        yield ArgumentValueError("use_mlflow", True, "contradicts tracker", remedy)
    if settings.track_best_outputs and not settings.track_stats:
        remedy = "Set track_stats=True as well."
        yield ArgumentValueError("track_best_outputs", True, "needs track_stats", remedy)


def _keep(settings: Settings) -> Iterator[ArgumentValueError]:
    trunk = f"artifact {settings.artifact.name!r} is always a trunk."
    if settings.keep == "pareto" and not settings.edits_instructions:
        remedy = f"Leave keep out, or give 'trunk': {trunk}"
        yield ArgumentValueError("search.keep", "pareto", "cannot keep this artifact", remedy)
    controller = settings.chosen_controller
    if controller is not None and settings.reflection_minibatch_size is not None:
        remedy = "Give reflection_minibatch_size for a fixed size, or a controller."
        problem = "contradicts reflection_minibatch_size"
        yield ArgumentValueError("controller", controller, problem, remedy)
    if settings.keep == "trunk" and (unused := _unused_by_a_trunk(settings)):
        remedy = f"Leave it out: {trunk}"
        if settings.edits_instructions:
            remedy = "Leave it out, or give Search(keep='pareto')."
        yield ArgumentValueError(unused[0], "given", "is of no use to a trunk", remedy)
    if settings.search.staleness and settings.in_gepas_order:
        name = settings.in_gepas_order[0]
        yield ArgumentValueError(
            "search.staleness",
            settings.search.staleness,
            f"overlaps updates, and {name} is written for one after another",
            f"Leave it out, or give Search(staleness=0), or leave {name} out.",
        )


def _guards(settings: Settings) -> Iterator[ArgumentValueError]:
    """Refuse guards of instructions where there are none."""
    guards, usual = settings.guards, Guards()
    for name in ("max_tokens", "keep", "max_copied_words"):
        if getattr(guards, name) != getattr(usual, name) and not settings.edits_instructions:
            remedy = f"Leave it out of artifact {settings.artifact.name!r}."
            problem = "holds for instructions alone"
            yield ArgumentValueError(f"guards.{name}", guards, problem, remedy)


def _texts(settings: Settings) -> Iterator[ArgumentValueError]:
    """Refuse what keeps texts where hashes alone may be kept."""
    if settings.privacy.texts != "hashes":
        return
    examples = [operator.name for operator in settings.operators if operator.edits_demonstrations]
    # What is looked up is found by words of the rows, and may be rows.
    memory = settings.artifact if settings.artifact.looks_up else None
    places = (("cache", settings.cache), ("operators", examples), ("artifact", memory))
    for name, value in places:
        if value:
            remedy = "Leave it out, or give Privacy(texts='redacted')."
            problem = "keeps texts where hashes alone may be kept"
            yield ArgumentValueError(name, value, problem, remedy)


def _removed(settings: Settings) -> Iterator[ArgumentValueError]:
    """Refuse lessons to be removed beside what writes texts outside the book."""
    outside = [operator.name for operator in settings.operators if not operator.serves_book]
    if settings.instruction_proposer is not None:
        outside.append("instruction_proposer")
    if settings.guards.removed and outside:
        problem = f"cannot be held beside {', '.join(outside)}, which write texts of their own"
        remedy = "Use operators='insert'."
        yield ArgumentValueError("guards.removed", settings.guards.removed, problem, remedy)


def _proposer(settings: Settings) -> Iterator[ArgumentValueError]:
    if settings.instruction_proposer is not None or settings.reflection_lm is not None:
        return
    needs_lessons = any(operator.needs_lessons for operator in settings.operators)
    if needs_lessons or not settings.edits_instructions:
        remedy = (
            "Give a strong LM, for example dspy.LM('openai/gpt-5', temperature=1.0,"
            " max_tokens=32000)."
        )
        problem = "is required: it writes the new prompts"
        yield ArgumentValueError("reflection_lm", None, problem, remedy)
