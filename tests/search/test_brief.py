"""What the preset sets, and what a run is warned of."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from combee_dspy import Budget
from combee_dspy.evaluation import Calibration, Judge
from combee_dspy.presets import brief
from tests.worlds import World

CRITERIA = "The code word of the animal."


def test_the_preset_is_what_it_says() -> None:
    judge, reference = Judge(CRITERIA), Judge(CRITERIA)
    found = brief(judge, reference, serial_rollouts=300, serial_score=0.8, serial_workers=4)
    assert found["num_threads"] == 32
    assert str(found["executor"].batching.flush) == "queue_at_least('target') | waited(0.2) | variance_below(0.01)"
    assert len(found["operators"]) == 4
    assert found["validation"].calibration == Calibration(reference, share=0.05, threshold=0.7)
    _, threshold = found["diversity"].build_embedder()
    assert threshold == found["diversity"].build_embedder()[0].threshold()
    limits = repr(found["budget"])
    assert all(part in limits for part in ("rollouts=1200", "updates=3", "score=0.81"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_threads": 64, "diversity": False}, ["diversity"]),
        ({"num_threads": 2, "diversity": False}, []),
        ({"cache": False}, ["cache"]),
        ({"num_threads": 64}, []),
    ],
)
def test_many_workers_without_diversity_and_no_cache_are_warned_of_by_name(
    world: World, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], said: list[str]
) -> None:
    with caplog.at_level(logging.WARNING, "combee_dspy"):
        world.compile(**settings, budget=Budget(updates=1))
    warned = [one.getMessage().partition(" ")[0] for one in caplog.records if "is off" in one.getMessage()]
    assert warned == said
