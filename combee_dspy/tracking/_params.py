"""What was decided before a run, as MLflow keeps it: parameters, and the run's name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from combee_dspy.journal import RunHistory
from combee_dspy.tracking._text import cut

MAX_PARAM = 6_000
"""Characters of a parameter's value that MLflow keeps; it cuts the rest without a word."""

_NAME = re.compile(r"[^\w./ -]")  # MLflow refuses names with anything else
_LONGEST_NAME = 100
# MLflow shows parameters by groups, whose names end in a slash.
_GROUPS = {"models": "model/", "digests": "digest/", "sizes": "size/", "versions": "version/"}


def params(name: str, seed: int | None, description: Mapping[str, Any]) -> dict[str, str]:
    """Return what was decided before a run, by name, each value as a text.

    A setting has its own name, as ``num_threads`` or ``search.staleness``; a strategy is its name,
    with its parameters as ``aggregator.copies``; models, sizes, digests and versions stand in
    groups, as ``size/train``.
    """
    decided: dict[str, Any] = {"name": name, "seed": seed}
    for key, value in description.items():
        if key == "settings":
            decided |= value
        elif key == "specs":
            decided |= _strategies(value)
        elif isinstance(value, dict):
            prefix = _GROUPS.get(key, f"{key}.")
            decided |= {f"{prefix}{part}": part_value for part, part_value in value.items()}
        else:
            decided[key] = value
    texts = {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in decided.items()
    }
    return {_name_of(key): cut(text, MAX_PARAM) for key, text in texts.items()}


def _strategies(specs: Mapping[str, Any]) -> dict[str, Any]:
    """Return strategies by role, the names of several in one text, and their parameters."""
    decided: dict[str, Any] = {}
    for role, spec in specs.items():
        several = spec if isinstance(spec, list) else [spec]
        decided[role] = ", ".join(part["name"] for part in several)
        for part in several:
            prefix = f"{role}.{part['name']}" if isinstance(spec, list) else role
            decided |= {f"{prefix}.{key}": value for key, value in part["params"].items()}
    return decided


def title(history: RunHistory, *, scanned: bool = True) -> str:
    """Return the name of a run among others: task, aggregator, and rows to learn from.

    Args:
        history: Of the run.
        scanned: Whether its aggregator runs, or ran; else the name is left out.
    """
    name, about = history.record.name, history.about
    counts = {"rows": about.sizes.get("train"), "traces": about.sizes.get("traces")}
    parts = [
        about.program if name == "main" else name,
        str(about.spec("aggregator").get("name", "")) if scanned else "",
        *(f"{count} {what}" for what, count in counts.items() if count),
    ]
    return ", ".join(filter(None, parts))


def _name_of(name: str) -> str:
    """Return a name as MLflow takes it."""
    return _NAME.sub("_", name)[:_LONGEST_NAME]
