"""Shadow, promote and roll back: a learned program reaches production behind a canary.

| module | what it is |
| --- | --- |
| ``_registry`` | versions, two aliases and the audit, in MLflow's prompt registry |
| ``_publish`` | from a run's journal to a version; its terms are fixed there |
| ``_options``, ``_arms`` | how a server tries a challenger; the versions that it holds |
| ``_serving`` | :class:`CanaryProgram`: stands where the user's program stood |
| ``_recording`` | what was served and shadowed: scored, counted, written to a journal |
| ``_stamps`` | which request, version and predictor a span of MLflow is of |
| ``_pool`` | threads for shadows and scores, never in a caller's way |
| ``_events``, ``_evidence`` | what journals say; of a trial, each row read once |
| ``_decide`` | the sequential test; status, promotion, rollback |
| ``_page`` | how a canary stands, as a page |

The registry alone decides what is served, by one alias: ``production``. Moving it is the whole
commit of a promotion or a rollback. Evidence lies in the journals of the servers, which only a
promotion needs.
"""

from combee_strategist.canary._decide import (
    CanaryStatus,
    interval,
    promote,
    rollback,
    status,
    withdraw,
)
from combee_strategist.canary._events import (
    ChangedJournals,
    LabelsAwaited,
    RequestLabelled,
    open_journals,
)
from combee_strategist.canary._evidence import TrialEvidence
from combee_strategist.canary._options import Clock, Serving
from combee_strategist.canary._page import write_canary_page
from combee_strategist.canary._pairs import Answer, Pair
from combee_strategist.canary._publish import (
    LEAST_HOURS,
    propose_texts,
    publish,
    seed_production,
)
from combee_strategist.canary._registry import (
    AUTOMATIC,
    CHALLENGER,
    PRODUCTION,
    CanaryPlan,
    Registry,
    Version,
)
from combee_strategist.canary._serving import CanaryProgram

__all__ = [
    "AUTOMATIC",
    "CHALLENGER",
    "LEAST_HOURS",
    "PRODUCTION",
    "Answer",
    "CanaryPlan",
    "CanaryProgram",
    "CanaryStatus",
    "ChangedJournals",
    "Clock",
    "LabelsAwaited",
    "Pair",
    "Registry",
    "RequestLabelled",
    "Serving",
    "TrialEvidence",
    "Version",
    "interval",
    "open_journals",
    "promote",
    "propose_texts",
    "publish",
    "rollback",
    "seed_production",
    "status",
    "withdraw",
    "write_canary_page",
]
