from combee_dspy.testing import parametrize_checks

from combee_ray import Ray


@parametrize_checks([Ray(actors=2)])
def test_conformance(strategy, check):
    check(strategy)
