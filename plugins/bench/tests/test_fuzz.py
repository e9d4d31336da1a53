"""A short run of the fuzzer: what a model, a data set or a file may hold breaks nothing."""

from __future__ import annotations

import random

import pytest

from combee_bench import fuzz
from combee_bench.options import FuzzOptions


@pytest.mark.slow
def test_nothing_hostile_breaks_a_run_a_reader_or_a_pattern() -> None:
    options = FuzzOptions(outputs=150, files=25, texts=25, longest=50_000)
    rows = list(fuzz.run(options))
    assert fuzz.passed(options, rows), [row for row in rows if row.wrong]
    assert any(row.what.startswith("a run, ") for row in rows)
    assert all(
        0 < row.refused < row.tried
        for row in rows
        if row.what in ("a run file", "examples, JSON lines")
    )


def test_what_goes_wrong_is_told_and_how_to_get_it_again() -> None:
    def broken(text: str) -> None:
        raise KeyError(text)

    row = fuzz._tried(
        fuzz.FuzzRow("a reader", 0, 0, 0, 0.0), lambda: broken("\x1b"), "seed 0, a reader 7"
    )
    assert not fuzz.passed(FuzzOptions(), [row])
    assert row.example == "seed 0, a reader 7: KeyError: '\\x1b'"


def test_hostile_texts_come_from_the_seed() -> None:
    assert fuzz.hostile(random.Random(1), "text") == fuzz.hostile(random.Random(1), "text")
    assert len({fuzz.hostile(random.Random(n), "text") for n in range(50)}) > 30
