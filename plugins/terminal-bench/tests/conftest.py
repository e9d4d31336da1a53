import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest
from tasks_made import make_report

from combee_terminal_bench import TerminalBench

# No test writes into anybody's home.
os.environ["COMBEE_RECEIPTS"] = "off"


@pytest.fixture(scope="session")
def reports(tmp_path_factory):
    """Nine tasks of one kind."""
    folder = tmp_path_factory.mktemp("tasks")
    for number in range(2, 11):
        make_report(folder, f"report-{number}", number)
    return folder


@pytest.fixture
def bench(reports):
    """The benchmark over them, in namespaces."""
    names = [f"report-{number}" for number in range(2, 11)]
    return TerminalBench(
        str(reports),
        train=names[:3],
        validation=names[3:6],
        heldout=names[6:],
        environment="namespace",
        workers=2,
        agent="code",
        max_iters=3,
        command_timeout=30,
    )
