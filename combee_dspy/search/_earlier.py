"""What earlier parts of a run have spent, by the journal, and what a replayed run decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import inf
from typing import Any

import dspy
import orjson

from combee_dspy.events import AnswersLost, CostReserved, RunStarted
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.journal import Reader, RunHistory, RunLog, journal_file
from combee_dspy.records import CallUsage
from combee_dspy.rollouts import lms_of
from combee_dspy.search._amounts import Lost
from combee_dspy.search._budget import Purse
from combee_dspy.search._candidates import Compilation
from combee_dspy.search._describe import budget_digest, lms_by_role, over_place

_TIMEOUT = 600.0  # of an LM that sets none, in seconds: DSPy's own


def make_purse(task: Compilation, log: RunLog, decided: Mapping[str, Any]) -> Purse:
    """Return the purse of a run, from which earlier parts of it have spent already.

    Limits on cost and time hold unless the run replays one that came to its end, or that this
    budget has ended: there it ends as well, whatever it has cost by then. A run that a kill held
    up, or that was killed, was not ended.
    """
    log.wait()  # the start of this part ends the part before
    ends = (f"decision/{place}" for place in (f"end/{budget_digest(task)}", over_place(task)))
    with Reader(log.journal.path) as reader:
        return Purse(
            task.limits,
            earlier_costs(reader, log.number),
            lost_effects(reader, log.number, _longest_call(task)),
            _earlier_seconds(reader, log.number),
            charged=decided.keys().isdisjoint(ends),
        )


def _longest_call(task: Compilation) -> float:
    """Return for how many seconds a service may work on a call: twice the longest ``timeout``."""
    lms = [*lms_by_role(task.settings).values(), dspy.settings.lm, *lms_of(task.student)]
    timeouts = [getattr(lm, "kwargs", {}).get("timeout") for lm in lms if lm is not None]
    seconds = [value if isinstance(value, int | float) else _TIMEOUT for value in timeouts]
    return 2 * max(seconds, default=_TIMEOUT)


def _earlier_seconds(reader: Reader, run: int) -> float:
    """Return how long earlier parts of a run were at work: from the first effect of each stretch to
    its last.
    """
    rows = reader.rows(
        "SELECT started, ended FROM effect WHERE run = ? AND ended > 0 ORDER BY started", (run,)
    )
    seconds, until = 0.0, 0.0
    for started, ended in rows:
        seconds += max(0.0, ended - max(started, until))
        until = max(until, ended)
    return seconds


def earlier_costs(reader: Reader, run: int) -> list[tuple[str, list[CallUsage]]]:
    """Return the cost of each effect of earlier parts of a run, with its kind in a purse."""
    rows = reader.rows(
        "SELECT e.id, CASE e.kind WHEN 'rollout' THEN e.kind WHEN 'failed' THEN e.value ->> '$.of'"
        " ELSE e.kind || '/' || e.purpose END, u.role, u.model, u.calls, u.errors, u.cached,"
        " u.prompt_tokens, u.completion_tokens, u.dollars, u.gpu_seconds, u.seconds FROM usage u"
        " JOIN effect e ON e.id = u.effect WHERE e.run = ? AND e.purpose != 'heldout' ORDER BY"
        " e.id",
        (run,),
    )
    costs: dict[tuple[int, str], list[CallUsage]] = {}
    for row in rows:
        costs.setdefault((row[0], row[1]), []).append(CallUsage(*row[2:]))
    return [(kind, usage) for (_, kind), usage in costs.items()]


def lost_effects(reader: Reader, run: int, longest_call: float) -> list[Lost]:
    """Return the effects that were in flight when earlier parts of a run were killed, and calls
    whose answers were lost: nobody knows what they have cost.

    ``longest_call`` is for how many seconds a service may work on a call that was sent. The last
    call of an effect may have been sent when its part of the run was killed.
    """
    ended: Counter[str] = Counter()
    history = RunHistory(reader, run)
    sql = (
        "SELECT kind, key FROM effect WHERE run = ? AND kind != 'decision'"
        # After an attempt that failed, the effect was in flight still.
        " AND NOT (kind = 'failed' AND value ->> '$.goes_on' IS NOT NULL)"
    )
    for kind, key in reader.rows(sql, (run,)):
        ended[key.removeprefix("failed/").rpartition("/")[0] if kind == "failed" else key] += 1
    answers = (entry.event for entry in history.entries(AnswersLost))
    lost = [Lost(_is_rollout(event.effect), event.most, answers=event.answers) for event in answers]
    starts = [entry.at for entry in history.entries(RunStarted)]
    killed: dict[float, float] = {}  # when each part ended, by when the next one started
    for reserved in history.entries(CostReserved, newest_first=True):
        key = reserved.event.effect
        ended[key] -= 1
        if ended[key] < 0:
            killed_before = next((at for at in starts if at > reserved.at), inf)
            if killed_before not in killed:
                killed[killed_before] = _last_work(reader, run, killed_before)
            until = killed[killed_before] + longest_call
            lost.append(Lost(_is_rollout(key), reserved.event.most, until))
    return lost


def _last_work(reader: Reader, run: int, before: float) -> float:
    """Return when a run was last at work before some time, by its journal."""
    sql = (
        "SELECT max(at) FROM (SELECT max(at) AS at FROM event WHERE run = ?1 AND at < ?2"
        " UNION ALL SELECT max(ended) FROM effect WHERE run = ?1 AND ended < ?2)"
    )
    ((at,),) = reader.rows(sql, (run, before))
    return float(at)


def _is_rollout(key: str) -> bool:
    return key.startswith("rollout/")


def replayed_decisions(place: str | None, name: str) -> Mapping[str, Any]:
    """Return the decisions of an earlier run by key; none without a ``place`` to read them from."""
    if place is None:
        return {}
    with Reader(journal_file(place)) as reader:
        ((run,),) = reader.rows("SELECT max(id) FROM run WHERE name = ?", (name,))
        if run is None:
            remedy = "Give the log_dir of an earlier run of this task."
            raise ArgumentValueError("search.replay", place, f"holds no run named {name!r}", remedy)
        sql = "SELECT key, value FROM effect WHERE run = ? AND kind = 'decision'"
        rows = reader.rows(sql, (run,))
    return {row["key"]: orjson.loads(row["value"]) for row in rows}
