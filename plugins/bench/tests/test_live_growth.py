"""What a learner reads of a year of requests, and how often drift is told where nothing changes.

``COMBEE_SIZES="requests=200000" python -m pytest -s plugins/bench/tests/test_live_growth.py``
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import TypeVar

import dspy
import pytest

from combee_dspy.events import encode
from combee_dspy.journal import Journal
from combee_dspy.json_texts import dump
from combee_dspy.testing import ScriptedLM
from combee_strategist.canary import RequestLabelled
from combee_strategist.canary._events import effect_of
from combee_strategist.canary._pairs import Answer
from combee_strategist.live import Live
from combee_strategist.live._evidence import _PEACE
from combee_strategist.live._served import ServedRequests, is_behind
from plugins.bench.tests.sizes import show, size
from studies.fortnight.drift import DriftOptions, run

T = TypeVar("T")
NOW, YEAR, SERVERS = 1_700_000_000.0, 365 * 86_400.0, 10
EFFECT = (
    "INSERT INTO effect(run, key, kind, role, purpose, candidate, example, split, started, ended,"
    " value) VALUES (1, ?, 'rollout', 'serving', 'serving', 'v1', ?, 'serving', ?, ?, ?)"
)
EVENT = "INSERT INTO event(run, key, kind, at, data) VALUES (1, ?, 'labelled', ?, ?)"


def serve(folder: Path, numbers: range, step: float) -> Path:
    """Write the journal of a server; every twentieth of its requests is labelled."""
    with closing(Journal(folder)) as journal:
        journal.run("rope", 0, {"serving": "rope"}, {"serving": "rope"}).close()
        path = journal.path
    effects, events = [], []
    for number in numbers:
        at, request = NOW - YEAR + number * step, f"{number * 2654435761 % 2**32:08x}{number:08x}"
        output = {"answer": f"K{number % 8}", "why": "because " * 60}
        inputs = {"question": f"Number {number}: " + "how long is this rope? " * 20}
        effect = effect_of(request, Answer(1, "serving", at, 0.5, (), output), inputs, number)
        effects.append((effect.key, request, at, at + 0.5, dump(effect.value)))
        if number % 20 == 0:
            events.append(label(request, at + 3_600))
    write(path, EFFECT, effects)
    write(path, EVENT, events)
    return path


def label(request: str, at: float) -> tuple[str, float, str]:
    said = RequestLabelled(request, at, expected={"answer": "K1"})
    return f"labelled/{request}/{at}", at, encode(said)


def write(
    path: Path, sql: str, rows: list[tuple[object, ...]] | list[tuple[str, float, str]]
) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executemany(sql, rows)
        connection.commit()


@pytest.mark.slow
def test_a_tick_reads_what_came_since_the_last_one(tmp_path: Path) -> None:
    requests, seconds = size("requests", 20_000), dict[str, float]()
    each = requests // SERVERS
    for server in range(SERVERS):
        numbers = range(server * each, (server + 1) * each)
        path = serve(tmp_path / "serving" / f"{server:020d}", numbers, YEAR / requests)
    lm = ScriptedLM(lambda request: "", cache=False)
    program = dspy.Predict("question -> answer")
    live = Live(
        "rope",
        program,
        metric=lambda *_: 0.0,
        reflection_lm=lm,
        lm=lm,
        log_dir=tmp_path,
        clock=lambda: NOW,
    )

    def timed(what: str, work: Callable[[], T]) -> T:
        began = time.process_time()
        result = work()
        seconds[what] = round(time.process_time() - began, 3)
        return result

    served = ServedRequests(live._setup, lambda trace: trace)
    first = served.end()
    rows = timed("CPU seconds, all labels", lambda: served.upto(first))
    assert len(rows) == min(10_000, requests // 20)
    time.sleep(2.5)  # a file that has just changed may change again
    served.end()
    write(path, EVENT, [label(rows[-1].trace.id, NOW), label("nobody", NOW)])
    later = timed("CPU seconds, end of a later tick", served.end)
    held, rows = len(rows), timed("CPU seconds, its labels", lambda: served.upto(later))
    show({"requests": requests, "labels": requests // 20, "held": len(rows), **seconds})
    # One was labelled before, and nobody asked the other.
    assert len(rows) == held
    assert not [row for row in rows if is_behind(first, row)]


@pytest.mark.slow
def test_drift_is_rarely_told_by_chance_and_sets_nothing_aside() -> None:
    seeds, days = size("seeds", 2), size("days", 90)
    options = DriftOptions(seeds=tuple(range(seeds)), days=days)
    rows = [*islice(run(options), 8 * seeds)]  # before those of the fortnight
    show({row.world: row.false for row in rows})
    assert not any(row.whole for row in rows)
    assert fmean(row.false for row in rows) <= days * options.labels / _PEACE
