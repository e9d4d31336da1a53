"""What lives as long as a run."""

from __future__ import annotations

import gc
from typing import Any

from combee_dspy import Combee
from combee_dspy.rollouts._garbage import OBJECTS


def test_garbage_is_looked_for_less_often_while_a_run_goes_on_and_as_before_when_it_is_over(world: Any) -> None:
    seen = set()

    def metric(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        seen.add(gc.get_threshold()[0])
        return world.metric(gold, pred)

    before = gc.get_threshold()
    gc.set_threshold(700, 9, 8)
    try:
        optimizer = Combee(metric, max_metric_calls=20, reflection_lm=world.proposer_lm, num_threads=4, seed=1)
        optimizer.compile(world.student(), trainset=world.examples(6), valset=world.examples(4, start=48))
        assert (seen, gc.get_threshold()) == ({OBJECTS}, (700, 9, 8))
    finally:
        gc.set_threshold(*before)
