"""The evaluation cache in whole runs: what has been paid for is not bought again."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Combee, EvaluationCache
from combee_dspy.engine.evaluator import Evaluator
from combee_dspy.events import CacheInvalidated, Event, RolloutFinished
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.rollouts import Threads, repeats_itself
from combee_dspy.testing._scripted_lm import ScriptedLM, as_chat
from combee_dspy.tracking import Hook
from tests.engine.conftest import Recorder


def _compile(world: Any, *, metric: Any = None, student: Any = None, **kwargs: Any) -> dspy.Module:
    given = {
        "max_metric_calls": 90,
        "reflection_lm": world.proposer_lm,
        "reflection_minibatch_size": 4,
        "num_threads": 4,
        "track_stats": True,
        "probe": False,
        **kwargs,
    }
    return Combee(metric or world.metric, **given).compile(
        student or world.student(), trainset=world.examples(24), valset=world.examples(8, start=48)
    )


def _asked(world: Any) -> int:
    return len(world.task_lm.requests) + len(world.proposer_lm.requests)


def _same(first: dspy.Module, second: dspy.Module) -> None:
    one, other = first.detailed_results, second.detailed_results
    assert [c.dump_state() for c in one.candidates] == [c.dump_state() for c in other.candidates]
    assert one.val_aggregate_scores == other.val_aggregate_scores
    assert one.parents == other.parents
    assert first.dump_state() == second.dump_state()
    assert first.combee_report.rollouts == second.combee_report.rollouts
    assert first.combee_report.iterations == second.combee_report.iterations
    assert first.combee_report.speculative == second.combee_report.speculative


def test_the_second_of_two_identical_runs_buys_nothing_and_gives_the_same(world: Any, tmp_path: Path) -> None:
    file = tmp_path / "deep" / "rollouts.sqlite"
    plain = _compile(world)
    first = _compile(world, cache=file)
    asked = _asked(world)
    assert first.combee_report.best_score > first.combee_report.seed_score
    hook = Recorder()
    second = _compile(world, cache=str(file), hooks=[hook])
    assert _asked(world) == asked
    assert all(event.cached for event in hook.of(RolloutFinished))
    assert second.combee_report.costs["total"]["calls"] == 0
    _same(first, second)
    _same(plain, second)


def test_react_and_chain_of_thought_come_back_too(world: Any, tmp_path: Path) -> None:
    def lookup(animal: str) -> str:
        """Look an animal up."""
        return f"{animal} is an animal"

    guesses = []
    for student in (
        dspy.ReAct("question -> answer", tools=[lookup], max_iters=2),
        dspy.ChainOfThought("question -> answer"),
    ):
        given = {"student": student, "max_metric_calls": 40, "cache": tmp_path / type(student).__name__}
        first = _compile(world, **given)
        asked = _asked(world)
        second = _compile(world, **given)
        assert _asked(world) == asked
        _same(first, second)
        guesses.append(first.combee_report.speculative)
    # Those that were given up before they began are not in the cache.
    assert any(guesses)


def test_one_object_serves_several_runs(world: Any) -> None:
    """In memory it shares rollouts; proposals are shared through a file alone."""
    cache = EvaluationCache()
    first = _compile(world, cache=cache)
    asked = len(world.task_lm.requests)
    second = _compile(world, cache=cache)
    assert len(world.task_lm.requests) == asked
    assert len(cache) == cache.stats.bought
    _same(first, second)


def test_without_a_cache_everything_is_bought_again(world: Any) -> None:
    _compile(world, max_metric_calls=30)
    asked = len(world.task_lm.requests)
    _compile(world, max_metric_calls=30)
    assert len(world.task_lm.requests) == 2 * asked
    hook = Recorder()
    _compile(world, cache=False, hooks=[hook])
    assert not any(event.cached for event in hook.of(RolloutFinished))


def test_arguments_that_say_nothing_usable(world: Any, tmp_path: Path) -> None:
    with pytest.raises(ArgumentValueError, match="contradicts memoize"):
        Combee(world.metric, max_metric_calls=9, reflection_lm=world.proposer_lm, cache="x", memoize=False)
    with pytest.raises(ArgumentTypeError, match="is no cache"):
        Combee(world.metric, max_metric_calls=9, reflection_lm=world.proposer_lm, cache=3)
    other = tmp_path / "notes.txt"
    other.write_text("my notes, much longer than any header of a database, and not to be lost\n" * 50)
    for bad in (other, tmp_path):
        asked = _asked(world)
        with pytest.raises(ArgumentValueError, match="cache"):
            _compile(world, cache=bad)
        assert _asked(world) == asked
    assert other.read_text().startswith("my notes")


class _Bench:
    """One evaluator over a cache, the world's task LM and a few examples."""

    def __init__(self, world: Any, cache: EvaluationCache | None, **changes: Any) -> None:
        self.world = world
        self.events: list[Event] = []
        self.session = Threads().start(4)
        self.student: dspy.Module = changes.get("student") or world.student()
        self.evaluator = Evaluator(
            changes.get("build") or self.build,
            changes.get("metric") or world.metric,
            changes.get("failure_score", 0.0),
            self.session,
            self.events.append,
            memoize=True,
            keep_traces=changes.get("keep_traces", frozenset()),
            cache=cache,
        )

    def build(self, candidate: dict[str, str]) -> dspy.Module:
        program = self.student.deepcopy()
        for name, predictor in program.named_predictors():
            predictor.signature = predictor.signature.with_instructions(candidate.get(name, ""))
        return program

    def buy(self, count: int = 4, text: str = "Answer.", **kwargs: Any) -> Any:
        given = {"purpose": "parent", "iteration": 1, **kwargs}
        (done,) = self.evaluator.evaluate([({"self": text}, self.world.examples(count))], **given)
        return done


