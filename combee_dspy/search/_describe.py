"""Describes a run: what it may be resumed with, and what people read of it. Pure."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import logging
import re
from collections.abc import Mapping
from typing import Any

import dspy

from combee_dspy.evaluation import evaluator_lms
from combee_dspy.lms.redact import SECRET_NAME, mask
from combee_dspy.options import Search
from combee_dspy.records import Role
from combee_dspy.registry import Spec
from combee_dspy.report import CombeeReport
from combee_dspy.search._candidates import Candidate, Compilation
from combee_dspy.settings import GepaOptions, Settings

_logger = logging.getLogger(__name__)


def lms_by_role(settings: Settings) -> dict[Role, dspy.BaseLM | None]:
    """Return the LMs that the library itself asks; ``None`` for DSPy's own."""
    return {"proposer": settings.reflection_lm, "reflector": settings.reflection_lm}


def models_by_role(settings: Settings) -> dict[str, str]:
    """Return the names of a run's models, by what they are asked for."""
    lms = {"task": dspy.settings.lm, "proposer": settings.reflection_lm}
    return {role: _model(lm) for role, lm in lms.items() if lm is not None}


def _model(lm: object) -> str:
    return str(getattr(lm, "model", type(lm).__name__))


def evaluator_of(metric: Any, print_: str) -> str:
    """Return the name of an evaluator: the metric's qualified name, its judges' models, and 12
    digits of its hash.

    The hash (see :func:`combee_dspy.rollouts.fingerprints`) is that of its code and settings:
    another hash is another evaluator, whatever its name.
    """
    code = metric
    while isinstance(code, functools.partial):
        code = code.func
    code = code if hasattr(code, "__qualname__") else type(code)
    judges = ", ".join(map(_model, evaluator_lms(metric, dspy.settings.lm)))
    judged_by = f" ({judges})" if judges else ""
    return f"{code.__module__}.{code.__qualname__}{judged_by} #{print_[:12]}"


def specs(settings: Settings) -> dict[str, Any]:
    """Return the strategies as plain data, by what they are for."""
    roles = ("artifact", "aggregator", "controller", "executor")
    return {
        **{role: _spec(getattr(settings, role)) for role in roles},
        "operators": [_spec(operator) for operator in settings.operators],
    }


def _spec(strategy: Any) -> dict[str, Any]:
    spec: dict[str, Any] = Spec.of(strategy).to_dict()
    return {**spec, "params": _plain(spec["params"])}


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values that are no JSON as texts."""
    return {
        name: value if _is_plain(value) else mask(stable_repr(value))
        for name, value in values.items()
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (str, bool, int, float))


_DECIDES = (
    "artifact",
    "aggregator",
    "operators",
    "controller",
    "diversity",
    "seed",
    "failure_score",
    "perfect_score",
    "skip_perfect_score",
    "component_selector",
    "candidate_selection_strategy",
    "add_format_failure_as_feedback",
    "instruction_proposer",
    "code_proposer",
)
# Options of a group that a run may go on without, or with another value of.
_FREE = frozenset(
    {
        "replay",
        "patience",
        "require_diagnosis",
        "who",
        "warn_failures",
        "stop_failures",
        "rollout_seconds",
    }
)
# An option that came later, with what runs did before: those go on.
_LATER = ("reads", "call")


def identity(task: Compilation, prints: Mapping[str, str]) -> dict[str, str]:
    """Return all that a run's effects or their order follow from: it is resumed with the same."""
    settings = task.settings
    groups = {
        "guards": settings.guards,
        "search": _search(settings),
        "validation": settings.validation,
        "privacy": settings.privacy,
    }
    named: dict[str, object] = {
        **{name: getattr(settings, name) for name in _DECIDES},
        **{
            group: {
                name: value
                for name, value in _fields(options).items()
                if name not in _FREE and (name, value) != _LATER
            }
            for group, options in groups.items()
        },
        "gepa_kwargs": _gepa_kwargs(settings),
        "memo": settings.cache is not False,
        "reflection_lm": _settings_of(settings.reflection_lm),
    }
    texts = {
        name: mask(value if isinstance(value, str) else stable_repr(value))
        for name, value in named.items()
    }
    digests = {f"{split} set": digest[:16] for split, digest in task.splits.digests.items()}
    short = {name: print_[:16] for name, print_ in prints.items()}
    return {**short, **digests, **texts, "models": repr(models_by_role(settings))}


def _fields(options: Any) -> dict[str, Any]:
    return {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}


