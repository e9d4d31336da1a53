"""Threads that carry out what no caller waits for."""

from __future__ import annotations

import threading

from combee_strategist.canary._pool import Overdue, Pool


def test_a_settlement_that_fails_costs_no_thread(caplog):
    pool, found = Pool(workers=1, bound=8, timeout=5.0), []

    def fails(result, error):
        raise OSError("the disk is full")

    for _ in range(3):
        assert pool.submit(lambda: 1, fails)
    assert pool.submit(lambda: 2, lambda result, error: found.append(result))
    assert pool.idle(5.0)
    pool.close()
    assert found == [2]
    assert "the disk is full" in caplog.text


def test_a_job_that_hangs_when_its_pool_is_closed_is_settled_once():
    pool, begun, never, settled = Pool(1, 8, 0.2), *(threading.Event() for _ in range(3))
    outcomes = []

    def hang():
        begun.set()
        never.wait(30)

    def settle(result, error):
        outcomes.append(error)
        settled.set()

    assert pool.submit(hang, settle)
    assert begun.wait(10)
    pool.close()
    assert settled.wait(10)
    never.set()
    assert pool.idle(10)
    assert [type(error) for error in outcomes] == [Overdue]


def test_a_thread_that_cannot_begin_refuses_the_job_and_no_later_one(monkeypatch):
    pool, results = Pool(workers=1, bound=8, timeout=5.0), []

    def fails(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fails)
        assert not pool.submit(lambda: 1, lambda result, error: results.append(result))
    assert pool.submit(lambda: 2, lambda result, error: results.append(result))
    assert pool.idle(5.0)
    pool.close()
    assert results == [2]
