"""The search: one loop over one log.

| module | what it is | it may touch |
| --- | --- | --- |
| ``_compile`` | one compilation, in a loop of its own | ``_run``, journal, slots |
| ``_run`` | its parts, wired, from the probe to the report | everything below |
| ``_describe`` | what a run may be resumed with; what people are told of it | nothing |
| ``_loop`` | updates by number: begin, learn, propose, check, commit | keeper, learner, batches |
| ``_under_way`` | an update under way, and what others wait for | nothing |
| ``_update`` | one update up to its lessons | effects, artifact, aggregator |
| ``_books`` | what was learned, by component | lessons, weigher, artifact |
| ``_keeper``, ``_pareto``, ``_growing`` | two ways to keep lessons | pool, proposer, effects |
| ``_telling`` | what gepa's state and callbacks hear | effects, pool, gepa |
| ``_propose``, ``_merge`` | children: operators', yours, merge's | effects, learner, pool |
| ``_choices`` | which child goes on; which candidate is returned | effects, pool |
| ``_pool`` | validated candidates, and gepa's state of them | effects |
| ``_batches`` | which rows an update runs, and why none begins | controller, effects, pool |
| ``_effects`` | the one way to the world | journal, slots, purse |
| ``_buyer`` | buys one effect: grant, slot, books, disk | journal, slots, purse |
| ``_budget`` | what may still be bought | nothing |
| ``_clock`` | ends what a budget in seconds leaves no time for | effects, purse |
| ``_heldout`` | the held-out set: pinned first, read at the end | effects |
| ``_receipts`` | where held-out receipts are found and left | journal |
| ``_scales`` | scores above 1 | journal |
| ``_untraced`` | components that no rollout called | journal |
| ``_refusals`` | going wide before convergence, or with diversity off | nothing |
| ``_keeps`` | which of the two ways a run's settings ask for | gepa |
| ``_gepa`` | gepa's own parts | gepa |
| ``_candidates``, ``_records`` | what is moved around; pure parts | nothing |

Everything here lives on one event loop. Nothing of it is public but what stands below.
"""

# Loaded before a compile begins: numpy loads once in a process, and where somebody puts another
# dict in the place of sys.modules meanwhile, as tests do that mock a module, what was first
# imported in its middle is forgotten afterwards.
import scipy.sparse  # noqa: F401

from combee_dspy.search._candidates import Shared
from combee_dspy.search._clock import Overtime
from combee_dspy.search._compile import (
    check_lm,
    check_metric,
    compile_program,
    compile_task,
    in_own_loop,
    make_compilation,
    open_shared,
)
from combee_dspy.search._gepa import check_names, checked_gepa_kwargs
from combee_dspy.search._keeps import keeps, of_no_use_to_a_trunk
from combee_dspy.search._privacy import Texts, user
from combee_dspy.search._refusals import SerialVerdict, check_verdict, check_wide

__all__ = [
    "Overtime",
    "SerialVerdict",
    "Shared",
    "Texts",
    "check_lm",
    "check_metric",
    "check_names",
    "check_verdict",
    "check_wide",
    "checked_gepa_kwargs",
    "compile_program",
    "compile_task",
    "in_own_loop",
    "keeps",
    "make_compilation",
    "of_no_use_to_a_trunk",
    "open_shared",
    "user",
]
