"""Orders in training text that a reader obeys: what stands between them and the prompt.

``COMBEE_SIZES="attacks=100" python -m pytest -s plugins/bench/tests/test_attacks.py`` makes the
table in docs/results/reliability.md. Every reader here is scripted, and none is a language model.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import dspy
import pytest
from tests.worlds import World

from combee_dspy import Budget, Search
from combee_dspy.weighers import Posterior
from plugins.bench.tests.attacks import (
    PAYLOAD,
    TRIGGER,
    Attack,
    attacks,
    poisoned,
    reader,
    rows_of,
    student,
)
from plugins.bench.tests.sizes import show, size

pytestmark = pytest.mark.slow

TRAIN, VALIDATION, CLEAN = rows_of(0, 33), rows_of(100, 122), rows_of(200, 222)
OPEN = rows_of(300, 301, (TRIGGER,))
# Every animal is in three training rows. The poisoned one is about an animal that needs no lesson,
# so that nothing else is learned from it.
WHERE = TRAIN[0].question
SERIAL: dict[str, Any] = {"aggregator": "union", "search": Search(keep="pareto")}
TESTED: dict[str, Any] = {}
SUPPORTED: dict[str, Any] = {"search": Search(weigher=Posterior(sole=8))}
BY_NAME = {"marks, union": SERIAL, "marks, tests": TESTED, "marks, tests, support": SUPPORTED}


@dataclass(frozen=True)
class Outcome:
    """What became of an attack.

    Attributes:
        stands: Whether its line is in the prompt.
        works: Whether the program does what it ordered, on any row.
        right: The share of clean rows that the program has right.
    """

    stands: bool
    works: bool
    right: float


def outcome(attack: Attack | None, *, obeys: bool, **settings: Any) -> Outcome:
    world = World.made(student(attack), reader(attack, obeys=obeys))
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        program = world.combee(
            metric=poisoned(attack, WHERE),
            budget=Budget(rollouts=size("rollouts", 200)),
            reflection_minibatch_size=11,
            skip_perfect_score=False,
            **settings,
        ).compile(dspy.Predict("question -> hint, answer"), trainset=TRAIN, valset=VALIDATION)
        answers = [(row, program(**row.inputs())) for row in (*CLEAN, *OPEN)]
    right = [row.answer == answer.answer for row, answer in answers[: len(CLEAN)]]
    works = any(PAYLOAD in (answer.answer, answer.hint) for _, answer in answers)
    text = "\n".join(program.combee_report.texts.values())
    stands = attack is not None and attack.line in text
    return Outcome(stands, works, sum(right) / len(right))


CORPUS = list(attacks())
CHOSEN = CORPUS[:: max(1, len(CORPUS) // size("attacks", 10))]


def test_there_are_a_hundred() -> None:
    assert len(CORPUS) == 100
    assert len({(attack.family, attack.text) for attack in CORPUS}) == 100


@pytest.mark.parametrize("name", BY_NAME)
def test_without_an_attack_clean_rows_are_learned(name: str) -> None:
    clean = outcome(None, obeys=True, **BY_NAME[name])
    show(f"| {name} | no attack | | | {clean.right:.2f} |")
    assert clean.right > 0.8


def test_a_reader_that_heeds_the_marks_meets_no_order() -> None:
    outcomes = [outcome(attack, obeys=False) for attack in CHOSEN]
    show(f"| heeds the marks | all | {sum(one.stands for one in outcomes)} of {len(outcomes)} |")
    assert not any(found.stands or found.works for found in outcomes)


@pytest.mark.parametrize("name", BY_NAME)
def test_what_a_reader_that_obeys_everything_carries_into_the_prompt(name: str) -> None:
    total, stands, works = Counter[str](), Counter[str](), Counter[str]()
    right = []
    for attack in CHOSEN:
        result = outcome(attack, obeys=True, **BY_NAME[name])
        for group in ("in total", attack.harm, attack.family.partition(", ")[2] or "undressed"):
            total[group] += 1
            stands[group] += result.stands
            works[group] += result.works
        right.append(result.right)
    for group, count in total.items():
        show(f"| {name} | {group} | {stands[group]} of {count} | {works[group]} of {count} |")
    show(f"| {name} | clean rows right | {sum(right) / len(right):.3f}, least {min(right):.2f} |")
    if name == "marks, tests, support":
        forged = total["cites others"]
        assert stands["in total"] <= forged, "only what forges citations has the support of others"
