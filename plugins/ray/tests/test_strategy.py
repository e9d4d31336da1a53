from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import sys
import types

import dspy
import pytest
from combee_dspy import Combee, Validation, registry
from combee_dspy.costs import Costs, Tariff, totals
from combee_dspy.exceptions import ArgumentError, ArgumentValueError
from combee_dspy.hashing import row_hash
from combee_dspy.rollouts import InfrastructureFaultError, RolloutJob, Threads
from material import (
    Killer,
    Leaking,
    Locked,
    Once,
    Outage,
    Threshold,
    Where,
    always,
    benchmark,
    judged,
)

from combee_ray import Ray
from combee_ray._carry import CannotTravelError

BENCHMARK = benchmark()
TARIFF = Tariff()


def rows(count: int) -> list[dspy.Example]:
    return list(BENCHMARK.train.examples[:count])


def job(program, example, metric=BENCHMARK.metric, tariff=TARIFF) -> RolloutJob:
    return RolloutJob(program, example, row_hash(example), metric, tariff=tariff)


def in_session(executor, use, workers=4):
    async def run():
        session = executor.start(workers)
        try:
            return await use(session), session
        finally:
            await session.close()

    return asyncio.run(run())


def rollouts(executor, *jobs: RolloutJob):
    """Return the rollouts of all jobs, in flight at once, and the session."""
    return in_session(executor, lambda session: asyncio.gather(*(session.rollout(one) for one in jobs)))


def comparable(usage):
    return [
        (
            u.role,
            u.model,
            u.calls,
            u.errors,
            u.cached,
            u.prompt_tokens,
            u.completion_tokens,
            u.dollars,
        )
        for u in usage
    ]


def test_it_comes_from_this_distribution_and_is_found_by_name():
    found = [entry for entry in registry.installed() if (entry.kind, entry.name) == ("executor", "ray")]
    assert [(entry.distribution, entry.problem) for entry in found] == [("combee-dspy-ray", None)]
    assert registry.build("executor", "ray") == Ray()


def test_rollouts_run_on_two_other_processes():
    with dspy.context(lm=dspy.LM("openai/somewhere")):
        done, _ = rollouts(Ray(actors=2), *(job(Where(0.3), example, always) for example in rows(8)))
    places = {rollout.prediction["answer"] for rollout in done}
    assert len(places) == 2
    assert str(os.getpid()) not in places
    assert {rollout.prediction["lm"] for rollout in done} == {"openai/somewhere"}


def test_rollouts_and_books_are_those_of_threads(service):
    program = BENCHMARK.program()
    jobs = [job(program, example, judged) for example in rows(12)]
    with dspy.context(lm=service.lm(temperature=0.0)):
        here, _ = rollouts(Threads(), *jobs)
        there, _ = rollouts(Ray(actors=2), *jobs)
    assert {usage.role for one in there for usage in one.usage} == {"task", "evaluator"}
    for one, other in zip(here, there, strict=True):
        for name in ("example_id", "score", "feedback", "prediction", "calls", "prompt_hash"):
            assert getattr(one, name) == getattr(other, name), name
        assert comparable(one.usage) == comparable(other.usage)


def compiled(executor, service, program=None):
    lm = service.lm(temperature=0.0)
    with dspy.context(lm=lm):
        return Combee(
            BENCHMARK.metric,
            reflection_lm=lm,
            reflection_minibatch_size=8,
            max_metric_calls=80,
            num_threads=4,
            executor=executor,
            validation=Validation(probe=False),
            track_stats=True,
            seed=3,
            tracker=(),
        ).compile(
            program or BENCHMARK.program(),
            trainset=list(BENCHMARK.train.examples),
            valset=list(BENCHMARK.validation.examples),
            heldout=list(BENCHMARK.heldout.examples),
        )


def bought(program):
    """Return the run's calls and tokens by role, as its report holds them."""
    return {
        role: (sums.calls, sums.errors, sums.prompt_tokens, sums.completion_tokens, sums.dollars)
        for role, sums in program.combee_report.costs.by_role.items()
    }


def test_a_run_finds_the_candidates_that_threads_find(service):
    threads, there = compiled("threads", service), compiled(Ray(actors=2), service)
    assert len(threads.detailed_results.candidates) > 1
    texts = [
        [{path: p.signature.instructions for path, p in c.named_predictors()} for c in run.detailed_results.candidates]
        for run in (threads, there)
    ]
    assert texts[0] == texts[1]
    assert threads.detailed_results.val_aggregate_scores == there.detailed_results.val_aggregate_scores
    assert threads.combee_report.heldout == there.combee_report.heldout
    assert bought(threads) == bought(there)


