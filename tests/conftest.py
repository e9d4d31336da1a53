"""What the tests of whole runs share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from combee_simulator import SimulatedService
    from tests.worlds import World

# No test may reach a model host.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

# No test writes into anybody's home, and none depends on what another has read.
os.environ["COMBEE_RECEIPTS"] = "off"


@pytest.fixture(scope="session")
def running_service() -> Iterator[SimulatedService]:
    from combee_simulator import SimulatedConfig, SimulatedService
    from tests.worlds import GATES

    with SimulatedService(SimulatedConfig(time_scale=0.0), GATES) as service:
        yield service


@pytest.fixture(scope="session")
def mlflow_store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URI of one store for all tests that need one: MLflow makes its tables for seconds."""
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"
    mlflow.MlflowClient(tracking_uri=uri)
    return uri


@pytest.fixture
def patient_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs wait until their trackers have recorded them, which takes MLflow minutes on a machine
    that others use as well.
    """
    from combee_dspy.tracking import _base

    monkeypatch.setattr(_base, "_LONGEST", 600.0)


@pytest.fixture
def service(running_service: SimulatedService) -> SimulatedService:
    """The simulated service, with its counters at zero."""
    running_service.forget_attempts()
    running_service.reset_stats()
    return running_service


@pytest.fixture
def world() -> World:
    from tests.worlds import World

    return World.made()


@pytest.fixture
def autolog() -> Iterator[Callable[..., None]]:
    """MLflow's autologging of DSPy, and everything as it was after it."""
    dspy, mlflow = (pytest.importorskip(name) for name in ("dspy", "mlflow"))
    settings = dspy.settings
    before = {"callbacks": settings.callbacks, "track_usage": settings.track_usage}
    yield mlflow.dspy.autolog
    mlflow.dspy.autolog(disable=True)
    # It also tracks usage from then on, which it does not take back.
    dspy.configure(**before)