def _cost(world: Any, cache: Any, **changes: Any) -> int:
    """How many LM calls the same four rollouts take, with something changed."""
    before = len(world.task_lm.requests)
    _Bench(world, cache, **changes).buy(**changes.get("buy", {}))
    return len(world.task_lm.requests) - before


def _strict(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> float:
    return float(pred.answer.strip() == gold.answer)


class Judge:
    def __init__(self, points: float) -> None:
        self.points = points

    def __call__(self, gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        return self.points * (pred.answer == gold.answer)


def _written(suffix: str) -> dspy.Module:
    """A program whose source differs in one constant."""
    space: dict[str, Any] = {"dspy": dspy, "__name__": __name__}
    source = f"""
class Written(dspy.Module):
    def __init__(self):
        super().__init__()
        self.predict = dspy.Predict("question -> answer")

    def forward(self, question):
        return self.predict(question=question + {suffix!r})
"""
    exec(source, space)  # noqa: S102 - code that differs in one place
    return space["Written"]()


def _with(demos: list[Any] | None = None, field: str | None = None) -> dspy.Module:
    student = dspy.Predict("question -> answer")
    if demos:
        student.demos = demos
    if field:
        student.signature = student.signature.with_updated_fields("answer", desc=field)
    return student


@pytest.fixture(params=["memory", "file"])
def cache(request: Any, tmp_path: Path) -> EvaluationCache:
    return EvaluationCache(None if request.param == "memory" else tmp_path / "rollouts.sqlite")


def test_the_same_again_costs_nothing_and_any_change_costs_all(world: Any, cache: EvaluationCache) -> None:
    demo = dspy.Example(question="q", answer="a")
    assert _cost(world, cache) == 4
    assert _cost(world, cache) == 0
    changes: dict[str, dict[str, Any]] = {
        "scorer": {"metric": _strict},
        "scorer's parameter": {"metric": Judge(1.0)},
        "scorer's parameter again": {"metric": Judge(2.0)},
        "failure score": {"failure_score": -1.0},
        "demonstration": {"student": _with([demo])},
        "another demonstration": {"student": _with([demo.copy(answer="b")])},
        "field description": {"student": _with(field="a word")},
        "text": {"buy": {"text": "Answer briefly."}},
        "program": {"student": _written("")},
        "program's code": {"student": _written(" ")},
        "replicate": {"buy": {"replicate": 1}},
        "further replicate": {"buy": {"replicate": 2}},
    }
    for what, change in changes.items():
        assert _cost(world, cache, **change) == 4, what
        assert _cost(world, cache, **change) == 0, what
    for what, settings in {
        "adapter": {"adapter": dspy.JSONAdapter()},
        "adapter's parameter": {"adapter": dspy.JSONAdapter(use_native_function_calling=False)},
        "decoding parameter": {"lm": world.task_lm.copy(temperature=0.7)},
        "token limit": {"lm": world.task_lm.copy(max_tokens=77)},
    }.items():
        with dspy.context(**settings):
            assert _cost(world, cache) == 4, what
            assert _cost(world, cache) == 0, what
    assert _cost(world, cache) == 0


def test_a_predictors_own_lm_counts(world: Any, cache: EvaluationCache) -> None:
    def student(**kwargs: Any) -> dspy.Module:
        made = dspy.Predict("question -> answer")
        made.lm = world.task_lm.copy(**kwargs)
        return made

    assert _cost(world, cache, student=student(temperature=0.1)) == 4
    assert _cost(world, cache, student=student(temperature=0.1)) == 0
    assert _cost(world, cache, student=student(temperature=0.2)) == 4


def test_replicates_pass_dspys_own_cache_and_leave_the_program_alone(world: Any) -> None:
    drawn: list[int] = []
    lock = threading.Lock()

    def answer(request: Any) -> str:
        with lock:
            drawn.append(len(drawn))
            return as_chat({"answer": f"draw {len(drawn)}"})

    lm = ScriptedLM(answer, model="scripted/sampling", cache=True, temperature=1.0)
    own = dspy.Predict("question -> answer")
    own.lm = lm.copy(max_tokens=50)
    for student in (world.student(), own):
        drawn.clear()
        bench = _Bench(world, None, student=student)
        with dspy.context(lm=lm):
            found = [bench.buy(1, replicate=draw).rollouts[0].prediction.answer for draw in (0, 1, 2, 0, 1)]
            assert found == ["draw 1", "draw 2", "draw 3", "draw 1", "draw 2"]
            assert dspy.settings.lm is lm
            assert not repeats_itself(student)
            greedy = student.deepcopy()
            greedy.set_lm(lm.copy(temperature=0))
            assert repeats_itself(greedy)
        assert "rollout_id" not in lm.kwargs
        assert "rollout_id" not in (student.lm or lm).kwargs
        dspy.cache.reset_memory_cache()


def test_a_rollout_from_the_file_reflects_as_it_did(world: Any, tmp_path: Path) -> None:
    rows = frozenset(_Bench(world, None).evaluator.row_hash(row) for row in world.examples(4))
    path = tmp_path / "rollouts.sqlite"
    first = _Bench(world, EvaluationCache(path), keep_traces=rows).buy()
    again = _Bench(world, EvaluationCache(path), keep_traces=rows)
    second = again.buy()
    assert (first.bought, first.reused, second.bought, second.reused) == (4, 0, 4, 4)
    assert (again.buy().bought, again.buy().reused) == (0, 0)
    program = again.evaluator._buyer.program({"self": "Answer."}, "x")
    for one, other in zip(first.rollouts, second.rollouts, strict=True):
        assert one.prediction == other.prediction
        assert one.metric_output == other.metric_output
        assert (one.score, one.feedback, one.callers) == (other.score, other.feedback, other.callers)
        assert [step[1:] for step in one.trace] == [step[1:] for step in other.trace]
        assert all(step[0].signature.equals(program.signature) for step in other.trace)
        assert other.trace
        assert other.usage == ()


def test_rows_without_traces_in_memory_have_them_in_the_file(world: Any, tmp_path: Path) -> None:
    """A validation row of one run may be a training row of the next."""
    path = tmp_path / "rollouts.sqlite"
    bench = _Bench(world, EvaluationCache(path))
    assert not any(rollout.trace for rollout in bench.buy().rollouts)
    rows = frozenset(bench.evaluator.row_hash(row) for row in world.examples(4))
    asked = len(world.task_lm.requests)
    assert all(rollout.trace for rollout in _Bench(world, EvaluationCache(path), keep_traces=rows).buy().rollouts)
    assert len(world.task_lm.requests) == asked


def test_invalidating_needs_a_reason_and_is_told(world: Any, tmp_path: Path) -> None:
    path = tmp_path / "rollouts.sqlite"
    cache = EvaluationCache(path)
    assert _cost(world, cache) == 4
    assert _cost(world, cache, student=_with(field="a word")) == 4
    for empty in ("", "  ", None):
        with pytest.raises(ArgumentValueError, match="reason"):
            cache.invalidate(empty)  # type: ignore[arg-type]
    told: list[Event] = []
    with cache.listen(told.append):
        assert cache.invalidate("the label was wrong", example=world.examples(1)[0]) == 2
    assert cache.invalidate("nobody listens", example=world.examples(1)[0]) == 0
    assert told == [CacheInvalidated(reason="the label was wrong", entries=2)]
    assert _cost(world, cache) == 1
    bench = _Bench(world, cache)
    assert cache.invalidate("this one alone", program=bench.build({"self": "Answer."})) == 4
    assert _cost(world, cache, student=_with(field="a word")) == 1
    assert _cost(world, cache) == 4
    with EvaluationCache(path) as other:
        assert [(reason, entries) for _, reason, entries in other.invalidations] == [
            ("the label was wrong", 2),
            ("nobody listens", 0),
            ("this one alone", 4),
        ]
        assert len(other) == 8
        assert other.invalidate("all of it") == 8
        assert _cost(world, other) == 4


def test_invalidations_of_a_run_are_events(world: Any, tmp_path: Path) -> None:
    cache = EvaluationCache(tmp_path / "rollouts.sqlite")
    hook = Recorder()

    class Impatient(Hook):
        def handle(self, event: Event) -> None:
            if isinstance(event, RolloutFinished) and cache.stats.bought >= 8 and not cache.invalidations:
                cache.invalidate("seen enough")

    _compile(world, cache=cache, hooks=[hook, Impatient()], num_threads=1)
    assert [event.reason for event in hook.of(CacheInvalidated)] == ["seen enough"]


def test_a_key_that_is_being_bought_is_joined(world: Any) -> None:
    """Two runs at once, one cache: each rollout is bought by whoever comes first."""
    cache, gate = EvaluationCache(), threading.Event()

    def slow(request: Any) -> str:
        gate.wait(30)
        return as_chat({"answer": "x"})

    lm = ScriptedLM(slow)
    done: list[Any] = []

    def run() -> None:
        with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
            done.append(_Bench(world, cache).buy())

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    while cache.stats.reused + cache.stats.bought < 8:
        assert all(thread.is_alive() for thread in threads)
    gate.set()
    for thread in threads:
        thread.join()
    assert len(lm.requests) == 4
    assert sorted(one.reused for one in done) in ([0, 4], [1, 3], [2, 2])


def test_what_another_run_gave_up_is_bought_here(world: Any) -> None:
    cache = EvaluationCache()
    bench = _Bench(world, cache)
    bench.buy()
    for fail in (lambda future: future.cancel(), lambda future: future.set_exception(OSError("gone"))):
        for entry in cache._entries.values():
            entry.future = Future()
            fail(entry.future)
        asked = len(world.task_lm.requests)
        assert _Bench(world, cache).buy().reused == 0
        assert len(world.task_lm.requests) == asked + 4


def test_failures_of_a_service_are_never_kept(world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dspy.utils.exceptions import LMUnexpectedError

    from combee_dspy.rollouts import _retrying as module

    real = module.tenacity.Retrying
    monkeypatch.setattr(module.tenacity, "Retrying", lambda **k: real(**{**k, "sleep": lambda _: None}))
    broken = {"ant"}

    class Odd(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.predict = dspy.Predict("question -> answer")

        def forward(self, question: str) -> dspy.Prediction:
            if any(animal in question for animal in broken):
                raise LMUnexpectedError("odd answer")
            return self.predict(question=question)

    Odd.cache_identity = "the same, whoever is broken"  # type: ignore[attr-defined]
    path = tmp_path / "rollouts.sqlite"
    done = _Bench(world, EvaluationCache(path), student=Odd()).buy()
    assert [rollout.failed_in for rollout in done.rollouts] == ["service", None, None, None]
    assert len(EvaluationCache(path)) == 3
    broken.clear()
    again = _Bench(world, EvaluationCache(path), student=Odd()).buy()
    assert [rollout.failed_in for rollout in again.rollouts] == [None] * 4
    assert again.reused == 3


def test_a_file_that_breaks_costs_rollouts_and_not_the_run(
    world: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "rollouts.sqlite"
    assert _cost(world, EvaluationCache(path)) == 4
    with sqlite3.connect(path) as found:
        payloads = ["{", "[]", '{"score": "1"}', '{"prediction": {"$": "model", "class": "os:system"}}']
        keys = [key for (key,) in found.execute("SELECT key FROM rollouts ORDER BY key")]
        for key, payload in zip(keys, payloads, strict=True):
            found.execute("UPDATE rollouts SET payload = ? WHERE key = ?", (payload, key))
    cache = EvaluationCache(path)
    assert _cost(world, cache) == 4
    assert "cannot be read" in caplog.text
    cache._file._connection.execute("DROP TABLE rollouts")  # type: ignore[union-attr]
    assert _cost(world, cache, student=_with(field="a word")) == 4
    assert cache.stats.refused == 4
    assert "no such table" in caplog.text


def test_rollouts_that_hold_a_key_are_not_written(world: Any, tmp_path: Path) -> None:
    path, secret = tmp_path / "rollouts.sqlite", "sk-test-abcdefgh12345678"
    lm = ScriptedLM(lambda request: as_chat({"answer": secret}))
    with dspy.context(lm=lm):
        cache = EvaluationCache(path)
        _Bench(world, cache).buy()
    assert cache.stats.refused == 4
    cache.close()
    assert secret.encode() not in b"".join(file.read_bytes() for file in tmp_path.iterdir())


def test_a_sampling_service_is_asked_once(tmp_path: Path) -> None:
    """At temperature 1 a service answers anew each time; the second run has the first one's answers."""
    from combee_dspy import load_benchmark
    from combee_dspy.lms import SimulatedConfig, SimulatedService, SimulatedTask

    benchmark = load_benchmark("formula-mini")
    found = []
    with SimulatedService(SimulatedConfig(time_scale=0.0), SimulatedTask.from_benchmark(benchmark, 0)) as service:
        for _ in range(2):
            # Another key of the service, the same service.
            lm = service.lm(temperature=1.0, api_key=f"key-{len(found)}")
            served = service.stats().calls
            made = Combee(
                benchmark.metric,
                max_metric_calls=80,
                reflection_lm=lm,
                reflection_minibatch_size=8,
                aggregator="parallel-scan",
                num_threads=4,
                probe=False,
                track_stats=True,
                # How far a wrong guess had come when it was stopped is a matter of time.
                speculation=0.0,
                cache=tmp_path / "rollouts.sqlite",
            )
            splits = [list(split.examples) for split in (benchmark.train, benchmark.validation, benchmark.heldout)]
            with dspy.context(lm=lm):
                program = made.compile(
                    benchmark.program(), trainset=splits[0][:24], valset=splits[1][:10], heldout=splits[2][:10]
                )
            found.append((program, service.stats().calls - served))
    (first, bought), (second, again) = found
    assert bought > 80
    assert again == 0
    assert first.combee_report.heldout == second.combee_report.heldout
    _same(first, second)
