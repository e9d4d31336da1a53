"""An agent that improves while it serves: learn from what was served, ship what is proven.

| module | what it does | it may touch |
| --- | --- | --- |
| ``_options`` | when Live learns, what a challenger must pass | canary |
| ``_records`` | decisions and sessions, as the learner's journal has them | events |
| ``_serving`` | :class:`LiveProgram`: a server that records requests and labels | canary |
| ``_served``, ``_evidence`` | labelled requests, and what they show | journals |
| ``_budget`` | what a day may cost | the learner's journal |
| ``_log`` | the learner's journal, and the file to which people write | journal |
| ``_session``, ``_reading`` | what a session starts from; what readers learn | lessons |
| ``_lines``, ``_proving`` | the lines of a text; which new ones mend a trusted row | lessons |
| ``_runs``, ``_verdict``, ``_gating`` | the gate: rows are run once, a text passes | slots |
| ``_shipping`` | a challenger is published, promoted, taken back | canary |
| ``_learner`` | the one process that decides: a tick | everything above |
| ``_page`` | a page, a file for review, counters | journals |
| ``_live`` | :class:`Live`: the door | everything above |

Servers write journals of their own. The learner reads them, and writes one. A crash loses nothing:
the journal has what began before it begins and each answer that was paid for, and the registry says
what serves.
"""

from combee_strategist.live._live import Live
from combee_strategist.live._options import Gate, Learning
from combee_strategist.live._records import LiveDecision
from combee_strategist.live._serving import LiveProgram

__all__ = ["Gate", "Learning", "Live", "LiveDecision", "LiveProgram"]
