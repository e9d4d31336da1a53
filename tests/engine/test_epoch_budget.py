from __future__ import annotations

from dataclasses import replace

import dspy
import pytest

from combee_dspy import Budget, Combee
from combee_dspy.bench.speed_options import SpeedOptions, load_rows
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.lms import SimulatedService, SimulatedTask

OPTIONS = SpeedOptions(examples=20, validation=6, heldout=5, slots=8)


@pytest.mark.parametrize(("size", "epochs", "sizes"), [(8, 1, [8, 8, 4]), (20, 2, [20, 20]), (10, 1, [10, 10])])
@pytest.mark.parametrize("staleness", [0, 1])
def test_a_budget_of_epochs_ends_with_the_epoch_and_begins_nothing_beyond_it(
    size: int, epochs: int, sizes: list[int], staleness: int
) -> None:
    rows = load_rows(OPTIONS)
    service = replace(OPTIONS.service(), time_scale=0.0)
    with SimulatedService(service, SimulatedTask.from_benchmark(rows, base_rate=0.3)) as running:
        combee = Combee(
            rows.metric,
            budget=Budget(epochs=epochs),
            reflection_lm=running.lm(),
            num_threads=8,
            staleness=staleness,
            speculation=0.0,
            reflection_minibatch_size=size,
            progress=False,
        )
        with dspy.context(lm=running.lm()):
            program = combee.compile(
                rows.program(), trainset=list(rows.train.examples), valset=list(rows.validation.examples)
            )
    report = program.combee_report
    assert report.reason == f"budget.epochs is spent: {epochs} of {epochs}"
    assert (report.iterations, len(report.decisions)) == (len(sizes), len(sizes))
    assert report.speculative == 0


def test_a_sampler_of_the_users_own_draws_what_nobody_counts() -> None:
    with pytest.raises(ArgumentValueError, match=r"budget\.epochs"):
        Combee(
            lambda *_: 1.0,
            budget=Budget(epochs=1),
            reflection_lm=dspy.LM("openai/none"),
            gepa_kwargs={"batch_sampler": object()},
        )._check_bound()
