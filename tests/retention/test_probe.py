from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dspy
import pytest

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import FailedCall
from combee_dspy.retention import plant, planted_in, planted_record, probe_facts, probe_retention
from combee_dspy.testing import ScriptedPredict

SIZES = (3, 6)


class Copier:
    """Returns the first lessons it is given, up to a limit, and notes what it was asked."""

    def __init__(self, limit: int, fail: int = 0) -> None:
        self.limit, self.fail = limit, fail
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, signature: type[dspy.Signature], inputs: Sequence[dict[str, Any]], **_: Any) -> list[Any]:
        self.asked += [(signature.__name__, dict(one)) for one in inputs]
        return [self.answer(number, one) for number, one in enumerate(inputs)]

    def answer(self, number: int, one: dict[str, Any]) -> Any:
        if number < self.fail:
            return FailedCall("TimeoutError: none")
        if "lesson_lists" in one:
            lines = dict.fromkeys(line for lines in one["lesson_lists"] for line in lines)
        else:
            lines = dict.fromkeys(record["Feedback"] for record in one["examples_with_feedback"])
        return dspy.Prediction(lessons=list(lines)[: self.limit])


def test_what_is_kept_is_read_off_exactly() -> None:
    found = probe_retention(Copier(4), sizes=SIZES, calls=2)
    assert [(one.items, one.kept, one.total) for one in found.reads] == [(3, 3, 3)] * 2 + [(6, 4, 6)] * 2
    assert [(one.items, one.copies, one.kept) for one in found.merges] == (
        [(3, 1, 3)] * 2 + [(3, 2, 3)] * 2 + [(6, 1, 4)] * 2 + [(6, 2, 4)] * 2
    )
    assert found.calls == 12
    assert found.failed == ()


def test_copies_stand_in_different_lists() -> None:
    copier = Copier(99)
    probe_retention(copier, sizes=(1, 2, 3, 7, 12), calls=2)
    for name, one in copier.asked:
        if name == "MergeLessons":
            lists = one["lesson_lists"]
            assert all(len(set(lines)) == len(lines) for lines in lists)
            lines = [line for part in lists for line in part]
            assert len(lines) in (len(set(lines)), 2 * len(set(lines)))


def test_failed_calls_are_no_sample() -> None:
    found = probe_retention(Copier(4, fail=1), sizes=SIZES, calls=2)
    assert (len(found.reads), len(found.merges), len(found.failed)) == (3, 7, 2)


def test_hostile_answers_keep_nothing() -> None:
    for double in (ScriptedPredict(), ScriptedPredict(empty=True)):
        found = probe_retention(double, sizes=SIZES, calls=1)
        assert {one.kept for one in (*found.reads, *found.merges)} == {0}


@pytest.mark.parametrize("arguments", [{"sizes": ()}, {"sizes": (0, 3)}, {"sizes": (3,), "calls": 0}])
def test_what_cannot_be_probed_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ArgumentValueError):
        probe_retention(Copier(4), **arguments)


def test_planted_facts_share_no_word_and_the_same_seed_gives_the_same() -> None:
    facts = plant(300, 1)
    assert facts == plant(300, 1) != plant(300, 2)
    assert len({one.code for one in facts} | {one.wrong for one in facts}) == 600
    assert len({one.goods for one in facts} | {one.port for one in facts}) == 600
    assert len(probe_facts(SIZES, 0)) == 24
    assert len(plant(4_000, 0)) == 4_000
    with pytest.raises(ArgumentValueError, match="count"):
        plant(40_001, 0)


def test_a_fact_is_held_whole_or_not_at_all() -> None:
    one, other = plant(2, 0)
    assert planted_in((one, other), [one.line]) == {one.code}
    assert planted_in((one, other), [f"{one.code.lower()} is for {one.goods.upper()}!"]) == {one.code}
    assert planted_in((one, other), [f"Codes: {one.code}, {other.code}", one.goods]) == frozenset()
    assert planted_in((one, other), [planted_record(one, 0).record["Feedback"]]) == {one.code}


def test_ten_thousand_facts_share_no_word() -> None:
    facts = plant(10_000, 1)
    words = [word for fact in facts for word in (fact.goods, fact.port, fact.code, fact.wrong)]
    assert len(set(words)) == 40_000
