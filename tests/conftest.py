"""What every test of this repository shares."""

from __future__ import annotations

import os

# No test may reach a tracking, telemetry or model host.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("DO_NOT_TRACK", "true")
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from hypothesis import settings

# Two shared cores stall now and then: a deadline would assert on elapsed time.
# Derandomized, so that a failure on one machine is a failure on all of them.
settings.register_profile("combee", deadline=None, derandomize=True)
settings.load_profile("combee")
