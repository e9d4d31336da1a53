"""What a run is: what it may be resumed with, and what people are told of it. Pure."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import re
from collections.abc import Mapping
from typing import Any

import dspy

from combee_dspy.hashing import row_hash
from combee_dspy.lms.redact import SECRET_NAME
from combee_dspy.records import Role
from combee_dspy.registry import Spec
from combee_dspy.report import CombeeReport
from combee_dspy.search._candidates import Candidate, Compilation
from combee_dspy.stopping import Limits

__all__ = ["describe", "identity", "lms_by_role", "models_by_role", "result_of", "specs", "stable_repr"]


def lms_by_role(settings: Any) -> dict[Role, dspy.BaseLM | None]:
    return {"proposer": settings.reflection_lm, "reflector": settings.reflection_lm}


def models_by_role(settings: Any) -> dict[str, str]:
    found = {"task": dspy.settings.lm, "proposer": settings.reflection_lm}
    return {role: str(getattr(lm, "model", type(lm).__name__)) for role, lm in found.items() if lm is not None}


def specs(settings: Any) -> dict[str, Any]:
    named = {"artifact": settings.artifact, "aggregator": settings.aggregator, "controller": settings.controller,
             "executor": settings.executor}  # fmt: skip
    found: dict[str, Any] = {role: _spec(one) for role, one in named.items()}
    return {**found, "operators": [_spec(one) for one in settings.operators]}


def _spec(strategy: Any) -> dict[str, Any]:
    spec = Spec.of(strategy).to_dict()
    spec["params"] = {name: value if _is_plain(value) else repr(value) for name, value in spec["params"].items()}
    return spec


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(one) for key, one in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (str, bool, int, float))


def identity(task: Compilation, prints: Mapping[str, str]) -> dict[str, str]:
    """Return what a run may be resumed with: everything that its effects or their order follow from."""
    settings = task.settings
    named = {
        "artifact": settings.artifact, "aggregator": settings.aggregator, "operators": settings.operators,
        "controller": settings.controller, "search": dataclasses.replace(settings.search, replay=None),
        "validation": settings.validation, "diversity": settings.diversity, "seed": settings.seed,
        "failure_score": settings.failure_score, "perfect_score": settings.perfect_score,
        "skip_perfect_score": settings.skip_perfect_score, "component_selector": settings.component_selector,
        "candidate_selection_strategy": settings.candidate_selection_strategy,
        "add_format_failure_as_feedback": settings.add_format_failure_as_feedback, "use_merge": settings.use_merge,
        "max_copied_words": settings.guards.max_copied_words, "max_tokens": settings.guards.max_tokens,
        "keep": settings.guards.keep, "anchors": [row_hash(one) for one in settings.guards.anchors],
        "gepa_kwargs": settings.gepa_kwargs, "instruction_proposer": settings.custom_instruction_proposer,
        "code_proposer": settings.custom_code_proposer, "max_merge_invocations": settings.max_merge_invocations,
        "memo": settings.cache is not False, "reflection_lm": _settings_of(settings.reflection_lm),
    }  # fmt: skip
    texts = {name: value if isinstance(value, str) else stable_repr(value) for name, value in named.items()}
    digests = {f"{split} set": digest[:16] for split, digest in task.splits.digests.items()}
    short = {name: print_[:16] for name, print_ in prints.items()}
    return {**short, **digests, **texts, "models": repr(models_by_role(settings))}


def stable_repr(value: Any) -> str:
    """Return a ``repr`` without addresses, which say nothing about what an object does, and change."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def _settings_of(lm: Any) -> dict[str, Any]:
    """Return what an LM is asked with. Where it is served, and with which key, does not change what it is."""
    given = dict(getattr(lm, "kwargs", None) or {})
    return {name: given[name] for name in sorted(given) if name != "api_base" and not SECRET_NAME.search(name)}


def describe(task: Compilation, limits: Limits) -> dict[str, Any]:
    versions = {name: importlib.metadata.version(name) for name in ("dspy", "gepa", "combee-dspy")}
    settings = task.settings
    return {
        "specs": specs(settings), "models": models_by_role(settings), "digests": dict(task.splits.digests),
        "sizes": {"train": len(task.splits.train), "validation": len(task.splits.validation),
                  "heldout": len(task.splits.heldout)},
        "keep": settings.keeps, "search": settings.search.params(),
        "budget": repr(settings.budget), "limits": dataclasses.asdict(limits), "seed": settings.seed,
        "versions": versions,
        "simulated": any("simulated" in model for model in models_by_role(settings).values()),
    }  # fmt: skip


def result_of(report: CombeeReport) -> dict[str, Any]:
    held = report.heldout
    return {
        "reason": report.reason, "seed_score": report.seed_score, "best_score": report.best_score,
        "rollouts": report.rollouts, "updates": report.updates, "seconds": report.seconds,
        "heldout": None if held is None else dataclasses.asdict(held), "warnings": list(report.warnings),
        "best": Candidate(report.texts).id,
    }  # fmt: skip
