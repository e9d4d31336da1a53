"""What size the next minibatch is expected to have, and what an iteration is said to have taken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from combee_dspy.controllers import BatchController, BatchView, PowerLaw, Static
from combee_dspy.engine.minibatches import ControlledSampler
from combee_dspy.engine.sampling import EpochStream
from combee_dspy.engine.state import RunState
from combee_dspy.records import BatchDecision, Measurement

_EXAMPLES = 240


def _sampler(state: RunState, controller: BatchController) -> ControlledSampler:
    def view(found: Any) -> BatchView:
        return BatchView(
            iteration=found.i + 1,
            trainset_size=_EXAMPLES,
            seen=state.cursor,
            measurements=tuple(state.measurements),
            planned=tuple(decision.size for decision in state.decisions),
            workers=64,
        )

    return ControlledSampler(controller, controller, EpochStream(_EXAMPLES, 0), state, view, lambda event: None)


def _after(*sizes: int, controller: BatchController | None = None) -> tuple[RunState, ControlledSampler]:
    """A run that has drawn some sizes; the last one is under way."""
    state = RunState(cursor=sum(sizes))
    sampler = _sampler(state, controller or PowerLaw())
    state.measurements = [Measurement(size, 1.0 + size / 100) for size in sizes[:-1]]
    state.decisions = [BatchDecision(size, "") for size in sizes]
    return state, sampler


def test_while_sizes_are_measured_the_next_one_is_known() -> None:
    _, sampler = _after(3)
    known = sampler.likely_size()
    assert known is not None
    state, _ = _after(3)
    state.measurements.append(Measurement(3, 55.0))
    drawn = PowerLaw().plan(
        BatchView(2, _EXAMPLES, seen=3, measurements=tuple(state.measurements), planned=(3,), workers=64)
    )
    assert known == drawn.size > 3, "whatever the delay turns out to be"


def test_a_size_that_hangs_on_a_delay_is_not_guessed_before_the_delay_is_known() -> None:
    _, sampler = _after(3, 13, 60)
    assert sampler.likely_size() is None


def test_once_a_size_has_been_fitted_the_next_one_is_likely_to_be_the_same() -> None:
    state, sampler = _after(3, 13, 60, 41)
    fit = (
        PowerLaw()
        .plan(BatchView(4, _EXAMPLES, seen=76, measurements=tuple(state.measurements), planned=(3, 13, 60), workers=64))
        .fit
    )
    assert fit is not None
    state.decisions[-1] = replace(state.decisions[-1], fit=fit)
    assert sampler.likely_size() == 41


def test_a_static_size_is_known() -> None:
    _, sampler = _after(48, controller=Static(48, "a test"))
    assert sampler.likely_size() == 48


def test_the_first_delay_runs_from_where_its_minibatch_began() -> None:
    now = 100.0
    state = RunState(iteration=1, checked=True, begun_early=90.0, clock=lambda: now)
    state.draw_minibatch(3)
    state.finish_measurement(95.0)
    state.iteration, state.checked, now = 2, True, 130.0
    state.draw_minibatch(13)
    state.finish_measurement(101.0)
    assert state.measurements == [Measurement(3, 10.0), Measurement(13, 29.0)]


def test_an_iteration_that_gepa_spends_on_a_merge_leaves_what_was_drawn_to_the_next() -> None:
    now = 10.0
    state = RunState(iteration=1, checked=True, clock=lambda: now)
    state.draw_minibatch(3)
    state.draw_minibatch(13, ahead=True)
    state.drawn_ahead = [(0, [4, 5])]
    assert state.ahead == 13
    state.finish_measurement(0.0)
    state.iteration, now = 2, 15.0
    state.finish_measurement(10.0)
    resumed = RunState(iteration=3, clock=lambda: now)
    resumed.load(state.dump())
    for run in (state, resumed):
        run.iteration, run.checked = 3, True
        assert run.take_drawn() == [(0, [4, 5])]
        assert not run.drawn_ahead
        assert not run.ahead
        run.finish_measurement(-5.0)
        assert run.measurements == [Measurement(3, 10.0), Measurement(13, 20.0)]
