"""Threads that carry out what no caller waits for."""

from __future__ import annotations

from combee_strategist.canary._pool import Pool


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
