from __future__ import annotations

import logging
import os
import pickle
import signal
import threading
from contextlib import closing

import dspy
import pytest
from combee_dspy import Combee, registry
from combee_dspy.costs import Ledger, LedgerRecorder, RolloutMeter
from combee_dspy.exceptions import ArgumentError, ArgumentValueError
from combee_dspy.hashing import row_hash
from combee_dspy.rollouts import InfrastructureFaultError, Threads, run_rollout
from material import Killer, Leaking, Locked, Once, Outage, Threshold, Where, always, benchmark, judged

from combee_ray import Ray
from combee_ray._carry import CannotTravelError

BENCHMARK = benchmark()


def rows(count: int) -> list[dspy.Example]:
    return list(BENCHMARK.train.examples[:count])


def rollouts(executor, program, examples, metric=BENCHMARK.metric, workers=4):
    """Return the rollouts, the ledger's totals and the session."""
    ledger = Ledger()
    with LedgerRecorder(ledger).installed(), closing(executor.start(workers)) as session:
        run = getattr(session, "run_rollout", run_rollout)

        def one(example):
            meter = RolloutMeter()
            return meter.stamp(run(program, example, row_hash(example), metric, 0.0, meter))

        done = [future.result() for future in [session.submit(one, example) for example in examples]]
        return done, ledger.snapshot(), session


def comparable(usage):
    return [
        (u.role, u.model, u.calls, u.errors, u.cached, u.prompt_tokens, u.completion_tokens, u.dollars) for u in usage
    ]


def sums(totals):
    return {
        key: (c.calls, c.errors, c.cached, c.prompt_tokens, c.completion_tokens, c.known_dollars, c.unpriced)
        for key, c in totals.by_model.items()
    }


def test_it_is_found_by_name():
    assert registry.build("executor", "ray") == Ray()


def test_it_comes_from_this_distribution_and_loads():
    found = [entry for entry in registry.installed() if (entry.kind, entry.name) == ("executor", "ray")]
    assert [(entry.distribution, entry.problem) for entry in found] == [("combee-dspy-ray", None)]


def test_rollouts_run_on_two_other_processes():
    with dspy.context(lm=dspy.LM("openai/somewhere")):
        done, _, _ = rollouts(Ray(actors=2), Where(0.3), rows(8), always)
    places = {rollout.prediction.answer for rollout in done}
    assert len(places) == 2
    assert str(os.getpid()) not in places
    assert {rollout.prediction.lm for rollout in done} == {"openai/somewhere"}


def test_rollouts_and_books_are_those_of_threads(service):
    program = BENCHMARK.program()
    with dspy.context(lm=service.lm(temperature=0.0)):
        here, spent_here, _ = rollouts(Threads(), program, rows(12), judged)
        there, spent_there, _ = rollouts(Ray(actors=2), program, rows(12), judged)
    assert sums(spent_there) == sums(spent_here)
    assert {role for role, _ in sums(spent_there)} == {"task", "evaluator"}
    for one, other in zip(here, there, strict=True):
        assert (one.score, one.feedback, one.callers, one.prompt_hash) == (
            other.score,
            other.feedback,
            other.callers,
            other.prompt_hash,
        )
        assert one.prediction.toDict() == other.prediction.toDict()
        assert comparable(one.usage) == comparable(other.usage)
        assert other.example is one.example
        # The trace points at this process's own predictor, by which reflection finds its part.
        assert [caller for caller, _, _ in other.trace] == [caller for caller, _, _ in one.trace]
        assert other.trace[0][0] is program.predictors()[0]


def compiled(executor, service, seed=3):
    lm = service.lm(temperature=0.0)
    with dspy.context(lm=lm):
        return Combee(
            BENCHMARK.metric,
            reflection_lm=lm,
            reflection_minibatch_size=8,
            max_metric_calls=80,
            num_threads=4,
            executor=executor,
            probe=False,
            track_stats=True,
            seed=seed,
        ).compile(
            BENCHMARK.program(),
            trainset=list(BENCHMARK.train.examples),
            valset=list(BENCHMARK.validation.examples),
            heldout=list(BENCHMARK.heldout.examples),
        )


def bought(program):
    """Return the run's calls and tokens by role, as its report holds them."""
    return {
        role: {name: figures[name] for name in ("calls", "errors", "prompt_tokens", "completion_tokens", "dollars")}
        for role, figures in program.combee_report.costs["by_role"].items()
    }


def test_a_run_finds_the_candidates_that_threads_find(service):
    threads = compiled("threads", service)
    there = compiled(Ray(actors=2), service)
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
    marked = (examples[3].question,)
    program = Once(BENCHMARK.program(), str(tmp_path), marked)
    with dspy.context(lm=service.lm(temperature=0.0)), caplog.at_level(logging.WARNING, "combee_dspy"):
        here, spent_here, _ = rollouts(Threads(), program.inner, examples)
        there, spent_there, session = rollouts(Ray(actors=2), program, examples)
    assert (tmp_path / "0").exists()
    assert session.repeated >= 1
    assert [rollout.score for rollout in there] == [rollout.score for rollout in here]
    assert sums(spent_there) == sums(spent_here)
    assert [comparable(rollout.usage) for rollout in there] == [comparable(rollout.usage) for rollout in here]
    assert "worker died" in caplog.text


