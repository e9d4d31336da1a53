"""Has serial search converged, above where it began? A journal tells, before going wide.

Pure but for :meth:`Diagnosis.save`: it reads journals, and knows nothing of who searches. ``page``
writes what it and the plan have to show.
"""

from combee_strategist.diagnosis.curve import Ceiling, Curve
from combee_strategist.diagnosis.diagnose import (
    MARGIN,
    POINT,
    Diagnosis,
    add_points,
    diagnose,
    diagnosis_now,
    read_diagnosis,
    serial_verdict,
)

__all__ = [
    "MARGIN",
    "POINT",
    "Ceiling",
    "Curve",
    "Diagnosis",
    "add_points",
    "diagnose",
    "diagnosis_now",
    "read_diagnosis",
    "serial_verdict",
]
