from combee_dspy.testing import parametrize_checks

from combee_terminal_bench import TerminalBench


@parametrize_checks([TerminalBench()])
def test_conformance(strategy, check):
    check(strategy)
