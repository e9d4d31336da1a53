"""When a run stops, and what it returns: rules that compose with ``|`` and ``&``, and the final choice."""

from combee_dspy.stopping._base import AllOf, AnyOf, RunView, StoppingRule, ask
from combee_dspy.stopping._budget import Budget, require_gpu_seconds, require_prices
from combee_dspy.stopping._selection import Finalist, Selection, finalists, select
from combee_dspy.stopping._validation import Patience, Target

__all__ = [
    "AllOf",
    "AnyOf",
    "Budget",
    "Finalist",
    "Patience",
    "RunView",
    "Selection",
    "StoppingRule",
    "Target",
    "ask",
    "finalists",
    "require_gpu_seconds",
    "require_prices",
    "select",
]
