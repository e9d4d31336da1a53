"""Who an LM call is made for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast, get_args

import dspy

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import Role

__all__ = ["current_role", "role_scope"]

_DEFAULT: Role = "task"
_SETTING = "combee_role"


@contextmanager
def role_scope(role: Role) -> Iterator[None]:
    """Name the role of every LM call made inside the ``with`` block.

    Scopes nest; the innermost counts. The role is a DSPy setting, which is a
    context variable, so it follows the program wherever DSPy's own settings
    go: into ``dspy.Parallel``, ``dspy.asyncify`` and async tasks. A plain
    ``ContextVar`` would stop at the threads of ``dspy.Parallel``.

    Raises:
        ArgumentValueError: ``role`` is none of the roles in :data:`combee_dspy.records.Role`.
    """
    roles = get_args(Role)
    if role not in roles:
        raise ArgumentValueError("role", role, "is no role", f"Roles: {', '.join(roles)}.")
    with dspy.context(**{_SETTING: role}):
        yield


def current_role() -> Role:
    """Return the role of an LM call made here and now; ``"task"`` outside any scope."""
    return cast("Role", dspy.settings.get(_SETTING, _DEFAULT))
