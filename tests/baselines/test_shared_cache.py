"""What one method has paid for, the next does not buy again; the books say so."""

from __future__ import annotations

from typing import Any

import dspy
import pytest

from combee_dspy.baselines import ACE, GEPA, MIPRO, Baseline, BaselineTask, CombeeMethod, Desk
from combee_dspy.events import RolloutFinished
from combee_dspy.exceptions import ArgumentTypeError
from combee_dspy.rollouts import EvaluationCache
from tests.baselines.conftest import World


class Twice(Baseline):
    name = "twice"

    def search(self, task: BaselineTask, desk: Desk) -> dspy.Module | None:
        desk.evaluate(task.program, task.validation)
        return None


def texts(program: Any) -> list[str]:
    return [predictor.signature.instructions for predictor in program.predictors()]


@pytest.mark.parametrize(
    "second", [GEPA(), MIPRO(candidates=2), ACE(), CombeeMethod(), Twice()], ids=lambda one: one.name
)
@pytest.mark.parametrize("first", [GEPA(), CombeeMethod()], ids=lambda one: one.name)
def test_the_seeds_validation_and_heldout_are_bought_once(world: World, first: Baseline, second: Baseline) -> None:
    cache = EvaluationCache()
    alone = second.run(world.task(hooks=()))
    first.run(world.task(hooks=(), cache=cache))
    after = second.run(world.task(hooks=(), cache=cache))
    assert after.reused >= alone.reused + 6
    assert any("came from a cache" in note for note in after.notes)
    # The budget counts them like any other, and the course is the same.
    assert after.rollouts == alone.rollouts
    assert texts(after.program) == texts(alone.program)
    assert [point.validation for point in after.curve] == [point.validation for point in alone.curve]
    assert after.receipt is not None
    assert alone.receipt is not None
    assert after.receipt.after == alone.receipt.after
    assert type(after.program) is type(world.task().program)


def test_a_second_run_of_a_method_answers_its_validations_from_a_file(world: World, tmp_path: Any) -> None:
    path = tmp_path / "rollouts.sqlite"
    first = GEPA().run(world.task(hooks=(), cache=path))
    second = GEPA().run(world.task(cache=path))
    assert texts(first.program) == texts(second.program)
    assert first.rollouts == second.rollouts
    validated = [one for one in world.heard.of(RolloutFinished) if one.split == "validation"]
    assert validated
    assert all(one.cached for one in validated)
    assert all(one.cached for one in world.heard.of(RolloutFinished) if one.split == "heldout")
    assert second.tokens < first.tokens


def test_the_heldout_reading_alone_may_be_shared(world: World) -> None:
    cache = EvaluationCache()
    GEPA().run(world.task(hooks=(), heldout_cache=cache))
    found = MIPRO(candidates=2).run(world.task(heldout_cache=cache))
    assert found.reused == 0
    held = [one for one in world.heard.of(RolloutFinished) if one.split == "heldout"]
    # The student's reading had been paid for by the first method.
    assert sum(one.cached for one in held) >= len(world.task().heldout)


def test_another_metric_shares_nothing(world: World) -> None:
    cache = EvaluationCache()

    def other(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> float:
        return 0.5

    GEPA().run(world.task(hooks=(), cache=cache))
    assert GEPA().run(world.task(hooks=(), cache=cache, metric=other)).reused == 0


def test_something_else_than_a_cache_is_refused(world: World) -> None:
    with pytest.raises(ArgumentTypeError, match="cache"):
        GEPA().run(world.task(cache=3))
