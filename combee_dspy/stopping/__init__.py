"""When a run stops: rules that compose with ``|`` and ``&``."""

from combee_dspy.stopping._base import AllOf, AnyOf, RunView, StoppingRule
from combee_dspy.stopping._budget import Budget, require_prices

__all__ = ["AllOf", "AnyOf", "Budget", "RunView", "StoppingRule", "require_prices"]
