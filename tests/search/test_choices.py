"""Which candidate of a Pareto search is returned."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Budget, Search
from combee_dspy.operators import Operator
from combee_dspy.records import Edit
from combee_dspy.search._candidates import Candidate, Member
from combee_dspy.search._choices import choose_version, spare
from combee_dspy.search._pool import CandidatePool
from tests.worlds import World, in_kind


class Versions(Operator):
    name = "versions"
    needs_lessons = False
    near_parent = True

    async def apply(self, material: Any, context: Any) -> Edit:
        return Edit(instruction=f"version {context.update}")


def graded(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> Any:
    return dspy.Prediction(score=int(pred.answer) / 100, feedback="more")


@pytest.fixture(autouse=True)
def no_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every child through its screen: what is tested here comes after it."""
    from combee_dspy.search import _pareto

    monkeypatch.setattr(_pareto, "passes_screen", lambda *_, whole: (True, "let through"))


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
    )
    assert program.signature.instructions == chosen


def versions(*scores: Sequence[int]) -> list[Member]:
    return [
        Member(place, Candidate({"self": str(place)}), (), place, dict(enumerate(each)))
        for place, each in enumerate(scores)
    ]


@pytest.mark.parametrize(
    ("last", "chosen"),
    [([1] * 8 + [0] * 4, 1), ([1] * 9 + [0] * 3, 2), ([1] * 6, 2), ([1] * 5 + [0], 1)],
    ids=["below", "as-good", "cut-as-good", "cut-below"],
)
def test_the_best_version_is_returned_and_of_equals_the_newest(
    last: list[int], chosen: int
) -> None:
    member, reason = choose_version(versions([0] * 12, [1] * 9 + [0] * 3, last))
    assert member.index == chosen
    assert ("the budget cut at 6 of 12 rows" in reason) == (len(last) == 6 and chosen == 2)


def test_a_cut_version_that_is_no_better_than_the_student_is_not_returned() -> None:
    student = [1, 0, 0, 1, 0, 1] * 2
    assert choose_version(versions(student, [1, 0, 0, 1, 0, 1]))[0].index == 0


def test_the_newest_text_is_chosen_where_nothing_is_validated() -> None:
    members = [Member(place, Candidate({"self": str(place)}), (), place, {}) for place in range(2)]
    chosen, _ = choose_version(members)
    assert chosen.index == 1


def test_a_text_that_ran_on_a_part_of_the_rows_is_not_the_best_by_their_mean() -> None:
    pool = object.__new__(CandidatePool)
    pool.members = [
        Member(index, Candidate({"self": str(index)}), (), index, scores)
        for index, scores in enumerate(({0: 0.0, 1: 0.0}, {0: 1.0, 1: 0.0}, {0: 1.0}))
    ]
    assert pool.best.index == 1


@pytest.mark.parametrize(
    ("limit", "set_aside"), [(None, 0), (119, 0), (120, 30), (179, 30), (180, 45), (480, 120)]
)
def test_the_last_text_of_a_small_budget_can_be_validated(
    limit: int | None, set_aside: int
) -> None:
    assert spare(limit, 30, judged=False) == set_aside


def test_what_is_set_aside_to_search_rows_counts_all_their_draws() -> None:
    assert [spare(900, 90, draws, judged=False) for draws in (1, 3)] == [122, 186]