def test_rollouts_of_a_killed_worker_run_again_and_are_counted_once(service, tmp_path, caplog):
    examples = rows(16)
    program = Once(BENCHMARK.program(), str(tmp_path), (examples[3].question,))
    with (
        dspy.context(lm=service.lm(temperature=0.0)),
        caplog.at_level(logging.WARNING, "combee_dspy"),
    ):
        here, _ = rollouts(Threads(), *(job(program.inner, example) for example in examples))
        there, session = rollouts(Ray(actors=2), *(job(program, example) for example in examples))
    assert (tmp_path / "0").exists()
    assert session.repeated >= 1
    assert [rollout.score for rollout in there] == [rollout.score for rollout in here]
    assert [comparable(rollout.usage) for rollout in there] == [comparable(rollout.usage) for rollout in here]
    assert totals(usage for one in there for usage in one.usage).total.calls == 16
    assert "worker died" in caplog.text


def test_a_worker_killed_from_outside_is_replaced():
    async def use(session):
        assert (await session.rollout(job(Where(), rows(1)[0], always))).score == 1.0
        victim = session.actors.pids()[0]
        others = [asyncio.ensure_future(session.rollout(job(Where(0.2), example, always))) for example in rows(12)]
        await asyncio.sleep(0.1)
        os.kill(victim, signal.SIGKILL)
        done = await asyncio.gather(*others)
        return len(done), victim in session.actors.pids()

    assert in_session(Ray(actors=2), use, 2)[0] == (12, False)


def test_a_run_with_a_killed_worker_ends_as_without(service, tmp_path):
    plain = compiled(Ray(actors=2), service)
    program = Once(BENCHMARK.program(), str(tmp_path), (BENCHMARK.validation.examples[2].question,))
    killed = compiled(Ray(actors=2), service, program)
    assert (tmp_path / "0").exists()
    assert killed.combee_report.rollouts == plain.combee_report.rollouts
    assert killed.combee_report.seed_score == plain.combee_report.seed_score
    assert bought(killed)["task"] == bought(plain)["task"]


@pytest.mark.parametrize(
    ("program", "said"),
    [(Killer(), "2 Ray workers died"), (Outage(), "environment is gone")],
    ids=["killer", "outage"],
)
def test_what_says_nothing_of_the_program_ends_as_infrastructure(program, said):
    with pytest.raises(InfrastructureFaultError, match=said) as caught:
        rollouts(Ray(actors=1, attempts=2), job(program, rows(1)[0], always))
    assert not caught.value.retryable


def test_a_program_that_cannot_travel_is_refused_before_anything_is_spent(service):
    with pytest.raises(CannotTravelError, match="lock") as caught:
        compiled(Ray(actors=1), service, Locked())
    assert caught.value.argument == "student"
    assert service.stats().calls == 0


def test_code_that_the_workers_cannot_import_is_named():
    module = types.ModuleType("only_here")
    exec(
        "def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):\n    return 1.0\n",
        module.__dict__,
    )
    sys.modules["only_here"] = module
    try:
        with pytest.raises(CannotTravelError, match="only_here"):
            rollouts(Ray(actors=1), job(Where(), rows(1)[0], module.metric))
    finally:
        del sys.modules["only_here"]


def test_a_result_that_cannot_come_back_is_named():
    with pytest.raises(CannotTravelError, match="brought back.*lock"):
        rollouts(Ray(actors=1), job(Leaking(), rows(1)[0], always))


def test_gpu_seconds_are_refused():
    with pytest.raises(ArgumentValueError, match="other processes"):
        rollouts(Ray(actors=1), job(Where(), rows(1)[0], always, Tariff(Costs(gpus={"task": 1.0}))))


def test_a_metric_whose_state_changes_is_taken_anew():
    metric, example = Threshold(), rows(1)[0]

    async def use(session):
        first = await session.rollout(job(Where(), example, metric))
        metric.score = 1.0
        return first.score, (await session.rollout(job(Where(), example, metric))).score

    assert in_session(Ray(actors=1), use, 1)[0] == (0.0, 1.0)


def test_the_strategy_is_small_and_plain():
    assert len(pickle.dumps(Ray(actors=2, init={"num_cpus": 2}))) < 1000


@pytest.mark.parametrize(
    ("params", "argument"),
    [
        ({"actors": 0}, "actors"),
        ({"actors": 1.5}, "actors"),
        ({"attempts": 0}, "attempts"),
        ({"attempts": None}, "attempts"),
        ({"cpus": -1}, "cpus"),
        ({"cpus": "all"}, "cpus"),
        ({"start_timeout": 0}, "start_timeout"),
        ({"address": 6379}, "address"),
        ({"init": 3}, "init"),
        ({"runtime_env": "x"}, "runtime_env"),
    ],
)
def test_wrong_parameters_are_refused_by_name(params, argument):
    with pytest.raises(ArgumentError) as caught:
        Ray(**params)
    assert caught.value.argument == f"Ray.{argument}"
