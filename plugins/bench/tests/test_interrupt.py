"""Ctrl-C while a method of others hangs: the comparison is over at once."""

from __future__ import annotations

import os

import pytest
from tests.search.test_interrupt import run_interrupted


@pytest.mark.skipif(os.name != "posix", reason="interrupts are sent as POSIX does")
def test_an_interrupt_waits_for_no_method_that_hangs() -> None:
    code, _, err = run_interrupted("-m", "plugins.bench.tests.hanging")

    assert code == 130
    assert "error: interrupted" in err
