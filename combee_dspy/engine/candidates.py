"""Candidates as gepa knows them: text per component, demonstrations among them.

Demonstrations and field descriptions travel as components of their own, encoded
as text, so that gepa's pool, checkpoints and merge carry them without knowing
what they are. They are hidden from component selection.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache

__all__ = [
    "Candidate",
    "TaggedCandidate",
    "candidate_id",
    "demonstrations_key",
    "fields_key",
    "is_hidden",
    "visible",
]

Candidate = dict[str, str]

# A predictor's path is made of identifiers, dots and subscripts: it cannot end like these.
_DEMONSTRATIONS = "::demonstrations"
_FIELDS = "::fields"


class TaggedCandidate(Candidate):
    """A parent's texts, with the operator that is to make the child.

    gepa copies it into a plain dict before it changes anything.

    Attributes:
        operator: Position of the operator.
        components: What the child is to edit, where that is known before the parent has run.
    """

    def __init__(self, candidate: Candidate, operator: int, components: tuple[str, ...] | None = None) -> None:
        super().__init__(candidate)
        self.operator = operator
        self.components = components


def demonstrations_key(component: str) -> str:
    """Return the key under which a component's demonstrations stand in a candidate."""
    return component + _DEMONSTRATIONS


def fields_key(component: str) -> str:
    """Return the key under which the descriptions of a component's fields stand in a candidate."""
    return component + _FIELDS


def is_hidden(key: str) -> bool:
    """Whether a key names demonstrations or field descriptions rather than a text that a proposer edits."""
    return key.endswith((_DEMONSTRATIONS, _FIELDS))


def visible(keys: Iterable[str]) -> list[str]:
    """Return the keys that component selection may see, in order."""
    return [key for key in keys if not is_hidden(key)]


def candidate_id(candidate: Mapping[str, str]) -> str:
    """Return a candidate's content hash: 16 hex digits, the same for the same texts."""
    return _identity(tuple(sorted(candidate.items())))


@lru_cache(maxsize=128)
def _identity(texts: tuple[tuple[str, str], ...]) -> str:
    canonical = json.dumps(dict(texts), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()[:16]
