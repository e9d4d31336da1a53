"""An agent that improves while it serves: learn from what was served, ship what is proven.

| module | what it is | it may touch |
| --- | --- | --- |
| ``_options``, ``_setup`` | when it learns, what a challenger must pass | canary |
| ``_records`` | decisions and sessions, as the learner's journal keeps them | events |
| ``_serving`` | :class:`LiveProgram`: a server whose requests and labels are kept | canary |
| ``_people`` | what people approve, reject and remove | files |
| ``_served``, ``_evidence`` | what was said of requests, and what it says of lessons | journals |
| ``_allowance`` | what a day may cost | the learner's journal |
| ``_lines``, ``_proving`` | which lines a text serves; which new ones earn their place | lessons |
| ``_runs``, ``_verdict`` | rows of the gate: run once; whether a text passes | slots |
| ``_session`` | one learning session: from labels to a text for trial | everything above |
| ``_log`` | the learner's journal, and what stands open in it | journal |
| ``_shipping``, ``_shipper`` | what becomes of a challenger | canary |
| ``_learner`` | the one process that decides: a tick | everything above |
| ``_page``, ``_prometheus`` | what people and monitors see | journals |
| ``_live`` | :class:`Live`: the door | everything above |

Servers write journals of their own. The learner reads them, and writes one. A crash loses nothing:
what was begun is begun in the journal first, what was bought is looked up there, and the registry
says what serves.
"""

from combee_strategist.live._live import Live
from combee_strategist.live._options import Gate, Learning
from combee_strategist.live._records import LiveDecision
from combee_strategist.live._serving import LiveProgram

__all__ = ["Gate", "Learning", "Live", "LiveDecision", "LiveProgram"]
