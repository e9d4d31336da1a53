from __future__ import annotations

import json

import pytest

from combee_dspy.bench.many import ALONE, ManyOptions, main, run_many
from combee_dspy.exceptions import ArgumentValueError

SMALL = ["--tasks", "2", "--rollouts", "60", "--train", "16", "--validation", "8", "--heldout", "8"]


def test_every_way_learns_the_same_at_the_same_cost(tmp_path, capsys):
    file = tmp_path / "many.json"
    main([*SMALL, "--slots", "8", "--minibatch", "8", "--time-scale", "0.001", "--json", str(file)])
    out = capsys.readouterr().out
    record = json.loads(file.read_text(encoding="utf-8"))
    assert record["simulated"] is True
    rows = record["rows"]
    assert [row["way"] for row in rows] == [ALONE, "candidate-parallel", "task-parallel", "hybrid", "auto"]
    assert {row["equal"] for row in rows} == {2}
    assert len({(row["validation"], row["heldout"]) for row in rows}) == 1
    assert all(0 < row["utilisation"] <= 1 for row in rows)
    assert "auto chose" in out
    assert "simulated" in out


@pytest.mark.parametrize("wrong", [{"tasks": 0}, {"time_scale": 0.0}, {"rollouts": -1}])
def test_options_out_of_range_are_refused(wrong):
    with pytest.raises(ArgumentValueError):
        run_many(ManyOptions(**wrong))
