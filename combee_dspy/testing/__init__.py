"""What a strategy's author needs to test it.

The conformance kit in five lines::

    from combee_dspy.testing import parametrize_checks

    @parametrize_checks([MyAggregator()])
    def test_conformance(strategy, check):
        check(strategy)

``checks_for`` gives the same checks without pytest; ``combee_dspy.testing.doubles``
holds stand-ins for what a run gives a strategy.
"""

from combee_dspy.testing._kit import Check, checks_for, parametrize_checks
from combee_dspy.testing._scripted_lm import ScriptedLM, ScriptedRequest, as_chat, as_json
from combee_dspy.testing.checks import ConformanceError
from combee_dspy.testing.doubles import PredictCall, ScriptedPredict

__all__ = [
    "Check",
    "ConformanceError",
    "PredictCall",
    "ScriptedLM",
    "ScriptedPredict",
    "ScriptedRequest",
    "as_chat",
    "as_json",
    "checks_for",
    "parametrize_checks",
]
