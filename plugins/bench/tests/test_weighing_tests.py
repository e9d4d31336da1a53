"""The switches of a book's parts."""

from __future__ import annotations

from combee_dspy.search import _growing, _proving
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
