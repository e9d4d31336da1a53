from __future__ import annotations

import gc
from contextlib import ExitStack

import pytest

from combee_dspy.rollouts import rarely_collected
from combee_dspy.rollouts._garbage import OBJECTS


@pytest.fixture(autouse=True)
def threshold():
    before = gc.get_threshold()
    gc.set_threshold(700, 9, 8)
    yield
    gc.set_threshold(*before)


def test_garbage_is_looked_for_less_often_until_the_last_block_is_left():
    first, second = ExitStack(), ExitStack()
    for block in (first, second):
        block.enter_context(rarely_collected())
    assert gc.get_threshold() == (OBJECTS, 9, 8)
    first.close()
    assert gc.get_threshold() == (OBJECTS, 9, 8)
    second.close()
    assert gc.get_threshold() == (700, 9, 8)


@pytest.mark.parametrize("chosen", [0, OBJECTS + 1])
def test_who_collects_more_rarely_keeps_that(chosen):
    gc.set_threshold(chosen, 9, 8)
    with rarely_collected():
        assert gc.get_threshold() == (chosen, 9, 8)
    assert gc.get_threshold() == (chosen, 9, 8)


def test_what_somebody_chooses_meanwhile_stays():
    with rarely_collected():
        gc.set_threshold(5000, 9, 8)
    assert gc.get_threshold() == (5000, 9, 8)
