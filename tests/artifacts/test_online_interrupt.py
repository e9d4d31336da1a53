"""Ctrl-C while a playbook serves or learns and its service hangs: over at once."""

from __future__ import annotations

import os

import pytest

from tests.search.test_interrupt import run_interrupted

pytestmark = pytest.mark.skipif(os.name != "posix", reason="interrupts are sent as POSIX does")


@pytest.mark.parametrize(("way", "answers"), [("predict", 0), ("learn", 6)])
def test_an_interrupt_waits_for_no_service_that_hangs(way, answers):
    code, out, _ = run_interrupted("-m", "tests.artifacts.hanging", way)

    assert code == 0
    assert f"interrupted with {answers} answers" in out
