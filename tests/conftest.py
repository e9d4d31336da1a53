"""What every test of this repository shares."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

# No test may reach a tracking, telemetry or model host.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("DO_NOT_TRACK", "true")
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from hypothesis import settings

# Two shared cores stall now and then: a deadline would assert on elapsed time.
# Derandomized, so that a failure on one machine is a failure on all of them.
settings.register_profile("combee", deadline=None, derandomize=True)
settings.load_profile("combee")


@pytest.fixture(autouse=True, scope="module")
def no_history_of_other_modules() -> Iterator[None]:
    """Let go of what DSPy keeps of the last 10,000 calls: full collections would walk it again and again."""
    yield
    # Not imported for this: some modules test what happens before DSPy is.
    known = sys.modules.get("dspy.clients.base_lm")
    if known is not None:
        known.GLOBAL_HISTORY.clear()
