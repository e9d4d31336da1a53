"""gepa's own parts in our loop: called where gepa calls them, with a real state of gepa's."""

from __future__ import annotations

import inspect
import itertools
import re
import sys
import types
from pathlib import Path
from typing import Any

import dspy
import gepa
import pytest
from gepa.core.state import GEPAState
from gepa.utils import MaxMetricCallsStopper

from combee_dspy import Budget, Combee, Search, Validation
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from tests.worlds import World, examples, gepa_metric, in_kind, metric


class Recorder:
    """A callback of gepa's that keeps every event."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda event: self.events.append((name, dict(event)))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.events]

    def of(self, name: str) -> list[dict[str, Any]]:
        return [event for other, event in self.events if other == name]


LEVELS = {"none": 0.0, "low": 0.25, "half": 0.5, "full": 1.0}


def level_of(request: Any) -> str:
    levels = re.findall(r"level (\w+)", request.system)
    return in_kind(request, {"answer": levels[-1] if levels else "none"})


@gepa_metric
def level_metric(gold: Any, pred: Any, pred_name: str | None) -> Any:
    return dspy.Prediction(score=LEVELS[pred.answer], feedback="try another level")


SAME = {
    "average_score",
    "batch_size",
    "candidate_idx",
    "components",
    "is_best_program",
    "iteration",
    "metric_calls_remaining",
    "metric_calls_used",
    "new_candidate_idx",
    "new_front",
    "new_instructions",
    "new_score",
    "old_score",
    "parent_ids",
    "proposal_accepted",
    "scores",
    "total_valset_size",
    "trainset_size",
}
"""Fields of gepa's events that do not hang on which rows were drawn."""


def compile_levels(optimizer: Any, recorder: Recorder, **options: Any) -> Any:
    """Compile where every outcome hangs on the instruction alone, whichever rows are drawn."""
    world = World.made(level_of)
    # The first is accepted, then two are refused, then one is accepted, and then all is perfect.
    levels = iter(enumerate(["half", "low", "half", "full", *["low"] * 20]))

    def proposer(candidate: Any, reflective_dataset: Any, components_to_update: Any) -> Any:
        number, level = next(levels)
        return dict.fromkeys(components_to_update, f"take {number}: level {level}")

    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        return optimizer(
            level_metric,
            reflection_lm=world.proposer_lm,
            reflection_minibatch_size=3,
            max_metric_calls=70,
            seed=1,
            instruction_proposer=proposer,
            gepa_kwargs={"callbacks": [recorder]},
            track_stats=True,
            **options,
        ).compile(
            dspy.Predict("question -> answer"), trainset=examples(24), valset=examples(6, 100)
        )


def test_callbacks_are_called_in_gepas_order() -> None:
    theirs, ours = Recorder(), Recorder()
    parity = compile_levels(dspy.GEPA, theirs)
    program = compile_levels(Combee, ours, tracker=(), num_threads=2)
    # The last iterations hang on how the budget ends; before them all is perfect, and skipped.
    shared = len(theirs.names) - theirs.names[::-1].index("on_candidate_accepted") + 20
    assert ours.names[:shared] == theirs.names[:shared]
    assert ours.names[-2:] == theirs.names[-2:] == ["on_iteration_end", "on_optimization_end"]
    kinds = {"accepted", "rejected"}
    assert {f"on_candidate_{kind}" for kind in kinds} <= set(ours.names)
    assert {"on_evaluation_skipped", "on_budget_updated"} <= set(ours.names)
    pairs = zip(ours.events[:shared], theirs.events[:shared], strict=True)
    for (name, mine), (_, gepas) in pairs:
        if name != "on_optimization_start":  # its config is the optimizer's own
            assert mine.keys() == gepas.keys(), name
        fields = SAME & mine.keys()
        assert {key: mine[key] for key in fields} == {key: gepas[key] for key in fields}, name
    assert program.signature.instructions == parity.signature.instructions == "take 3: level full"
    mine, gepas = program.detailed_results, parity.detailed_results
    for field in ("val_aggregate_scores", "parents", "discovery_eval_counts"):
        assert getattr(mine, field) == getattr(gepas, field)


