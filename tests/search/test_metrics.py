"""Metrics of all kinds: awaited, with state, on any scale, on whatever a program returns."""

from __future__ import annotations

import asyncio
import functools
import re
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy.utils.exceptions import LMServerError

from combee_dspy import Budget, Search, Validation
from combee_dspy.evaluation import (
    Calibration,
    Heldout,
    Judge,
    SerialBaseline,
    perfect_score_of,
)
from combee_dspy.exceptions import JournalMismatchError
from combee_dspy.rollouts import RolloutJob, decode_rollout, encode_rollout, output_of, run_rollout
from combee_dspy.testing import ScriptedLM
from combee_dspy.tracking import rollouts, runs, show
from combee_dspy.tracking.report import write_report
from tests.slow import slow_but
from tests.worlds import (
    ANIMALS,
    World,
    animal_of,
    code_word,
    events,
    examples,
    gepa_metric,
    in_kind,
    metric,
    rows,
)


@pytest.mark.parametrize("executor", ["threads", "asyncio"])
def test_a_metric_that_is_awaited_scores_and_gives_feedback(executor: str, tmp_path: Path) -> None:
    async def awaited(
        gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
    ) -> Any:
        await asyncio.sleep(0)
        return dspy.Prediction(score=metric(gold, pred).score, feedback=f"For {pred_name}.")

    World.made().compile(
        metric=awaited,
        executor=executor,
        budget=Budget(updates=1),
        log_dir=tmp_path,
        reflection_minibatch_size=4,
    )
    assert not rows(tmp_path, "SELECT 1 FROM effect WHERE kind = 'rollout' AND error IS NOT NULL")
    feedback = rows(tmp_path, "SELECT value FROM effect WHERE kind = 'feedback'")
    assert feedback
    assert all("For self." in row["value"] for row in feedback)


def test_a_verdict_without_a_reason_is_fed_back_as_a_number(tmp_path: Path) -> None:
    def judges(
        gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
    ) -> bool:
        return bool(metric(gold, pred).score)

    options = {"budget": Budget(updates=1), "reflection_minibatch_size": 4}
    World.made().compile(metric=judges, log_dir=tmp_path, **options)
    feedback = rows(tmp_path, "SELECT value FROM effect WHERE kind = 'feedback'")
    assert feedback
    assert all("The score was 0.0." in row["value"] for row in feedback)


def test_feedback_waits_for_a_service_that_is_down_for_a_while(tmp_path: Path) -> None:
    failures = iter([True, True, False, True])

    def asks(
        gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
    ) -> Any:
        if pred_name and next(failures, False):
            raise LMServerError("the judge is down", status=503)
        return metric(gold, pred)

    options = {"budget": Budget(updates=1), "reflection_minibatch_size": 4, "num_threads": 1}
    report = World.made().compile(metric=asks, log_dir=tmp_path, **options).combee_report
    assert report.updates == 1
    assert next(failures, None) is None
    feedback = rows(tmp_path, "SELECT error FROM effect WHERE kind = 'feedback'")
    assert feedback
    assert not any(row["error"] for row in feedback)


class Counting:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(
        self, gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
    ) -> Any:
        self.calls += 1
        return metric(gold, pred)


def over_a_dict() -> Any:
    cache: dict[str, Any] = {}

    def score(gold: Any, pred: Any, pred_name: str | None) -> Any:
        cache[gold.question] = pred.answer
        return metric(gold, pred)

    return gepa_metric(score)


CELL = """
from tests.worlds import metric as scored
calls = 0
def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
    global calls
    calls += 1
    return scored(gold, pred)
"""


def notebook_cell(source: str = CELL) -> Any:
    module = types.ModuleType("__main__")
    exec(compile(source, "<cell>", "exec"), vars(module))  # noqa: S102 - a notebook's cell
    return module.metric


@pytest.mark.parametrize("make", slow_but((Counting,), [Counting, over_a_dict, notebook_cell]))
def test_a_run_goes_on_with_a_metric_that_has_changed_its_state(make: Any, tmp_path: Path) -> None:
    scorer = make()
    options: dict[str, Any] = {"log_dir": tmp_path, "reflection_minibatch_size": 6}
    World.made().compile(metric=scorer, max_metric_calls=40, **options)
    report = World.made().compile(metric=scorer, max_metric_calls=80, **options).combee_report
    assert report.best_score > report.seed_score
    again = World.made()
    repeated = again.compile(metric=make(), max_metric_calls=80, **options).combee_report
    assert repeated.texts == report.texts
    assert not again.task_lm.requests


def test_a_run_goes_on_with_no_metric_that_has_other_code(tmp_path: Path) -> None:
    World.made().compile(metric=notebook_cell(), log_dir=tmp_path, max_metric_calls=40)
    other = CELL.replace("scored(gold, pred)", "scored(gold, pred).score")
    with pytest.raises(JournalMismatchError, match=r"metric was .* are not mixed") as caught:
        World.made().compile(metric=notebook_cell(other), log_dir=tmp_path)
    assert [text.split()[0] for text in caught.value.differs] == ["metric"]


