"""The log of a run: everything that was bought or decided, in one SQLite file.

A run is a deterministic program over its effects. An effect (a rollout, an LM
call, a decision that read the clock) is looked up here first; only where it is
not there is it done, committed, and then used. So running again resumes,
replays and repeats nothing that was paid for, and the books are sums over the
table ``usage``. Events are what the run made of its effects; they are derived,
and kept for people and trackers to read.

| table | a row is |
| --- | --- |
| ``run`` | one compilation: identity (what it may be resumed with), description, result |
| ``effect`` | one thing bought or decided; unique by (run, key) |
| ``usage`` | the LM calls of one effect, by role and model |
| ``event`` | one thing the run made of its effects; unique by (run, key) |

| event | data |
| --- | --- |
| ``candidate`` | candidate, texts, parents, operator, components |
| ``refused`` | operator, reason, parent |
| ``copied`` | lines: what was said of training examples word for word, cut out; count |
| ``screened`` | candidate, parent, rows, score, parent_score, accepted, reason |
| ``validated`` | candidate, index, score, rows, best |
| ``batch`` | size, reason, fit, clamps |
| ``update`` | parent, components, rows, started, seconds, skipped |
| ``scan`` | aggregator, n, copies, nodes, lessons, retained |
| ``book`` | lessons: a component's book after an update, with evidence, states and reasons |
| ``tested`` | lesson, text, serve, together, rows, wins, losses, accepted: a line on trial |
| ``void`` | count, reasons: what readers of numbered lessons said and code did not accept |
| ``merge`` | candidate, parents, accepted |
| ``limit`` | limit, reason |
| ``warning``, ``error`` | text; where, error |
| ``receipt``, ``heldout`` | the held-out rows; before, after, difference, low, high, n, look |
| ``per_point`` | baseline, points, costs of one; versus, margin, faster: a guarantee; text |
| ``audit`` | who compiled what with which code: user, host, version, commit, program, metric, … |
| ``granted`` | effect, most: what it may cost where that is limited, before it is sent |
| ``pair`` | of a server: request (a hash), versions and scores of both, who scored |
| ``shadows`` | of a server: how many shadows there were so far, by what became of them |
| ``selected``, ``stopped`` | candidate, reason; reason |

Each row has a checksum (``crc``), and beside the file stands how many rows it must hold, so that a
journal that was changed on disk, or cut off, is refused with what can be had of it, and never
written over. Every commit ends with fsync. A journal of the format before is migrated when a run
goes on with it.

Only :class:`Journal` writes, from one thread. Anyone may read, with :class:`Reader`.
"""

from combee_dspy.journal._cache import Cache
from combee_dspy.journal._journal import Journal, RunLog
from combee_dspy.journal._rows import (
    Effect,
    Identity,
    Outcome,
    Reader,
    failure_counts,
    journal_file,
    outcomes,
    sound,
)

__all__ = [
    "Cache",
    "Effect",
    "Identity",
    "Journal",
    "Outcome",
    "Reader",
    "RunLog",
    "failure_counts",
    "journal_file",
    "outcomes",
    "sound",
]
