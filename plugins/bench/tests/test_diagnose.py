"""What is said of simulated searches, over a few seeds."""

from __future__ import annotations

from combee_bench import diagnose
from combee_bench.options import DiagnoseOptions


def test_go_is_said_of_what_has_converged_and_of_little_else():
    options = DiagnoseOptions(seeds=tuple(range(6)))
    rows = {one.kind: one for one in diagnose.run(options)}
    assert rows["converged"].said["converged"] >= 3
    assert rows["rising"].said["rising"] >= 5
    assert sum(rows[kind].said["converged"] for kind in ("rising", "flat", "noisy")) <= 1
    assert rows["noisy"].said["undecided"] >= 5
