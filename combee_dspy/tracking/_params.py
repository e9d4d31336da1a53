"""What was decided before a run, as MLflow keeps it: parameters, and the run's name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from combee_dspy.journal import RunHistory
from combee_dspy.tracking._text import cut

__all__ = ["MAX_PARAM", "name_of", "params", "title"]

MAX_PARAM = 6_000
"""Characters of a parameter's value that MLflow keeps; it cuts the rest without a word."""

_NAME = re.compile(r"[^\w./ -]")  # MLflow refuses names with anything else
_LONGEST_NAME = 100


def params(name: str, seed: int | None, description: Mapping[str, Any]) -> dict[str, str]:
    """Return what was decided before a run: each setting under its own name, as ``num_threads`` or
    ``search.staleness``; a strategy by its name, and its parameters as ``aggregator.copies``;
    models, sizes, digests and versions in groups, as ``size/train``.
    """
    about = dict(description)
    settings, specs = about.pop("settings", {}), about.pop("specs", {})
    decided: dict[str, Any] = {
        "name": name,
        **(settings if isinstance(settings, dict) else {}),
        "seed": seed,
        **_strategies(specs if isinstance(specs, dict) else {}),
    }
    for group, value in about.items():
        if not isinstance(value, dict):
            decided[group] = value
        elif group in _FACTS:
            decided |= {f"{_FACTS[group]}/{key}": fact for key, fact in value.items()}
        else:
            decided |= {f"{group}.{key}": part for key, part in value.items()}
    texts = {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in decided.items()
    }
    return {name_of(key): cut(text, MAX_PARAM) for key, text in texts.items()}


_FACTS = {"models": "model", "digests": "digest", "sizes": "size", "versions": "version"}


def _strategies(specs: Mapping[str, Any]) -> dict[str, Any]:
    decided: dict[str, Any] = {}
    for role, spec in specs.items():
        several = spec if isinstance(spec, list) else [spec]
        decided[role] = ", ".join(part["name"] for part in several)
        for part in several:
            prefix = f"{role}.{part['name']}" if isinstance(spec, list) else role
            decided |= {f"{prefix}.{key}": value for key, value in part["params"].items()}
    return decided


def title(history: RunHistory) -> str:
    """Return the name of a run among others: task, aggregator, and rows to learn from."""
    name, about = history.record.name, history.about
    counts = {"rows": about.sizes.get("train"), "traces": about.sizes.get("traces")}
    parts = [
        about.program if name == "main" else name,
        str(about.spec("aggregator").get("name", "")),
        *(f"{count} {what}" for what, count in counts.items() if count),
    ]
    return ", ".join(filter(None, parts))


def name_of(name: str) -> str:
    """Return a name as MLflow takes it."""
    return _NAME.sub("_", name)[:_LONGEST_NAME]
