import pytest
from combee_dspy.testing import parametrize_checks

from combee_appworld import AppWorld


@pytest.mark.usefixtures("named_world")
@parametrize_checks([AppWorld])
def test_conformance(strategy, check):
    check(strategy)
