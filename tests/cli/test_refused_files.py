"""What is not honest is refused from files and commands too: each time, by somebody who tries to
get around it.
"""

from __future__ import annotations

import pytest

from combee_dspy.records import NO_BASELINE
from tests.cli.spoiled import JUDGED, RUN, refused


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_threads": 64, "diversity": False}, "64 workers with diversity off is refused"),
        (
            {"num_threads": 500, "diversity": {"threshold": 0.9999}},
            "500 workers with diversity off is refused",
        ),
        ({"strategies": {"controller": {"name": "static", "params": {"size": 8}}}}, "reason"),
        (
            {
                "strategies": {
                    "controller": {"name": "static", "params": {"size": 8, "reason": " "}}
                }
            },
            "reason",
        ),
        (
            {
                "strategies": {
                    "stopping": {"name": "patience", "params": {"updates": 3, "on": "train"}}
                }
            },
            "training score",
        ),
        ({"heldout": {"baseline": 17.0}}, "baseline"),
        ({"heldout": {"baseline": "their-paper"}}, "holds no run"),
        (JUDGED, "examiner"),
    ],
)
def test_a_file_that_would_spoil_its_claim_is_not_run(shell, files, tmp_path, change, words):
    refused(shell, words, "run", files("run.yaml", **change))
    assert not list(tmp_path.glob("log/**/*.json"))


def test_a_held_out_set_that_was_read_stays_as_it_is(shell, files):
    params = RUN["data"]["benchmark"]["params"]
    assert shell("run", files("run.yaml"))[0] == 0
    for change in ({"heldout": 11}, {"heldout": 13}, {"seed": 1}):
        moved = {"benchmark": {"name": "formula-mini", "params": {**params, **change}}}
        # Neither the same run nor another seed of it, in the study that has read the rows.
        for seed in (0, 1):
            code, _, err = shell("run", files("run.yaml", data=moved, seed=seed))
            assert code == 2
            assert "log_dir" in err or "another" in err


def test_no_figure_is_a_headline_without_a_baseline_that_was_measured_here(shell, files):
    out = shell("run", files("run.yaml"))[1]
    assert NO_BASELINE in out
    typed = {"score": 0.01, "rollouts": 1200, "seconds": 9e9}
    out = shell("run", files("run.yaml", heldout={"baseline": typed}, log_dir="typed"))[1]
    assert "times as fast" not in out
    assert (
        "the baseline was given and not measured here on the same rows, so no speed is stated"
        in out
    )
    for command in ("show", "report"):
        shell(command, "typed")
    assert "times as fast" not in shell("show", "typed")[1]
