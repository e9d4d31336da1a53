"""Marks cases that need many seconds by their nature: ``make test-all`` runs them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(quick: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """Return ``cases`` for a parametrized test, all marked slow but those in ``quick``."""
    cases, quick = list(cases), list(quick)
    missing = [case for case in quick if case not in cases]
    assert not missing, f"no such cases: {missing}"
    return [case if case in quick else _slow(case) for case in cases]


def _slow(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