def test_callbacks_see_a_real_state_and_real_trajectories(world: World) -> None:
    recorder = Recorder()
    world.compile(
        gepa_kwargs={"callbacks": [recorder]}, reflection_minibatch_size=4, max_metric_calls=60
    )
    state = recorder.of("on_iteration_end")[0]["state"]
    assert isinstance(state, GEPAState)
    assert state.is_consistent()
    evaluation = recorder.of("on_evaluation_end")[0]
    assert len(evaluation["trajectories"]) == len(evaluation["scores"]) == 4
    assert evaluation["trajectories"][0]["prediction"].answer
    dataset = recorder.of("on_reflective_dataset_built")[0]["dataset"]
    assert {"Inputs", "Generated Outputs", "Feedback"} <= dataset["self"][0].keys()


def test_callbacks_get_the_error_that_ends_a_run_and_its_iteration(world: World) -> None:
    def broken(*_: Any) -> Any:
        raise KeyError("a bug of the selector")

    recorder = Recorder()
    with pytest.raises(KeyError, match="a bug of the selector"):
        world.compile(gepa_kwargs={"callbacks": [recorder]}, component_selector=broken)
    assert recorder.names[-2:] == ["on_error", "on_iteration_end"]
    assert isinstance(recorder.of("on_error")[0]["exception"], KeyError)


def test_a_callback_that_raises_ends_no_run(world: World) -> None:
    class Broken:
        def on_iteration_start(self, event: Any) -> None:
            raise RuntimeError("a bug of the callback")

    program = world.compile(gepa_kwargs={"callbacks": [Broken()]}, max_metric_calls=60)
    assert program.combee_report.best_score > 0.2


def test_stop_callbacks_stop_and_each_is_called(world: World) -> None:
    iterations: list[int] = []

    def first(state: Any) -> bool:
        iterations.append(state.i)
        return False

    report = world.compile(
        gepa_kwargs={"stop_callbacks": [first, lambda state: state.i >= 1]},
        budget=Budget(updates=9),
        reflection_minibatch_size=3,
        skip_perfect_score=False,
    ).combee_report
    assert report.reason == "stop callback function"
    assert (report.updates, iterations) == (2, [-1, 0, 1])
    report = world.compile(
        gepa_kwargs={"stop_callbacks": MaxMetricCallsStopper(40)}, budget=Budget(updates=50)
    ).combee_report
    assert report.reason == "stop callback MaxMetricCallsStopper"


@pytest.mark.parametrize("frontier", ["instance", "objective", "hybrid", "cartesian"])
def test_frontier_types(world: World, frontier: str) -> None:
    @gepa_metric
    def two_objectives(gold: Any, pred: Any, pred_name: str | None) -> Any:
        scored = metric(gold, pred)
        objectives = {"right": scored.score, "short": 1.0 / len(str(pred.answer))}
        return dspy.Prediction(**scored.toDict(), objective_scores=objectives)

    program = world.compile(
        metric=two_objectives, gepa_kwargs={"frontier_type": frontier}, track_stats=True
    )
    assert program.combee_report.best_score == 1.0
    assert program.detailed_results.best_idx > 0


@pytest.mark.parametrize("failing", [1, 2])
def test_a_draw_that_failed_counts_as_none_of_an_objective(failing: int) -> None:
    draws = itertools.count(1)

    @gepa_metric
    def measuring(gold: Any, pred: Any, pred_name: str | None) -> Any:
        if gold.question.startswith("Number 100:") and next(draws) == failing:
            raise RuntimeError("no score")
        return dspy.Prediction(**metric(gold, pred).toDict(), objective_scores={"short": 1.0})

    program = World.made(temperature=1.0).compile(
        metric=measuring,
        validation=4,
        validation_options=Validation(draws=2, probe=False),
        track_stats=True,
        num_threads=1,
    )
    assert program.detailed_results.val_aggregate_subscores[0] == {"short": 0.875}


