"""The rule by simulated canaries, and what callers notice under load."""

from __future__ import annotations

import pytest

from combee_bench.canary import line, run, table
from combee_bench.options import CanaryOptions


def test_the_rule_promotes_what_is_better_and_refuses_what_is_worse():
    options = CanaryOptions(
        parts=("rule",), canaries=20, pairs=4000, looks=4, epsilons=(2.0, 0.5), discordance=4.0
    )
    rows = {row.case: row.figures for row in run(options)}
    assert rows["ε 2, true difference +1 points"]["promoted"] == 1.0
    assert rows["ε 0.5, true difference -1 points"]["promoted"] <= 0.05
    assert all(
        found["promoted"] + found["worse"] + found["undecided"] == pytest.approx(1)
        for found in rows.values()
    )
    assert rows["ε 2, true difference +1 points"]["promoted by plug-in bets"] == 1.0
    assert rows["ε 2, true difference -2 points"]["promoted by plug-in bets"] <= 0.05
    first = next(run(options))
    assert line(options, first).startswith("rule: ε 2, true difference -1 points: promoted")
    assert table(options, [first]).row_count == 1
