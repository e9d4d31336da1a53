"""A program compiled by Combee, against scripted LMs."""

from __future__ import annotations

import base64
from typing import Any, Literal

import dspy
import pydantic
import pytest

from combee_dspy import Budget, Combee
from combee_dspy.events import (
    BatchPlanned,
    CandidateProposed,
    Event,
    HeldoutEvaluated,
    RolloutFinished,
    RunFinished,
    RunStarted,
    ScanFinished,
)
from combee_dspy.tracking import Hook


class Recorder(Hook):
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.closed = 0

    def handle(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        self.closed += 1

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def _combee(world: Any, **kwargs: Any) -> Combee:
    given = {"max_metric_calls": 150, "reflection_lm": world.proposer_lm, "num_threads": 4, **kwargs}
    return Combee(world.metric, **given)


def test_it_learns(world: Any) -> None:
    student = world.student()
    before = student.dump_state()
    hook = Recorder()
    program = _combee(world, hooks=[hook], operators=["insert"], track_stats=True).compile(
        student,
        trainset=world.examples(24),
        valset=world.examples(12, start=100),
        heldout=world.examples(12, start=200),
    )
    report = program.combee_report
    assert report.seed_score == pytest.approx(2 / 12)
    assert report.best_score == pytest.approx(1.0)
    assert report.heldout is not None
    assert (report.heldout.before, report.heldout.after) == (pytest.approx(2 / 12), pytest.approx(1.0))
    assert report.supports_claims
    assert program.detailed_results.best_idx > 0
    assert "Rule: the word for lynx is XNYL" in program.signature.instructions
    # The student is as it was.
    assert student.dump_state() == before
    assert hook.closed == 1
    assert isinstance(hook.events[0], RunStarted)
    assert isinstance(hook.events[-1], RunFinished)
    assert hook.of(HeldoutEvaluated)
    assert hook.of(ScanFinished)
    assert hook.of(CandidateProposed)


def test_few_shot_swap_alone_needs_no_proposer(world: Any) -> None:
    program = _combee(world, operators=["few-shot-swap"], reflection_lm=None).compile(
        world.student(), trainset=world.examples(24), valset=world.examples(12, start=100)
    )
    assert not world.proposer_lm.requests
    assert program.demos, "two of the animals are easy: there are successes to show"
    assert {demo.answer for demo in program.demos} <= {"TNA", "EEB"}


def test_ledger_equals_what_the_lms_were_asked(world: Any) -> None:
    program = _combee(world).compile(world.student(), trainset=world.examples(24), valset=world.examples(8, start=100))
    roles = program.combee_report.costs["by_role"]
    assert roles["task"]["calls"] == len(world.task_lm.requests)
    assert roles["proposer"]["calls"] == len(world.proposer_lm.requests)
    assert set(roles) <= {"task", "proposer"}


def test_no_rollout_is_bought_twice(world: Any) -> None:
    hook = Recorder()
    train = world.examples(12)
    _combee(world, hooks=[hook], operators=["insert"], seed=2).compile(world.student(), trainset=train)
    bought = [
        (event.candidate_id, event.rollout.example_id, event.replicate)
        for event in hook.of(RolloutFinished)
        if not event.cached
    ]
    assert len(bought) == len(set(bought)) == len(world.task_lm.requests)
    assert any(event.cached for event in hook.of(RolloutFinished))


def test_three_sizes_are_profiled_in_the_first_epoch(world: Any) -> None:
    hook = Recorder()
    program = _combee(
        world, hooks=[hook], operators=["insert"], max_metric_calls=600, skip_perfect_score=False
    ).compile(world.student(), trainset=world.examples(120), valset=world.examples(6, start=500))
    sizes = [event.decision.size for event in hook.of(BatchPlanned)]
    first_epoch, seen = [], 0
    for size in sizes:
        if seen < 120:
            first_epoch.append(size)
        seen += size
    assert len(set(first_epoch)) >= 3
    assert program.combee_report.decisions[0].reason
    assert any(decision.fit is not None for decision in program.combee_report.decisions)


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_results_do_not_depend_on_workers(world: Any, workers: int) -> None:
    """The same seed and batch sizes give the same program, whatever the number of workers."""

    def compiled(num_threads: int) -> Any:
        return _combee(world, num_threads=num_threads, reflection_minibatch_size=8, seed=11, track_stats=True).compile(
            world.student(), trainset=world.examples(24), valset=world.examples(8, start=100)
        )

    reference, other = compiled(2), compiled(workers)
    assert other.dump_state() == reference.dump_state()
    assert other.detailed_results.val_aggregate_scores == reference.detailed_results.val_aggregate_scores


class TwoStep(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = dspy.ChainOfThought("question -> answer")
        self.steps = [dspy.Predict("question, hint -> answer")]

    def forward(self, question: str) -> dspy.Prediction:
        hint = self.first(question=question).answer
        return self.steps[0](question=question, hint=hint)


@pytest.mark.parametrize("selector", ["round_robin", "all"])
def test_several_predictors(world: Any, selector: str) -> None:
    program = _combee(world, component_selector=selector, max_metric_calls=300).compile(
        TwoStep(), trainset=world.examples(24), valset=world.examples(12, start=100)
    )
    assert program.combee_report.best_score > program.combee_report.seed_score


def test_chain_of_thought(world: Any) -> None:
    program = _combee(world).compile(
        dspy.ChainOfThought("question -> answer"), trainset=world.examples(24), valset=world.examples(12, start=100)
    )
    assert program.combee_report.best_score > program.combee_report.seed_score


def test_a_custom_proposer_gets_gepas_minibatch_and_visible_components(world: Any) -> None:
    seen: list[tuple[set[str], int]] = []

    def proposer(candidate: Any, reflective_dataset: Any, components_to_update: Any) -> dict[str, str]:
        seen.append((set(candidate), len(reflective_dataset["self"])))
        return {name: candidate[name] + "\nRule: the word for cat is TAC" for name in components_to_update}

    program = _combee(world, instruction_proposer=proposer, reflection_lm=None, max_metric_calls=60).compile(
        world.student(), trainset=world.examples(24), valset=world.examples(12, start=100)
    )
    assert seen
    assert all(names == {"self"} and count <= 3 for names, count in seen)
    assert "TAC" in program.signature.instructions


def test_a_failing_program_scores_the_failure_score_and_teaches(world: Any) -> None:
    class Fragile(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = dspy.Predict("question -> answer")

        def forward(self, question: str) -> dspy.Prediction:
            answer = self.step(question=question)
            if "cat" in question:
                raise RuntimeError("Rule: the word for cat is TAC")
            return answer

    hook = Recorder()
    _combee(world, hooks=[hook], failure_score=-1.0, perfect_score=1.0).compile(
        Fragile(), trainset=world.examples(12), valset=world.examples(4, start=100)
    )
    failed = [event.rollout for event in hook.of(RolloutFinished) if event.rollout.error]
    assert failed
    assert all(rollout.score == -1.0 and rollout.failed_in == "program" for rollout in failed)
    assert any("After this step the program failed" in request.text for request in world.proposer_lm.requests)


class Order(pydantic.BaseModel):
    animal: str
    urgent: bool = False


class Typed(dspy.Signature):
    """Answer about a picture and an order."""

    picture: dspy.Image = dspy.InputField()
    order: Order = dspy.InputField()
    question: str = dspy.InputField()
    answer: Literal["TAC", "GOD", "unknown"] = dspy.OutputField()


def test_typed_and_multi_modal_fields(world: Any) -> None:
    pixel = f"data:image/png;base64,{base64.b64encode(b'a picture').decode()}"
    rows = [
        dspy.Example(
            picture=dspy.Image(url=pixel),
            order=Order(animal=animal),
            question=f"{number}: word for {animal}?",
            answer=animal[::-1].upper(),
        ).with_inputs("picture", "order", "question")
        for number, animal in enumerate(["cat", "dog"] * 8)
    ]
    program = _combee(world, max_metric_calls=120).compile(dspy.Predict(Typed), trainset=rows[:10], valset=rows[10:])
    assert program.combee_report.best_score == 1.0
    # Images reach the proposer as images, not as text.
    assert any("<Image" in request.text for request in world.proposer_lm.requests)


def test_react_with_tools(world: Any) -> None:
    looked_up: list[str] = []

    def lookup(animal: str) -> str:
        """Look an animal up."""
        looked_up.append(animal)
        return f"{animal} is an animal"

    agent = dspy.ReAct("question -> answer", tools=[lookup], max_iters=3)
    program = _combee(world, max_metric_calls=200, component_selector="all").compile(
        agent, trainset=world.examples(12), valset=world.examples(12, start=100)
    )
    assert looked_up
    assert program.combee_report.best_score > program.combee_report.seed_score
    # The tools of the student and of the result are the same functions.
    assert program.tools["lookup"].func is lookup


def test_budgets_stop_softly_and_say_so(world: Any) -> None:
    program = _combee(world, max_metric_calls=None, budget=Budget(calls=40)).compile(
        world.student(), trainset=world.examples(24), valset=world.examples(8, start=100)
    )
    assert "40" in program.combee_report.reason
    assert program.combee_report.costs["total"]["calls"] >= 40


def test_a_strategy_that_raises_ends_the_run_with_its_error(world: Any) -> None:
    from combee_dspy.aggregators import Aggregator

    class Broken(Aggregator):
        name = "broken"

        def aggregate(self, reflections: Any, context: Any) -> Any:
            raise KeyError("a bug of the plugin")

    asked = len(world.task_lm.requests)
    with pytest.raises(KeyError, match="a bug of the plugin"):
        _combee(world, aggregator=Broken()).compile(
            world.student(), trainset=world.examples(24), valset=world.examples(8, start=100)
        )
    assert len(world.task_lm.requests) - asked < 60, "it ends at once, not with the budget"
