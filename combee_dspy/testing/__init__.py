"""What a strategy's author needs to test it.

The conformance kit in five lines::

    from combee_dspy.testing import parametrize_checks

    @parametrize_checks([MyAggregator()])
    def test_conformance(strategy, check):
        check(strategy)

``checks_for`` gives the same checks without pytest; :class:`ScriptedLM` is an LM whose answers are
a function, :class:`ScriptedAsk` and :func:`context` stand in for what a run gives a strategy.
"""

from combee_dspy.testing._kit import (
    Check,
    ConformanceError,
    attempt,
    checks_for,
    expect,
    parametrize_checks,
)
from combee_dspy.testing.doubles import (
    AskCall,
    ScriptedAsk,
    ScriptedLM,
    ScriptedRequest,
    arriving,
    as_chat,
    as_json,
    context,
    operator_input,
    reflections,
    watch_lms,
)

__all__ = [
    "AskCall",
    "Check",
    "ConformanceError",
    "ScriptedAsk",
    "ScriptedLM",
    "ScriptedRequest",
    "arriving",
    "as_chat",
    "as_json",
    "attempt",
    "checks_for",
    "context",
    "expect",
    "operator_input",
    "parametrize_checks",
    "reflections",
    "watch_lms",
]
