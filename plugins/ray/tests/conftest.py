import os
import sys
from pathlib import Path

# Workers import this folder's modules by name, as a user's own would be on a shared disk.
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# No test writes into anybody's home.
os.environ["COMBEE_RECEIPTS"] = "off"
# Ray starts its workers at niceness 15: beside other load the tests would mostly wait.
os.environ["RAY_worker_niceness"] = "0"
sys.path.insert(0, str(Path(__file__).parent))

import pytest
import ray
from combee_simulator import SimulatedConfig, SimulatedService, benchmark_task
from material import benchmark


@pytest.fixture(scope="session", autouse=True)
def cluster():
    """A local cluster with room for two workers."""
    ray.init(
        address="local",
        num_cpus=2,
        object_store_memory=100 * 1024 * 1024,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="WARNING",
    )
    yield
    ray.shutdown()


@pytest.fixture
def service():
    """A simulated service that answers at once, the same for the same request."""
    with SimulatedService(SimulatedConfig(time_scale=0.0), benchmark_task(benchmark())) as running:
        yield running
