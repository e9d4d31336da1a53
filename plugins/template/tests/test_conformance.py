from combee_dspy.testing import parametrize_checks

from combee_template import Template


@parametrize_checks([Template()])
def test_conformance(strategy, check):
    check(strategy)