def test_a_worker_killed_from_outside_is_replaced():
    executor = Ray(actors=2)
    killed = threading.Event()
    with closing(executor.start(2)) as session:

        def one(example):
            return session.run_rollout(Where(0.2), example, row_hash(example), always, 0.0)

        assert session.submit(one, rows(1)[0]).result().score == 1.0
        victim = session.actors.pids()[0]
        futures = [session.submit(one, example) for example in rows(12)]
        os.kill(victim, signal.SIGKILL)
        killed.set()
        places = [future.result().prediction.answer for future in futures]
        assert len(places) == 12
        assert victim not in session.actors.pids()


def test_a_run_with_a_killed_worker_ends_as_without(service, tmp_path):
    plain = compiled(Ray(actors=2), service)
    base = BENCHMARK.program()
    lm = service.lm(temperature=0.0)
    program = Once(base, str(tmp_path), (BENCHMARK.validation.examples[2].question,))
    with dspy.context(lm=lm):
        killed = Combee(
            BENCHMARK.metric,
            reflection_lm=lm,
            reflection_minibatch_size=8,
            max_metric_calls=80,
            num_threads=4,
            executor=Ray(actors=2),
            probe=False,
            track_stats=True,
            seed=3,
        ).compile(
            program,
            trainset=list(BENCHMARK.train.examples),
            valset=list(BENCHMARK.validation.examples),
            heldout=list(BENCHMARK.heldout.examples),
        )
    assert (tmp_path / "0").exists()
    assert killed.combee_report.rollouts == plain.combee_report.rollouts
    assert killed.combee_report.seed_score == plain.combee_report.seed_score
    assert bought(killed)["task"] == bought(plain)["task"]


def test_a_rollout_that_kills_every_worker_ends_as_infrastructure():
    with closing(Ray(actors=1, attempts=2).start(1)) as session:
        example = rows(1)[0]
        future = session.submit(run_rollout, Killer(), example, row_hash(example), always, 0.0)
        with pytest.raises(InfrastructureFaultError, match="2 Ray workers died") as caught:
            future.result()
    assert not caught.value.retryable


def test_a_fault_of_an_environment_travels():
    with closing(Ray(actors=1).start(1)) as session:
        example = rows(1)[0]
        future = session.submit(run_rollout, Outage(), example, row_hash(example), always, 0.0)
        error = future.exception()
    # A program's own failure is scored, an environment's is not: both arrive as they were.
    assert isinstance(error, InfrastructureFaultError) and "environment is gone" in str(error)


def test_a_program_that_cannot_travel_is_refused_before_anything_is_spent(service):
    lm = service.lm()
    with dspy.context(lm=lm), pytest.raises(CannotTravelError, match="lock") as caught:
        Combee(always, reflection_lm=lm, max_metric_calls=20, executor=Ray(actors=1)).compile(
            Locked(), trainset=rows(4), valset=rows(2)
        )
    assert caught.value.argument == "student"
    assert service.stats().calls == 0


def test_code_that_the_workers_cannot_import_is_named():
    import sys
    import types

    module = types.ModuleType("only_here")
    exec("def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):\n    return 1.0\n", module.__dict__)
    sys.modules["only_here"] = module
    try:
        with closing(Ray(actors=1).start(1)) as session:
            example = rows(1)[0]
            future = session.submit(run_rollout, Where(), example, row_hash(example), module.metric, 0.0)
            with pytest.raises(CannotTravelError, match="only_here"):
                future.result()
    finally:
        del sys.modules["only_here"]


def test_a_result_that_cannot_come_back_is_named():
    with closing(Ray(actors=1).start(1)) as session:
        with pytest.raises(CannotTravelError, match="brought back.*lock"):
            session.run_rollout(Leaking(), rows(1)[0], "id", always, 0.0)


def test_gpu_seconds_are_refused():
    ledger = Ledger(gpus={"task": 1.0})
    with LedgerRecorder(ledger).installed(), pytest.raises(ArgumentValueError, match="GPU|other processes"):
        Ray().check_program(Where(), always)


def test_a_metric_whose_state_changes_is_taken_anew():
    metric, example = Threshold(), rows(1)[0]
    with closing(Ray(actors=1).start(1)) as session:
        first = session.run_rollout(Where(), example, "id", metric, 0.0)
        metric.score = 1.0
        second = session.run_rollout(Where(), example, "id", metric, 0.0)
    assert (first.score, second.score) == (0.0, 1.0)


def test_keys_that_workers_learn_reach_who_keeps_them_out_of_files(service):
    heard = []
    lm = service.lm(temperature=0.0, api_key="sk-test-abcdefgh12345678")
    example = rows(1)[0]
    with dspy.context(lm=lm), LedgerRecorder(Ledger(), heard.append).installed():
        with closing(Ray(actors=1).start(1)) as session:
            session.run_rollout(BENCHMARK.program(), example, "id", BENCHMARK.metric, 0.0, RolloutMeter())
    assert [one.kwargs["api_key"] for one in heard] == ["sk-test-abcdefgh12345678"]


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
        Ray(**params).validate()
    assert caught.value.argument == argument
