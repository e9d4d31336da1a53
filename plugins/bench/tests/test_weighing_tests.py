"""The study of tests of lines, and the switches of a book's parts."""

from __future__ import annotations

import asyncio
import random

from combee_dspy.search import _growing, _proving
from studies.weighing.blame import KINDS, plant, run_trial
from studies.weighing.parts import without
from studies.weighing.runs import METHODS, PARTS, run_once


def test_parts_are_back_after_a_run() -> None:
    before = (_growing.blame, _growing.choose_version, _proving.Proving.prove, _growing.spare)
    for method in PARTS.values():
        with without(method.without):
            now = (_growing.blame, _growing.choose_version, _proving.Proving.prove, _growing.spare)
            assert (now != before) == bool(method.without)
        assert before == (
            _growing.blame,
            _growing.choose_version,
            _proving.Proving.prove,
            _growing.spare,
        )
    assert not METHODS.keys() & PARTS.keys()


def test_a_book_without_its_tests_still_learns() -> None:
    assert run_once("few", 0, "untested", 200)["heldout"] > 0


def test_what_is_planted_is_true_or_false_as_its_kind_says() -> None:
    planted = plant(random.Random(3))
    assert set(planted.kind.values()) == set(KINDS)
    for meaning, kind in planted.kind.items():
        assert planted.truth.agrees(meaning) == kind.startswith(("good", "true"))


def test_tests_drop_what_harms_and_no_good_line_where_scores_do_not_flip() -> None:
    trials = [asyncio.run(run_trial(40, 0.0, trial)) for trial in range(6)]
    assert trials == [asyncio.run(run_trial(40, 0.0, trial)) for trial in range(6)]
    at_the_end = [trial["at the end"] for trial in trials]
    assert sum(moved["harms 1 in 7"] for moved in at_the_end) >= 5
    assert sum(moved["good"] for moved in at_the_end) == 0
