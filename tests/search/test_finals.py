"""Which candidate is returned: a further draw of those within reach, where the task LM samples."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Budget, Search, Validation
from combee_dspy.operators import Operator
from combee_dspy.records import Edit
from combee_dspy.search._choices import Verdict
from tests.worlds import World, events, in_kind, rows


class Versions(Operator):
    name = "versions"
    needs_lessons = False
    near_parent = True

    async def apply(self, given: Any, context: Any) -> Edit:
        return Edit(instruction=f"version {context.update}")


def lucky(request: Any) -> str:
    """Version 1 was lucky in its first draw, version 2 a little unlucky."""
    version = int((re.findall(r"version (\d+)", request.system) or ["-1"])[0])
    seen[request.system, request.last] = draw = seen.get((request.system, request.last), -1) + 1
    value = {-1: 20, 0: 50, 1: 60 if draw == 0 else 20, 2: 55 + 2 * (draw > 0)}.get(version, 30)
    return in_kind(request, {"answer": str(value)})


seen: dict[tuple[str, str], int] = {}


def graded(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> Any:
    return dspy.Prediction(score=int(pred.answer) / 100, feedback="more")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every child through its screen: what is tested here comes after it."""
    from combee_dspy.search import _pareto

    seen.clear()
    monkeypatch.setattr(
        _pareto, "verdict", lambda *_, whole: Verdict(True, "let through", 0.0, 0.0)
    )


def compiled(place: Path, temperature: float = 1.0, **kwargs: Any) -> Any:
    world = World.made(lucky, temperature=temperature)
    given = {
        "budget": Budget(updates=3),
        "reflection_minibatch_size": 3,
        "validation_options": Validation(finalists=3),
    }
    return world, world.compile(
        metric=graded,
        operators=[Versions()],
        log_dir=place,
        diversity=False,
        validation=4,
        search=Search(keep="pareto", staleness=0),
        candidate_selection_strategy="current_best",
        **{**given, **kwargs},
    )


def reach(monkeypatch: pytest.MonkeyPatch, chance: float) -> None:
    from combee_dspy.search import _choices

    monkeypatch.setattr(_choices, "REACH", chance)


def test_luck_is_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reach(monkeypatch, 0.0)
    world, program = compiled(tmp_path)
    drawn = rows(
        tmp_path,
        "SELECT candidate, count(*) AS n FROM effect WHERE purpose = 'final' GROUP BY candidate",
    )
    assert [row["n"] for row in drawn] == [4, 4, 4]
    assert program.signature.instructions == "version 2"
    (selected,) = events(tmp_path, "selected")
    assert selected["reason"] == "best of 3 finalists over two draws, 0.56"
    # A further draw is another question to the service: the same one would be answered from a
    # cache.
    assert len(world.task_lm.requests) == program.combee_report.rollouts


@pytest.mark.parametrize(
    "given",
    [
        {"temperature": 0.0},
        {"validation_options": Validation(finalists=1)},
        {"budget": Budget(updates=3, rollouts=36)},
    ],
    ids=["the task LM repeats itself", "one finalist", "no room"],
)
def test_nothing_is_drawn_again_where_it_cannot_tell(
    tmp_path: Path, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reach(monkeypatch, 0.0)
    _, program = compiled(tmp_path, **given)
    assert not rows(tmp_path, "SELECT 1 FROM effect WHERE purpose = 'final'")
    assert program.signature.instructions == "version 1"
    assert "best of" in events(tmp_path, "selected")[0]["reason"]


@pytest.mark.parametrize(("best", "score"), [(57, 0.56), (31, 0.5)], ids=["a child", "the student"])
def test_the_report_says_the_mean_over_the_draws_that_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, best: int, score: float
) -> None:
    def drawn(request: Any) -> str:
        version = int((re.findall(r"version (\d+)", request.system) or ["-1"])[0])
        seen[request.system, request.last] = draw = seen.get((request.system, request.last), -1) + 1
        value = {-1: (54, 46), 0: (55, best), 1: (20, 20)}[version][min(draw, 1)]
        return in_kind(request, {"answer": str(value)})

    reach(monkeypatch, 0.0)
    report = (
        World.made(drawn, temperature=1.0)
        .compile(
            metric=graded,
            operators=[Versions()],
            log_dir=tmp_path,
            diversity=False,
            validation=4,
            train=6,
            budget=Budget(updates=2),
            reflection_minibatch_size=3,
            search=Search(keep="pareto", staleness=0),
        )
        .combee_report
    )
    assert report.best_score == pytest.approx(score)
    assert report.seed_score == pytest.approx(0.54 if best == 57 else 0.5)
    (told,) = [json.loads(row["result"]) for row in rows(tmp_path, "SELECT result FROM run")]
    assert told["best_score"] == report.best_score


def test_those_that_trail_clearly_are_not_drawn_again(tmp_path: Path) -> None:
    _, program = compiled(tmp_path)
    assert not rows(tmp_path, "SELECT 1 FROM effect WHERE purpose = 'final'"), (
        "four losses of four are clear"
    )
    assert program.signature.instructions == "version 1"


def test_a_budget_in_calls_that_ends_in_the_finals_leaves_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reach(monkeypatch, 0.0)
    world, program = compiled(tmp_path, budget=Budget(updates=3, calls=40))
    assert len(world.task_lm.requests) <= 40
    assert program.signature.instructions == "version 1"
    assert rows(tmp_path, "SELECT 1 FROM effect WHERE key = 'decision/finals'")
    # Going on, the choice stays what it was, though more draws are on disk by now.
    asked = len(world.task_lm.requests)
    again = world.compile(
        metric=graded,
        operators=[Versions()],
        log_dir=tmp_path,
        diversity=False,
        validation=4,
        search=Search(keep="pareto", staleness=0),
        candidate_selection_strategy="current_best",
        budget=Budget(updates=3, calls=40),
        reflection_minibatch_size=3,
        validation_options=Validation(finalists=3),
    )
    assert again.signature.instructions == "version 1"
    assert len(world.task_lm.requests) == asked


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("unlucky", "chosen"), [(2, "version 2"), (3, "version 1")], ids=["as good", "not as good"]
)
def test_of_equals_the_newest_is_returned(
    tmp_path: Path, temperature: float, unlucky: int, chosen: str
) -> None:
    def answered(request: Any) -> str:
        version = int((re.findall(r"version (\d+)", request.system) or ["-1"])[0])
        row = int(re.findall(r"Number (\d+)", request.last)[-1]) % 100
        value = {-1: 20, 0: 50, 1: 60}.get(version, 55 if row < unlucky else 65)
        return in_kind(request, {"answer": str(value)})

    world = World.made(answered, temperature=temperature)
    program = world.compile(
        metric=graded,
        operators=[Versions()],
        log_dir=tmp_path,
        diversity=False,
        validation=4,
        search=Search(keep="pareto", staleness=0),
        candidate_selection_strategy="current_best",
        budget=Budget(updates=3),
        reflection_minibatch_size=3,
        validation_options=Validation(finalists=1),
    )
    assert program.signature.instructions == chosen
