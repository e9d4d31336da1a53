from combee_dspy.testing import parametrize_checks

from combee_appworld import AppWorld


@parametrize_checks([AppWorld])
def test_conformance(strategy, check):
    check(strategy)
