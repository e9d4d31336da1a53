"""The search: one loop over one log.

| module | what it is | it may touch |
| --- | --- | --- |
| ``_compile`` | one compilation, from its settings to its end | ``_run``, journal, slots |
| ``_splits``, ``_own_loop`` | its data, checked; the loop that it runs on | nothing |
| ``_traces``, ``_recorded`` | traces as rows; what answers for their rollouts | traces, effects |
| ``_run``, ``_making`` | its parts, wired, from the probe to the report | everything below |
| ``_reporting`` | what a run says of itself at its end | ``_run`` |
| ``_earlier`` | earlier parts of a run, and decisions that are taken again | journal |
| ``_describe`` | what a run may be resumed with; what people are told of it | nothing |
| ``_loop`` | updates by number: begin, learn, propose, check, commit | keeper, learner, batches |
| ``_student``, ``_sizes`` | its validation; how large minibatches are | effects, pool |
| ``_under_way`` | an update under way, and what others wait for | nothing |
| ``_update`` | one update up to its lessons | effects, artifact, aggregator |
| ``_trials``, ``_showing`` | texts on single rows; which lessons a row saw | effects, artifact |
| ``_proving``, ``_mending`` | lines that must earn their place | trials, books |
| ``_confirming``, ``_spare`` | which rows confirm a change; rollouts for that | trials |
| ``_books`` | what was learned, by component | lessons, weigher, artifact |
| ``_keeper``, ``_pareto``, ``_growing`` | two ways to keep lessons | pool, proposer, effects |
| ``_gepa``, ``_telling`` | what users of ``dspy.GEPA`` pass, in gepa's order | gepa, pool |
| ``_turns`` | which components an update edits | nothing |
| ``_propose``, ``_custom`` | children: operators', yours | effects, pool |
| ``_choices`` | which child goes on; which candidate is returned | effects, pool |
| ``_pool`` | validated candidates | effects, gepa |
| ``_batches`` | which rows an update runs, and why none begins | controller, effects, pool |
| ``_effects`` | the one way to the world | journal, slots, purse |
| ``_buyer`` | buys one effect: grant, slot, books, disk | journal, slots, purse |
| ``_budget``, ``_spent`` | what may still be bought; what effects cost | nothing |
| ``_clock`` | ends what a budget in seconds leaves no time for | effects, purse |
| ``_judging`` | what failed, and whether the metric can be trusted | effects |
| ``_heldout`` | the held-out set: pinned first, read at the end | effects |
| ``_receipts`` | where held-out receipts are found and left | journal |
| ``_scales`` | scores above 1 | journal |
| ``_untraced`` | components that no rollout called | journal |
| ``_refusals`` | going wide before convergence | nothing |
| ``_candidates``, ``_records`` | what is moved around; pure parts | nothing |

Everything here lives on one event loop. Nothing of it is public but what stands below.
"""

# Loaded before a compile begins: numpy loads once in a process, and where somebody puts another
# dict in the place of sys.modules meanwhile, as tests do that mock a module, what was first
# imported in its middle is forgotten afterwards.
import scipy.sparse  # noqa: F401

from combee_dspy.search._candidates import Shared
from combee_dspy.search._compile import (
    compile_program,
    compile_task,
    in_own_loop,
    make_compilation,
    open_shared,
)
from combee_dspy.search._privacy import Texts, user
from combee_dspy.search._refusals import SerialVerdict, check_verdict
from combee_dspy.search._splits import Data

__all__ = [
    "Data",
    "SerialVerdict",
    "Shared",
    "Texts",
    "check_verdict",
    "compile_program",
    "compile_task",
    "in_own_loop",
    "make_compilation",
    "open_shared",
    "user",
]