def scaled(right: float, wrong: float = 0.0) -> Any:
    def score(gold: Any, pred: Any, pred_name: str | None) -> Any:
        judged = metric(gold, pred)
        return dspy.Prediction(score=right if judged.score else wrong, feedback=judged.feedback)

    return gepa_metric(score)


def test_a_metric_from_0_to_100_learns_what_one_from_0_to_1_learns(world: World) -> None:
    unit = world.compile(heldout=24).combee_report
    percent = World.made().compile(metric=scaled(100), heldout=24).combee_report
    assert percent.texts == unit.texts
    assert percent.rollouts == unit.rollouts
    assert percent.best_score == pytest.approx(100 * unit.best_score)
    assert percent.heldout.difference == pytest.approx(100 * unit.heldout.difference)


@pytest.mark.parametrize(("right", "wrong"), [(10, 1), (100, 40), (640, -3)])
def test_wrong_answers_may_score_above_1(world: World, right: float, wrong: float) -> None:
    report = world.compile(metric=scaled(right, wrong)).combee_report
    assert report.best_score == right > report.seed_score


def test_the_worst_answers_of_a_larger_scale_are_mistakes(world: World, tmp_path: Path) -> None:
    world.compile(
        metric=scaled(10, 1),
        budget=Budget(updates=24),
        reflection_minibatch_size=2,
        log_dir=tmp_path,
    )
    trained = rows(
        tmp_path,
        "SELECT step, max(score) AS score FROM effect WHERE split = 'train' GROUP BY step",
    )
    highest = {each["step"]: each["score"] for each in trained}
    skipped = {each["step"] for each in events(tmp_path, "update") if each["skipped"]}
    first = min(step for step, score in highest.items() if score == 10)
    # Until an update that has seen the scale is committed, it is not known.
    assert all(highest[step] == 10 for step in skipped if step > first + 5)


def test_the_worst_answers_of_a_larger_scale_are_no_demonstrations(tmp_path: Path) -> None:
    def knows_two(request: Any) -> str:
        animal = animal_of(request.last)
        return in_kind(request, {"answer": code_word(animal) if animal in ANIMALS[:2] else "?"})

    World.made(knows_two).compile(
        metric=scaled(10, 1),
        operators=["few-shot-swap"],
        search=Search(staleness=0),
        budget=Budget(updates=12),
        reflection_minibatch_size=2,
        log_dir=tmp_path,
    )
    trained = rows(tmp_path, "SELECT min(step) FROM effect WHERE split = 'train' AND score = 10")
    ((known,),) = map(dict.values, trained)
    proposed = rows(tmp_path, "SELECT data FROM event WHERE kind = 'candidate' AND step > ?", known)
    assert not [each for each in proposed if '"?' in each["data"].replace("\\", "")]


@pytest.mark.parametrize(("options", "warnings"), [({}, 1), ({"perfect_score": 100}, 0)])
def test_a_larger_scale_is_warned_of_once_unless_perfect_score_is_given(
    world: World, tmp_path: Path, options: dict[str, Any], warnings: int
) -> None:
    world.compile(metric=scaled(100), log_dir=tmp_path, **options)
    texts = [event["text"] for event in events(tmp_path, "warning")]
    assert sum("The metric gave more than" in text for text in texts) == warnings


@pytest.mark.parametrize("options", [{}, {"perfect_score": 100}])
def test_a_minibatch_of_hundreds_alone_is_skipped(world: World, options: Any) -> None:
    report = world.compile(metric=scaled(100, 100), **options).combee_report
    assert report.reason.endswith("every training row was right when it ran last")
    assert not world.proposer_lm.requests


@pytest.mark.parametrize(("score", "baseline"), [(metric, 0.1), (scaled(100), 10)])
def test_a_point_is_a_hundredth_of_the_scale(world: World, score: Any, baseline: float) -> None:
    heldout = Heldout(tuple(examples(24, 200)), baseline=SerialBaseline(baseline))
    student, data = dspy.Predict("question -> answer"), (examples(24), examples(12, 100))
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        combee = world.combee(metric=score)
        program = combee.compile(student, trainset=data[0], valset=data[1], heldout=heldout)
    report, scale = program.combee_report, baseline / 0.1
    assert report.per_point.points == pytest.approx(100 * (report.heldout.after / scale - 0.1))


@pytest.mark.parametrize(
    ("perfect_score", "scores", "perfect"),
    [
        (1.0, [0, 0.5], 1),
        (1.0, [], 1),
        (1.0, [7, 0], 10),
        (1.0, [100], 100),
        (1.0, [101], 1000),
        (50.0, [70], 50),
        (1.0, [-5], 1),
    ],
)
def test_the_score_of_a_success(perfect_score: float, scores: list[float], perfect: float) -> None:
    assert perfect_score_of(perfect_score, scores) == perfect


