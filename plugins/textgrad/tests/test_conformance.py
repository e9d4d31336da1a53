from combee_dspy.testing import parametrize_checks

from combee_textgrad import TextGrad


@parametrize_checks([TextGrad(batch_size=2)])
def test_conformance(strategy, check):
    check(strategy)
