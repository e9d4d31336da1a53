"""From a question to a claim that holds: a specification without gaps, a diagnosis, a plan.

Nothing here searches. A specification (:func:`read_spec`) says what is owed to whom; a diagnosis
(:func:`diagnose`) says whether serial search has converged, so that going wide can pay; a plan
(:func:`make_plan`) says how, with every number's origin; a :class:`Verification` whether what is
claimed in the end survives. What would spoil the claim is refused (:func:`check_search`,
:func:`check_headline`).
"""

from combee_strategist.diagnosis import Ceiling, Curve, Diagnosis, diagnose, read_diagnosis
from combee_strategist.planning.batching import (
    BatchSimulation,
    describe_batching,
    simulate_batches,
)
from combee_strategist.planning.choices import Choices
from combee_strategist.planning.plan import Plan, make_plan
from combee_strategist.planning.refusals import check_converged, check_headline, check_search
from combee_strategist.planning.shapes import (
    Growth,
    Shape,
    choose_shape,
    count_in_flight,
    grow_workers,
)
from combee_strategist.planning.spec import Override, Spec, ask, questions, read_spec
from combee_strategist.planning.verify import (
    Check,
    Claim,
    Kind,
    Verification,
    check_run,
    check_slices,
    over_serial,
    slices_of,
)

__all__ = [
    "BatchSimulation",
    "Ceiling",
    "Check",
    "Choices",
    "Claim",
    "Curve",
    "Diagnosis",
    "Growth",
    "Kind",
    "Override",
    "Plan",
    "Shape",
    "Spec",
    "Verification",
    "ask",
    "check_converged",
    "check_headline",
    "check_run",
    "check_search",
    "check_slices",
    "choose_shape",
    "count_in_flight",
    "describe_batching",
    "diagnose",
    "grow_workers",
    "make_plan",
    "over_serial",
    "questions",
    "read_diagnosis",
    "read_spec",
    "simulate_batches",
    "slices_of",
]
