"""The search: one loop over one log.

To follow an update from sampling to commit, read ``_loop``, then ``_batches``, ``_update`` and
``_keeper``. ``_run`` makes the parts, ``_course`` goes from the first check to the report.

| module | what it is | it may touch |
| --- | --- | --- |
| ``_compile`` | one compilation, from settings to end, on a loop of its own | ``_run``, slots |
| ``_splits`` | its data, checked | nothing |
| ``_traces``, ``_recorded`` | traces as rows; what answers for their rollouts | traces, effects |
| ``_course`` | search, choose, read the held-out set, report, in time | ``_run`` |
| ``_run`` | the parts of a run, made of each other | everything below |
| ``_earlier`` | costs of earlier parts of a run, decisions of a replayed one | journal |
| ``_describe`` | what a run may be resumed with; what people read of it | nothing |
| ``_loop`` | updates by number: begin, learn, propose, check, commit | keeper, learner, batches |
| ``_progress`` | how far updates have come, and what others wait for | nothing |
| ``_batches`` | which rows the next update runs | controller, effects, pool |
| ``_ending`` | why no further update begins | effects, pool, batches |
| ``_update`` | one update up to its lessons | effects, artifact, aggregator |
| ``_contexts``, ``_records`` | what strategies and reflections read | effects |
| ``_books`` | what was learned, and what of it a candidate holds | lessons, weigher, artifact |
| ``_keeper`` | the records of one update, and what the loop asks of the two below | nothing |
| ``_growing``, ``_pareto`` | two ways to keep lessons | pool, proposer, effects |
| ``_proving``, ``_blame`` | tests of lines: at the end of a run, and as it goes | trials, books |
| ``_row_search`` | what mends a failing row | trials |
| ``_trials``, ``_last_text`` | texts that differ in lessons, the last of them | effects, artifact |
| ``_versions`` | the texts of updates, and which rows were right | effects, pool |
| ``_gepa``, ``_callbacks`` | what users of ``dspy.GEPA`` pass | gepa, pool |
| ``_propose``, ``_custom`` | children: operators', a proposer's of yours | effects, pool |
| ``_choices`` | which child goes on, which candidate is returned, what lines must show | nothing |
| ``_pool`` | validated candidates, the student first | effects, gepa |
| ``_effects`` | the one way to the world: look up, else do, commit, use | all below |
| ``_rollouts``, ``_calls`` | a rollout, an LM call, a function of the user's | buyer, slots |
| ``_buyer`` | buys one effect: reserve, slot, books, disk | journal, slots, purse |
| ``_budget``, ``_rollout_budget`` | the budget | nothing |
| ``_amounts`` | costs as vectors, those too that nobody knows | nothing |
| ``_preflight`` | checks of a run; few effects begin before they end | effects |
| ``_judging`` | what to distrust | effects |
| ``_heldout``, ``_receipts`` | the held-out set: pinned first, read at the end | effects, journal |
| ``_privacy``, ``_refusals`` | what of texts is written; going wide before convergence | nothing |
| ``_candidates`` | what a search works on | nothing |

Everything here lives on one event loop. Nothing of it is public but what ``__all__`` names.
"""

# Loaded before a compile begins: numpy loads once in a process, and where somebody puts another
# dict in the place of sys.modules meanwhile, as tests do that mock a module, what was first
# imported in its middle is forgotten afterwards.
import scipy.sparse  # noqa: F401

from combee_dspy.search._calls import call_effect, scrubbed_answer
from combee_dspy.search._candidates import Candidate, SharedParts
from combee_dspy.search._compile import (
    compile_program,
    compile_task,
    how_to_go_on,
    in_own_loop,
    make_compilation,
    open_shared,
)
from combee_dspy.search._contexts import cut_copies
from combee_dspy.search._privacy import Texts, user
from combee_dspy.search._refusals import SerialVerdict, check_verdict
from combee_dspy.search._splits import Data

__all__ = [
    "Candidate",
    "Data",
    "SerialVerdict",
    "SharedParts",
    "Texts",
    "call_effect",
    "check_verdict",
    "compile_program",
    "compile_task",
    "cut_copies",
    "how_to_go_on",
    "in_own_loop",
    "make_compilation",
    "open_shared",
    "scrubbed_answer",
    "user",
]