def _gepa_kwargs(settings: Settings) -> dict[str, Any]:
    """Return the options that differ from their defaults."""
    defaults, options = _fields(GepaOptions()), _fields(settings.gepa)
    return {name: value for name, value in options.items() if value != defaults[name]}


def _search(settings: Settings) -> Search:
    """Return the options of a search with what follows from the other settings."""
    return dataclasses.replace(settings.search, keep=settings.keep, staleness=settings.staleness)


def stable_repr(value: Any) -> str:
    """Return a ``repr`` without addresses, which change from run to run."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def budget_digest(task: Compilation) -> str:
    """Return a digest of a run's budget: where one decided, a larger one decides anew."""
    limits = stable_repr((task.limits, task.settings.budget)).encode()
    return hashlib.blake2b(limits, digest_size=6).hexdigest()


def over_place(task: Compilation) -> str:
    """Return where a run notes that it came to its end: one of other models may go on for longer,
    or cost more.
    """
    models = stable_repr(models_by_role(task.settings)).encode()
    return f"over/{budget_digest(task)}/{hashlib.blake2b(models, digest_size=6).hexdigest()}"


def _settings_of(lm: Any) -> dict[str, Any]:
    """Return the arguments of an LM's calls; address, key and headers change no answer."""
    kwargs = dict(getattr(lm, "kwargs", None) or {})
    hidden = re.compile(f"api_base|base_url|header|{SECRET_NAME.pattern}", re.IGNORECASE)
    return {name: kwargs[name] for name in sorted(kwargs) if not hidden.search(name)}


def describe(task: Compilation, evaluator: str) -> dict[str, Any]:
    """Return what people read of a run, as JSON values."""
    settings, splits, models = task.settings, task.splits, models_by_role(task.settings)
    sizes = {name: len(getattr(splits, name)) for name in ("train", "validation", "heldout")}
    traces: dict[str, Any] = {}
    if splits.traces is not None:
        sizes["traces"] = len(splits.traces.rows)
        traces = {"traces": str(splits.traces), "traces_seen": splits.traces.seen}
    return {
        "program": type(task.student).__name__,
        "specs": specs(settings),
        "models": models,
        "evaluator": evaluator,
        "digests": dict(splits.digests),
        "sizes": sizes,
        **traces,
        "settings": _plain_settings(settings),
        "keep": settings.keep,
        "search": _plain(_fields(_search(settings))),
        "budget": repr(settings.budget),
        "limits": dataclasses.asdict(task.limits),
        "seed": settings.seed,
        "versions": {
            name: importlib.metadata.version(name) for name in ("dspy", "gepa", "combee-dspy")
        },
        "simulated": any("simulated" in model for model in models.values()),
    }


_NAMED = (
    "num_threads",
    "failure_score",
    "perfect_score",
    "skip_perfect_score",
    "add_format_failure_as_feedback",
    "candidate_selection_strategy",
    "component_selector",
    "cache",
)
_GROUPED = ("validation", "guards", "diversity", "privacy")


def _plain_settings(settings: Settings) -> dict[str, Any]:
    """Return, for people, the settings that no other part of a description holds: each under a name
    of its own, those of a group as ``guards.max_tokens``.
    """
    named = {name: getattr(settings, name) for name in _NAMED}
    named["gepa_kwargs"] = _gepa_kwargs(settings)
    for group in _GROUPED:
        options = _fields(getattr(settings, group))
        named |= {f"{group}.{name}": value for name, value in options.items()}
    return _plain(named)


def result_of(report: CombeeReport) -> dict[str, Any]:
    """Return what people read of a run that is over, as JSON values."""
    held = report.heldout
    return {
        "reason": report.reason,
        "seed_score": report.seed_score,
        "best_score": report.best_score,
        "rollouts": report.rollouts,
        "updates": report.updates,
        "seconds": report.seconds,
        "heldout": None if held is None else dataclasses.asdict(held),
        "warnings": list(report.warnings),
        "best": Candidate(report.texts).id,
    }


def bare_state(program: dspy.Module) -> dict[str, Any] | None:
    """Return the state of what a run returns, without its LMs; ``None`` where it cannot be written.

    LMs may hold a key, and belong to whoever loads the program.
    """
    bare = program.deepcopy()
    bare.set_lm(None)
    try:
        state: dict[str, Any] = bare.dump_state()
    except Exception:
        _logger.warning(
            "The program's state cannot be written, so that no tracker gets it.", exc_info=True
        )
        return None
    return state
