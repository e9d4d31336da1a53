"""From a question to a claim that holds: a specification without gaps, a diagnosis of the serial search, and a plan.

Nothing here searches. A specification (:func:`read_spec`) says what is owed to whom; a diagnosis (:func:`diagnose`)
says whether serial search has converged, so that going wide can pay.
"""

from combee_dspy.planning.diagnose import Ceiling, Curve, Diagnosis, diagnose, read_diagnosis
from combee_dspy.planning.refusals import check_converged, check_headline, check_promotion, check_search
from combee_dspy.planning.spec import Gap, Override, Spec, ask, questions, read_spec

__all__ = [
    "Ceiling",
    "Curve",
    "Diagnosis",
    "Gap",
    "Override",
    "Spec",
    "ask",
    "check_converged",
    "check_headline",
    "check_promotion",
    "check_search",
    "diagnose",
    "questions",
    "read_diagnosis",
    "read_spec",
]