class Returns(dspy.Module):
    """Returns its answer in some form, such as a tuple."""

    def __init__(self, form: Callable[[str], Any]) -> None:
        super().__init__()
        self.answer = dspy.Predict("question -> answer")
        self.form = form

    def forward(self, question: str) -> Any:
        return self.form(self.answer(question=question).answer)


@dataclass
class Answer:
    text: str


FORMS: dict[str, tuple[Callable[[str], Any], Callable[[Any], str]]] = {
    "tuple": (lambda answer: (answer, 1), lambda output: output[0]),
    "text": (lambda answer: answer, lambda output: output),
    "list": (lambda answer: [answer], lambda output: output[0]),
    "dict": (lambda answer: {"answer": answer}, lambda output: output["answer"]),
    "dataclass": (Answer, lambda output: output.text),
    "example": (lambda answer: dspy.Example(answer=answer), lambda output: output.answer),
}


def reading(read: Callable[[Any], str]) -> Any:
    def score(gold: Any, pred: Any, pred_name: str | None) -> Any:
        judged = metric(gold, dspy.Prediction(answer=read(pred)))
        return dspy.Prediction(score=judged.score, feedback=f"{pred_name}: {judged.feedback}")

    return gepa_metric(score)


@pytest.mark.parametrize(("form", "read"), FORMS.values(), ids=FORMS)
def test_a_metric_gets_what_the_program_returned_and_a_journal_gives_it_back(
    world: World, tmp_path: Path, form: Any, read: Any
) -> None:
    report = world.compile(Returns(form), metric=reading(read), log_dir=tmp_path).combee_report
    assert report.best_score == 1.0 > report.seed_score
    assert not events(tmp_path, "error")
    assert any("answer: Wrong. Rule" in request.text for request in world.proposer_lm.requests)
    (example,) = examples(1)
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        rollout = run_rollout(RolloutJob(Returns(form), example, "id", reading(read)))
    again = decode_rollout(encode_rollout(rollout))
    assert again == rollout
    assert output_of(again) == form("TNA")
    assert type(output_of(again)) is type(form("TNA"))


def test_nothing_is_an_output_too(world: World) -> None:
    (example,), program = examples(1), Returns(lambda answer: None)
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        rollout = run_rollout(RolloutJob(program, example, "id", lambda *_: 0.5))
    assert (rollout.score, rollout.error, output_of(rollout)) == (0.5, None, None)


def test_a_reference_judges_what_the_program_returned(world: World) -> None:
    outputs: list[Any] = []

    def reference(gold: Any, pred: Any, *rest: Any) -> float:
        outputs.append(pred)
        return float(pred[0] == gold.answer)

    options = Validation(calibration=Calibration(reference, share=1.0))
    form, read = FORMS["tuple"]
    world.compile(Returns(form), metric=reading(read), validation_options=options)
    assert {type(output) for output in outputs} == {tuple}


SMALL: dict[str, Any] = {"train": 8, "validation": 4, "max_metric_calls": 30}


def weighted(
    factor: float, gold: Any, pred: Any, trace: Any = None, name: Any = None, part: Any = None
) -> Any:
    return factor * metric(gold, pred).score


JUDGE = Judge(
    "Is it right?",
    lm=ScriptedLM(
        lambda request: in_kind(request, {"reasoning": "", "score": 0.5, "feedback": "f"}),
        model="scripted/judge",
    ),
)


@pytest.mark.parametrize(
    ("scorer", "name"),
    [
        (metric, r"tests\.worlds\.metric"),
        (functools.partial(weighted, 1.0), r".*test_metrics\.weighted"),
        (Counting(), r".*test_metrics\.Counting"),
        (JUDGE, r"combee_dspy\.evaluation\._judge\.Judge \(scripted/judge\)"),
    ],
)
def test_the_evaluator_is_on_every_row(
    world: World, tmp_path: Path, scorer: Any, name: str
) -> None:
    world.compile(metric=scorer, log_dir=tmp_path, heldout=4, **SMALL)
    every = [*rollouts(tmp_path, limit=None), *runs(tmp_path)]
    (evaluator,) = {row["evaluator"] for row in every}
    assert re.fullmatch(name + " #[0-9a-f]{12}", evaluator)
    assert show(tmp_path, "effect/3")["evaluator"] == evaluator
    page = write_report(tmp_path, tmp_path / "r.html").read_text(encoding="utf-8")
    assert f"scored by {evaluator.partition(' ')[0]}" in page


def test_other_code_under_the_same_name_is_another_evaluator(world: World, tmp_path: Path) -> None:
    for factor in (1.0, 0.5):
        scorer = functools.partial(weighted, factor)
        world.compile(metric=scorer, log_dir=tmp_path / str(factor), **SMALL)
    first, second = (runs(tmp_path / folder)[0]["evaluator"] for folder in ("1.0", "0.5"))
    assert first.partition("#")[0] == second.partition("#")[0]
    assert first != second
