from __future__ import annotations

import json
from pathlib import Path

import pytest

from combee_dspy.bench.finals import MEANS, SPREADS, WORLDS, main, run_finals, table
from combee_dspy.exceptions import ArgumentValueError


def test_a_draw_of_those_within_reach_wins_nearly_what_one_of_all_does_for_fewer_rollouts() -> None:
    rows = run_finals((60,), trials=1_000)
    places = [(row.mean, row.world, row.spread) for row in rows]
    assert places == [(mean, world, spread) for mean in MEANS for world in WORLDS for spread in SPREADS]
    for row in rows:
        # All three are drawn again on every question, without exception.
        assert row.rollouts[0] == 3 * 60
        assert row.rollouts[2] < row.rollouts[1] < row.rollouts[0]
    assert sum(row.rollouts[2] for row in rows) < 0.8 * sum(row.rollouts[0] for row in rows)
    everybody, within = (sum(row.gains[place] for row in rows) for place in (0, 2))
    assert everybody > 0
    assert 0.85 * everybody < within < 1.15 * everybody


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
    (first, *_) = rows = run_finals((12,), trials=20)
    assert shown == table(rows) + "\n"
    cells = [cell.strip() for cell in shown.splitlines()[2].split("|")[1:-1]]
    assert cells[:4] == ["even", "0.6", "0.02", "12"]
    assert cells[4] == f"{first.lost:.2%}"
    assert cells[9:11] == [f"{first.gains[2]:.2%}", f"{first.rollouts[2]:,.0f}"]
    record = json.loads(target.read_text(encoding="utf-8"))
    assert record["levels"] == [0.0, 0.05, 0.25]
    assert len(record["rows"]) == len(MEANS) * len(WORLDS) * len(SPREADS) == shown.count("\n") - 2
