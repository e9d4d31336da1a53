"""A metric that is a coroutine function scores, and says what each predictor did."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from combee_dspy import Budget
from tests.worlds import World, metric, rows


async def awaited(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> Any:
    await asyncio.sleep(0)
    found = metric(gold, pred)
    if pred_name is not None:
        found.feedback = f"Awaited for {pred_name}."
    return found


@pytest.mark.parametrize("executor", ["threads", "asyncio"])
def test_a_metric_that_is_awaited_scores_and_gives_feedback(executor: str, tmp_path: Path) -> None:
    World.made().compile(
        metric=awaited,
        executor=executor,
        budget=Budget(updates=1),
        log_dir=tmp_path,
        reflection_minibatch_size=4,
    )

    effects = rows(tmp_path, "SELECT kind, error, value FROM effect")
    assert [row["error"] for row in effects if row["kind"] == "rollout" and row["error"]] == []
    feedback = [row["value"] for row in effects if row["kind"] == "feedback"]
    assert feedback
    assert all("Awaited for" in value for value in feedback)
