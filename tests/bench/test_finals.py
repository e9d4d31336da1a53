from __future__ import annotations

import json
from pathlib import Path

import pytest

from combee_dspy.bench.finals import SPREADS, WORLDS, main, run_finals, table
from combee_dspy.exceptions import ArgumentValueError


def test_a_draw_of_those_within_reach_wins_nearly_what_one_of_all_does_for_fewer_rollouts() -> None:
    rows = run_finals((24,), trials=300)
    assert [(row.world, row.spread) for row in rows] == [(world, spread) for world in WORLDS for spread in SPREADS]
    for row in rows:
        everybody, _, within = row.gains
        assert row.rollouts[2] < row.rollouts[1] <= row.rollouts[0] <= 3 * 24
        assert abs(within - everybody) < 0.004
        assert row.gains[0] <= row.lost
    assert sum(row.gains[2] for row in rows) > 0


def test_the_same_seed_gives_the_same_rows() -> None:
    assert run_finals((12,), trials=20, seed=3) == run_finals((12,), trials=20, seed=3)
    assert run_finals((12,), trials=20, seed=3) != run_finals((12,), trials=20, seed=4)


@pytest.mark.parametrize(("sizes", "trials", "named"), [((), 20, "sizes"), ((0,), 20, "sizes"), ((12,), 1, "trials")])
def test_what_cannot_be_drawn_is_refused(sizes: tuple[int, ...], trials: int, named: str) -> None:
    with pytest.raises(ArgumentValueError, match=named):
        run_finals(sizes, trials)


def test_the_command_prints_a_row_each_and_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "finals.json"
    main(["--sizes", "12", "--trials", "20", "--json", str(target)])
    shown = capsys.readouterr().out
    assert shown == table(run_finals((12,), trials=20)) + "\n"
    record = json.loads(target.read_text(encoding="utf-8"))
    assert record["levels"] == [0.0, 0.05, 0.25]
    assert len(record["rows"]) == len(WORLDS) * len(SPREADS) == shown.count("\n") - 2
