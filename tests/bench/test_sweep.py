"""The sweep over aggregators: what it counts, and what it refuses."""

from __future__ import annotations

import pytest

from combee_dspy.bench.sweep import SweepOptions, run_sweep, summary, table
from combee_dspy.exceptions import ArgumentValueError

SMALL = {"examples": 36, "heldout": 8, "sizes": (36,), "laws": ("attention",), "seeds": (0, 1)}


def test_union_keeps_what_one_crowded_call_cannot_read() -> None:
    rows = list(run_sweep(SweepOptions(aggregators=("single-call", "union"), **SMALL)))
    assert [(row.aggregator, row.seed) for row in rows] == [
        ("single-call", 0),
        ("union", 0),
        ("single-call", 1),
        ("union", 1),
    ]
    assert all(row.simulated and row.taught and 0 < row.kept <= row.taught for row in rows)
    single, union = (cell["kept"] for cell in summary(rows))
    assert single[2] < union[1]
    assert all(row.calls == 1 for row in rows if row.aggregator == "single-call")
    assert {row.before for row in rows if row.seed == 0} == {rows[0].before}
    assert table(rows).count("\n") == 3


def test_the_table_says_where_ours_loses() -> None:
    rows = list(run_sweep(SweepOptions(aggregators=("parallel-scan", "single-call"), **{**SMALL, "sizes": (9,)})))
    text = table(rows)
    best = max(summary(rows), key=lambda cell: cell["heldout"][0])
    assert ("single-call |" in text.splitlines()[2].rsplit("|", 2)[1] + "|") == (
        best["aggregator"] == "single-call" and best["heldout"][0] > summary(rows)[0]["heldout"][0]
    )


def test_the_law_that_counts_tokens_is_swept_when_asked_for() -> None:
    both = {**SMALL, "laws": ("attention", "reading"), "seeds": (0,)}
    attention, reading = run_sweep(SweepOptions(aggregators=("single-call",), **both))
    assert (attention.law, reading.law) == ("attention", "reading")
    # Records of a program that does not reason are short: 5,000 tokens hold more than 12 of them.
    assert attention.kept is not None and reading.kept is not None
    assert attention.kept < reading.kept
    assert "reading" not in SweepOptions().laws


@pytest.mark.parametrize(("options", "name"), [({"laws": ("gravity",)}, "laws"), ({"sizes": (0,)}, "sizes")])
def test_what_cannot_be_swept_is_refused_before_it_starts(options: dict, name: str) -> None:
    with pytest.raises(ArgumentValueError, match=name):
        run_sweep(SweepOptions(**options))