def test_weights_and_biases_get_candidates(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[Any] = []
    wandb: Any = types.ModuleType("wandb")

    def init(**_: Any) -> Any:
        wandb.run = types.SimpleNamespace(id="run")
        return wandb.run

    wandb.run, wandb.init = None, init
    wandb.log = lambda data, step=None: logged.append((step, data))
    wandb.finish = lambda: logged.append("finished")
    wandb.Table = lambda **_: "table"
    wandb.login = wandb.define_metric = lambda *_, **__: None
    wandb.config = types.SimpleNamespace(update=lambda *_, **__: None)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    world.compile(
        use_wandb=True,
        wandb_init_kwargs={"project": "p"},
        max_metric_calls=60,
        reflection_minibatch_size=6,
    )
    assert logged.pop() == "finished"
    steps = [step for step, data in logged if "val_program_average" in data]
    # A text that the end tests has its parent's step. W&B refuses a step only if it goes back.
    assert steps == sorted(steps)
    assert len(set(steps)) > 1


def test_every_argument_of_gepa_optimize_is_taken_or_refused_with_a_remedy() -> None:
    for name in inspect.signature(gepa.optimize).parameters:
        try:
            Combee(metric, auto="light", reflection_lm=dspy.LM("x/y"), gepa_kwargs={name: None})
        except ArgumentTypeError:
            pytest.fail(f"{name} is an argument of gepa.optimize")
        except ArgumentValueError as error:
            assert any(verb in str(error) for verb in ("Give", "Leave", "Set", "Call"))
    with pytest.raises(ArgumentTypeError, match=r"is no argument of gepa\.optimize"):
        Combee(metric, auto="light", reflection_lm=dspy.LM("x/y"), gepa_kwargs={"nonsense": 1})


@pytest.mark.parametrize(("keep", "most"), [("pareto", 2), ("trunk", 5)])
def test_the_file_gepa_stop_ends_a_run(world: World, tmp_path: Path, keep: Any, most: int) -> None:
    (tmp_path / "gepa.stop").touch()
    search = Search(keep=keep)
    report = world.compile(
        log_dir=tmp_path, reflection_minibatch_size=4, train=48, search=search
    ).combee_report
    assert report.reason == "stop callback FileStopper"
    assert report.updates <= most, "one, and those that overlap it"


@pytest.mark.parametrize("strategy", ["pareto", "current_best", "epsilon_greedy", "top_k_pareto"])
def test_candidate_selectors_by_name(world: World, strategy: Any) -> None:
    report = world.compile(
        candidate_selection_strategy=strategy, max_metric_calls=100
    ).combee_report
    assert report.best_score > report.seed_score


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("sampling_strategy", "Search(children=…, staleness=…)"),
        ("reflection_strategy", "CombeeReflection(lm)"),
        ("max_reflection_cost", "Budget(dollars=…)"),
        ("run_dir", "Give log_dir to Combee"),
        ("seed", "Give seed to Combee"),
        ("cache_evaluation", "no rollout is bought twice"),
        ("acceptance_criterion", "compared row by row"),
        ("batch_sampler", "Give a controller"),
        ("val_evaluation_policy", "validated on all rows"),
    ],
)
def test_what_another_argument_does_is_refused_with_its_name(name: str, remedy: str) -> None:
    with pytest.raises(ArgumentValueError, match="cannot be used from Combee's own loop") as caught:
        Combee(metric, auto="light", reflection_lm=dspy.LM("x/y"), gepa_kwargs={name: 1})
    assert caught.value.argument == f"gepa_kwargs[{name!r}]"
    assert remedy in str(caught.value)
    assert "Combee.parity" in str(caught.value)
