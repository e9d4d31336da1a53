"""The collapsing proposer in whole runs."""

from __future__ import annotations

from combee_dspy.bench.collapse import ARMS, main, run_one
from combee_dspy.bench.collapse_runs import full_search


def test_whole_runs_collapse_too_and_diversity_helps(capsys):
    off, guard, both = (run_one(arm, 1, 8, full_search) for arm in ARMS)
    assert off.made == off.proposals == 8
    assert off.distinct < off.made
    assert (off.refused, off.repeated) == (0, 0)
    for found in (guard, both):
        assert found.distinct == found.made
        assert found.refused > 0
        assert found.wrong_refusals == 0
    assert both.distinct > off.distinct
    assert 0 < both.heldout <= 1


def test_the_same_seed_gives_the_same_run_and_the_command_line_knows_it(capsys):
    first = run_one("guard and temperature", 3, 3, full_search)
    assert first == run_one("guard and temperature", 3, 3, full_search)
    main(["--seeds", "3", "--proposals", "3", "--full"])
    shown = capsys.readouterr().out
    assert "1 seeds, 3 proposals" in shown
    assert f"{first.heldout:.2f}" in shown.splitlines()[-1]
