"""Lines about events that need nothing but the event. Pure."""

from __future__ import annotations

import logging

from combee_dspy.events import (
    CandidateScreened,
    ChildRefused,
    CopiesRemoved,
    ErrorRaised,
    Event,
    PointPriced,
    RunStopped,
    WarningRaised,
)

__all__ = ["plain_line"]


def plain_line(update: str, component: str, event: Event) -> tuple[str, int]:
    """Return the line about an event that changes nothing of the display."""
    match event:
        case CandidateScreened(candidate=candidate, parent_score=before, score=score):
            change = f"{before:.3f} → {score:.3f}: {event.reason}"
            return f"{update}: child {candidate:.8}: {change}", logging.DEBUG
        case ChildRefused(operator=operator, reason=reason):
            return f"{update}: {operator} made no child: {reason}", logging.DEBUG
        case CopiesRemoved(count=count):
            what = f"what {count} lines for {component} copy from training examples is cut out"
            return f"{update}: {what}", logging.DEBUG
        case PointPriced(text=text):
            return f"held-out {text}", logging.INFO
        case WarningRaised(text=text):
            return f"warning: {text}", logging.WARNING
        case ErrorRaised(where=where, error=error):
            return f"error in {where}: {error}", logging.WARNING
        case RunStopped(reason=reason):
            return f"stopped: {reason}", logging.INFO
    return "", logging.DEBUG
