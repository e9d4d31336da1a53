"""MLflow remembers an experiment for its process: what a test sets, the next one does not see."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

VARIABLE = "MLFLOW_EXPERIMENT_ID"


@pytest.fixture(autouse=True)
def own_experiment() -> Iterator[None]:
    before = os.environ.pop(VARIABLE, None)
    yield
    os.environ.pop(VARIABLE, None)
    if before is not None:
        os.environ[VARIABLE] = before
    if (fluent := sys.modules.get("mlflow.tracking.fluent")) is not None:
        fluent._active_experiment_id = None
