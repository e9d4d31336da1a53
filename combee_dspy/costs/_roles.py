"""Who an LM call is made for."""

from __future__ import annotations

from contextlib import AbstractContextManager

import dspy

from combee_dspy.records import Role

__all__ = ["ROLE_SETTING", "role_scope"]

ROLE_SETTING = "combee_role"
"""DSPy's setting that carries the role into ``dspy.Parallel``, ``dspy.asyncify`` and async tasks."""


def role_scope(role: Role) -> AbstractContextManager[None]:
    """Name the role of every LM call made inside the ``with`` block; the innermost counts."""
    scope: AbstractContextManager[None] = dspy.context(**{ROLE_SETTING: role})
    return scope
