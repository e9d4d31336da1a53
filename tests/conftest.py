"""What the tests of whole runs share."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from filelock import FileLock

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
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's SQLite file with nothing in it, made once for all processes that run tests: MLflow
    makes its tables for seconds.
    """
    pytest.importorskip("mlflow")
    from combee_dspy.tracking._mlflow_store import make_store

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    path = folder / "empty-mlflow.db"
    with FileLock(f"{path}.lock"):
        make_store(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def mlflow_store(empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URI of one store for all tests that need one."""
    return copy_store(empty_store, tmp_path_factory.mktemp("mlflow"))


def copy_store(empty: Path, folder: Path) -> str:
    """Return the URI of a copy that keeps the artifacts of its default experiment beside it."""
    path = folder / "mlflow.db"
    shutil.copyfile(empty, path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE experiments SET artifact_location = ?", (f"{folder}/mlruns/0",))
    return f"sqlite:///{path}"


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
