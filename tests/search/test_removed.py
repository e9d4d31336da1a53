"""Lessons that a user removed: no text serves them, in the same words or in others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Guards, Search
from combee_dspy.exceptions import ArgumentValueError
from tests.slow import slow_but
from tests.worlds import World, code_word, events

UNWANTED = f"Rule: the word for cat is {code_word('cat')}"
OTHER_WORDS = UNWANTED.lower() + "."


@pytest.mark.parametrize("keep", slow_but(("trunk",), ["trunk", "pareto"]))
@pytest.mark.parametrize("removed", [UNWANTED, OTHER_WORDS])
def test_a_lesson_that_was_removed_is_in_no_text(
    world: World, tmp_path: Path, keep: Any, removed: str
) -> None:
    search = Search(keep=keep)
    learned = world.compile(search=search).combee_report.texts["self"]
    assert UNWANTED in learned
    arguments: dict[str, Any] = {"search": search, "guards": Guards(removed=(removed,))}
    report = world.compile(**arguments, log_dir=tmp_path).combee_report
    assert not [
        candidate for candidate in events(tmp_path, "candidate") if UNWANTED in str(candidate)
    ]
    others = [line for line in learned.splitlines() if "Rule:" in line and UNWANTED not in line]
    assert others
    assert all(line in report.texts["self"] for line in others)


@pytest.mark.parametrize(
    ("lines", "removed"),
    [((UNWANTED,), UNWANTED), ((UNWANTED, f"{UNWANTED}!"), f"{UNWANTED}!")],
    ids=["one", "two that differ in a mark"],
)
def test_lines_of_an_earlier_run_can_be_removed(
    world: World, lines: tuple[str, ...], removed: str
) -> None:
    section = "\n- ".join(("Lessons learned:", *lines))
    student = dspy.Predict(dspy.Signature("question -> answer", f"Give it.\n\n{section}"))
    report = world.compile(student, guards=Guards(removed=(removed,))).combee_report
    assert report.best_score > report.seed_score
    assert UNWANTED not in report.texts["self"]


def test_an_empty_lesson_cannot_be_removed() -> None:
    with pytest.raises(ArgumentValueError, match=r"Guards.removed.*empty text"):
        Guards(removed=(" ",))


@pytest.mark.parametrize(
    "arguments",
    [{"operators": ["rewrite"]}, {"instruction_proposer": lambda **_: {}}],
    ids=["operator", "proposer"],
)
def test_what_writes_texts_of_its_own_cannot_hold_it(
    world: World, arguments: dict[str, Any]
) -> None:
    with pytest.raises(ArgumentValueError, match=r"guards.removed.*texts of their own"):
        world.combee(guards=Guards(removed=(UNWANTED,)), **arguments)
