"""What a speedup is divided by: other methods, and Combee itself, behind one interface."""

from combee_dspy.baselines._ace import ACE
from combee_dspy.baselines._base import Baseline
from combee_dspy.baselines._books import Books, BudgetSpentError
from combee_dspy.baselines._combee import CombeeMethod, CombeePlaybook
from combee_dspy.baselines._desk import Desk
from combee_dspy.baselines._gepa import GEPA
from combee_dspy.baselines._mipro import MIPRO, MIPROPlan, plan_mipro
from combee_dspy.baselines._records import BaselineResult, BaselineTask, CurvePoint

__all__ = [
    "ACE",
    "GEPA",
    "MIPRO",
    "Baseline",
    "BaselineResult",
    "BaselineTask",
    "Books",
    "BudgetSpentError",
    "CombeeMethod",
    "CombeePlaybook",
    "CurvePoint",
    "Desk",
    "MIPROPlan",
    "plan_mipro",
]
