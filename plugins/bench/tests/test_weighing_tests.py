"""The switches of a book's parts."""

from __future__ import annotations

from combee_dspy.search import _growing, _proving
from combee_dspy.search._growing import Growing
from combee_dspy.search._update import UpdateLearner
from studies.weighing.fates import FATES
from studies.weighing.leaving import leaving_out
from studies.weighing.parts import without
from studies.weighing.runs import METHODS, PARTS, run_once


def test_parts_are_back_after_a_run() -> None:
    before = (_growing.blame, _growing.choose_version, _proving.Proving._test_lines, _growing.spare)
    for method in PARTS.values():
        with without(method.without):
            now = (
                _growing.blame,
                _growing.choose_version,
                _proving.Proving._test_lines,
                _growing.spare,
            )
            assert (now != before) == bool(method.without)
        assert before == (
            _growing.blame,
            _growing.choose_version,
            _proving.Proving._test_lines,
            _growing.spare,
        )
    assert not METHODS.keys() & PARTS.keys()


def test_a_book_without_its_tests_still_learns() -> None:
    assert run_once("few", 0, "untested", 200)["heldout"] > 0


def test_lines_are_left_out_for_the_time_of_a_run() -> None:
    before = (UpdateLearner._rollout, UpdateLearner._reflect, Growing.propose)
    with leaving_out(0.5):
        now = (UpdateLearner._rollout, UpdateLearner._reflect, Growing.propose)
        assert not set(now) & set(before)
    assert before == (UpdateLearner._rollout, UpdateLearner._reflect, Growing.propose)
    assert run_once("few", 0, "leaving-often", 200)["heldout"] > 0


def test_each_exception_that_a_prompt_lacks_has_one_fate() -> None:
    result = run_once("exceptions", 0, "book", 120)
    missing = result["exceptions_wrongly_missing"]
    assert 0 < sum(result[name] for name in FATES) <= missing <= 12
