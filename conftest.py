"""What the tests of the checkout and of its plugins share: none leaves DSPy other than it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dspy
import pytest
from hypothesis import HealthCheck, settings

# Neither a busy machine nor chance decides whether a test passes.
settings.register_profile(
    "combee", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("combee")


@pytest.fixture(autouse=True)
def settings_as_before() -> Iterator[None]:
    """Fail a test that changes DSPy's settings for those after it, which share its process."""
    before = dspy.settings.copy()
    yield
    after: dict[str, Any] = dspy.settings.copy()
    changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    if changed:
        dspy.configure(**before)
        pytest.fail(f"This test leaves DSPy's settings changed: {', '.join(changed)}")
