"""The journal: everything that runs have bought or decided, in one SQLite file.

A run is a deterministic program over its effects. An effect (a rollout, an LM
call, a decision that read the clock) is looked up here first; only where it is
not there is it done, committed, and then used. So running again resumes,
replays and repeats nothing that was paid for, and the books are sums over the
table ``usage``. Events are what the run made of its effects; they are derived,
for people and trackers to read.

| table | a row is |
| --- | --- |
| ``run`` | one compilation: identity (what it may be resumed with), description, result |
| ``effect`` | one thing bought or decided; unique by (run, key) |
| ``usage`` | the LM calls of one effect, by role and model |
| ``event`` | one thing the run made of its effects; unique by (run, key) |

:mod:`combee_dspy.events` has a record for each kind of event, and :class:`RunHistory` reads them.

Each row has a checksum (``crc``), and beside the file stands how many rows it must hold, so that a
journal that was changed on disk, or cut off, is refused with what can be had of it, and never
written over. Every commit ends with fsync.

Only :class:`Journal` writes, from one thread. Anyone may read, with :class:`Reader`.
"""

from combee_dspy.journal._cache import Cache
from combee_dspy.journal._history import Description, Entry, RunHistory, RunRecord
from combee_dspy.journal._journal import Journal, RunLog
from combee_dspy.journal._rows import (
    JOURNAL,
    Effect,
    Identity,
    Outcome,
    Outcomes,
    Reader,
    check_ended,
    failure_counts,
    journal_file,
    outcomes,
)

__all__ = [
    "JOURNAL",
    "Cache",
    "Description",
    "Effect",
    "Entry",
    "Identity",
    "Journal",
    "Outcome",
    "Outcomes",
    "Reader",
    "RunHistory",
    "RunLog",
    "RunRecord",
    "check_ended",
    "failure_counts",
    "journal_file",
    "outcomes",
]
