import atexit
import shutil
import tempfile
from pathlib import Path

from combee_dspy.testing import parametrize_checks
from tasks_made import make_report

from combee_terminal_bench import TerminalBench

FOLDER = Path(tempfile.mkdtemp())
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
for number in range(2, 11):
    make_report(FOLDER, f"report-{number}", number)


@parametrize_checks([TerminalBench(str(FOLDER), environment="namespace")])
def test_conformance(strategy, check):
    check(strategy)
