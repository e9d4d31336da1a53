"""From what a verifier left to a score with feedback."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from combee_agents import EnvironmentFaultError, Evaluation

__all__ = ["verdict"]

_SHOWN = 6_000
_EACH = 1_500


def verdict(answer: Mapping[str, Any]) -> Evaluation:
    """Return the evaluation.

    The score is the verifier's reward. Feedback says which tests failed, where
    the verifier wrote a CTRF report, and the end of what it printed.

    Args:
        answer: The harness's answer.

    Raises:
        EnvironmentFaultError: The reward cannot be read, or is not from 0 to 1.
    """
    score = _reward(answer.get("rewards"))
    passed, failed = _tests(answer.get("report"))
    printed = str(answer.get("printed") or "").strip()
    lines = [f"The verifier's reward is {score:g}."]
    if answer.get("error") == "AgentTimeoutError":
        lines.append("The time that the task gives to an agent was used up.")
    if failed:
        lines.append("Failed tests:\n" + "\n".join(f"- {name}: {why}" for name, why in failed.items()))
    if passed:
        lines.append(f"Passed tests: {', '.join(passed)}.")
    if printed and score < 1:
        lines.append(f"The verifier printed:\n{printed[-_SHOWN:]}")
    details = {"environment": str(answer.get("where") or "")}
    return Evaluation(score, "\n".join(lines), tuple(passed), failed, details)


def _reward(rewards: object) -> float:
    value: object = None
    if isinstance(rewards, Mapping):
        # One number without that name is a reward too; several would need weights nobody gave.
        value = rewards.get("reward", next(iter(rewards.values())) if len(rewards) == 1 else None)
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not math.isfinite(value)
        or not 0 <= value <= 1
    ):
        raise EnvironmentFaultError("protocol", f"the verifier's rewards {rewards!r} are no reward from 0 to 1")
    return float(value)


def _tests(report: object) -> tuple[list[str], dict[str, str]]:
    """Read a CTRF report, which the task's own tests wrote: nothing in it is to be relied on."""
    passed: list[str] = []
    failed: dict[str, str] = {}
    try:
        tests = json.loads(report)["results"]["tests"] if isinstance(report, str) and report else []
        for test in tests:
            name = str(test["name"])[:200]
            if test.get("status") == "passed":
                passed.append(name)
            elif test.get("status") == "failed":
                why = str(test.get("message") or test.get("trace") or "no reason given")
                failed[name] = why[-_EACH:]
    except (ValueError, KeyError, TypeError, AttributeError):
        return [], {}
    return passed, failed
