"""What the tests of the checkout and of its plugins share: none leaves DSPy or MLflow other than it
was.
"""

from __future__ import annotations

import os
import sys
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


@pytest.fixture(autouse=True)
def own_experiment() -> Iterator[None]:
    """Have no test see the experiment that another set: MLflow remembers it for its process, and in
    the environment of those that a test starts.
    """
    variable = "MLFLOW_EXPERIMENT_ID"
    before = os.environ.pop(variable, None)
    yield
    os.environ.pop(variable, None)
    if before is not None:
        os.environ[variable] = before
    if (fluent := sys.modules.get("mlflow.tracking.fluent")) is not None:
        fluent._active_experiment_id = None
