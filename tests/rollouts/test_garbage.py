from __future__ import annotations

import gc

import pytest

from combee_dspy.rollouts import Asyncio, Threads
from combee_dspy.rollouts._garbage import OBJECTS


@pytest.fixture(autouse=True)
def threshold():
    before = gc.get_threshold()
    gc.set_threshold(700, 9, 8)
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize("executor", [Threads(), Asyncio()])
def test_garbage_is_looked_for_less_often_as_long_as_one_session_is_open(executor):
    first, second = executor.start(1), executor.start(1)
    assert gc.get_threshold() == (OBJECTS, 9, 8)
    first.close()
    first.close()
    assert second.submit(gc.get_threshold).result() == (OBJECTS, 9, 8)
    second.close()
    assert gc.get_threshold() == (700, 9, 8)


@pytest.mark.parametrize("chosen", [0, OBJECTS + 1])
def test_who_collects_more_rarely_keeps_that(chosen):
    gc.set_threshold(chosen, 9, 8)
    session = Threads().start(1)
    assert gc.get_threshold() == (chosen, 9, 8)
    session.close()
    assert gc.get_threshold() == (chosen, 9, 8)


def test_what_somebody_chooses_meanwhile_stays():
    session = Threads().start(1)
    gc.set_threshold(5000, 9, 8)
    session.close()
    assert gc.get_threshold() == (5000, 9, 8)
