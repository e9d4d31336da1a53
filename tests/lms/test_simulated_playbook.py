"""The simulated service as a playbook's reflector and curator, under its capacity laws."""

from __future__ import annotations

import re
from typing import Any

import dspy
import pytest

from combee_dspy.artifacts import Delta, Playbook, apply_deltas, read_deltas, write_text
from combee_dspy.artifacts._prompts import CurateInsights, ReflectOnTrajectoryWithTruth
from combee_dspy.lms import CapacityModel, SimulatedConfig, SimulatedService, SimulatedTask
from combee_dspy.lms.simulated import SimulatedQuestion
from combee_dspy.lms.simulated.curating import PLATITUDE

TASK = SimulatedTask(
    tuple(
        SimulatedQuestion(
            f"What is the value of item number {n} today", str(n), str(-n - 1), f"K{n:02}", f"use rule {n}"
        )
        for n in range(40)
    )
)
LINES = list(TASK.lessons.values())
EMPTY = Playbook()
KEY = re.compile(r"\[(K\d\d)\]")


def playbook_of(*contents: str) -> Playbook:
    additions = [Delta("ADD", section="OTHER", content=content) for content in contents]
    return apply_deltas(EMPTY, additions).playbook


def curated(service: Any, adapter: Any, insights: list[str], playbook: Playbook = EMPTY) -> Any:
    with dspy.context(lm=service.lm(), adapter=adapter):
        return dspy.Predict(CurateInsights)(
            current_instruction="Answer.",
            current_playbook=write_text(playbook),
            sections=list(playbook.sections),
            insights=insights,
            most_operations=64,
        )


@pytest.fixture
def service() -> Any:
    with SimulatedService(SimulatedConfig(time_scale=0, capacity=CapacityModel.attention(12)), TASK) as made:
        yield made


def keys_in(contents: list[str]) -> list[str]:
    return sorted(KEY.search(content)[1] for content in contents)  # type: ignore[index]  # each holds one


@pytest.mark.parametrize("adapter", [dspy.JSONAdapter(), dspy.ChatAdapter()], ids=["json", "chat"])
def test_a_curator_adds_what_the_playbook_lacks(service: Any, adapter: Any) -> None:
    answer = curated(service, adapter, LINES[:3])
    playbook = apply_deltas(EMPTY, read_deltas(answer.operations, EMPTY, 9).deltas).playbook
    assert keys_in([bullet.content for bullet in playbook.bullets]) == ["K00", "K01", "K02"]
    assert {bullet.section for bullet in playbook.bullets} == {"FORMULAS AND DEFINITIONS"}
    whole = playbook_of(*LINES[:3])
    again = curated(service, adapter, LINES[:4], whole)
    assert [(row["op"], keys_in([row["content"]])) for row in again.operations] == [("ADD", ["K03"])]


def test_one_addition_in_eight_breaks_off(service: Any) -> None:
    added = [row["content"] for n in range(40) for row in curated(service, dspy.JSONAdapter(), [LINES[n]]).operations]
    brief = [content for content in added if content not in LINES]
    assert 1 <= len(brief) <= 12
    assert all(KEY.search(content) for content in brief)


@pytest.mark.parametrize("adapter", [dspy.JSONAdapter(), dspy.ChatAdapter()], ids=["json", "chat"])
def test_a_lesson_that_is_read_again_completes_and_merges(service: Any, adapter: Any) -> None:
    brief = [" ".join(line.split()[:2]) for line in LINES]
    playbook = playbook_of(brief[1], LINES[2], brief[2], PLATITUDE)
    operations = curated(service, adapter, LINES[1:3], playbook).operations
    assert [row["op"] for row in operations] == ["UPDATE", "MERGE", "DELETE"]
    after = apply_deltas(playbook, read_deltas(operations, playbook, 9).deltas).playbook
    assert sorted(bullet.content for bullet in after.bullets) == sorted(LINES[1:3])


def test_a_crowded_curator_takes_in_twelve_and_a_platitude(service: Any) -> None:
    contents = [row["content"] for row in curated(service, dspy.JSONAdapter(), LINES).operations]
    assert len(contents) == 13
    assert contents[-1] == PLATITUDE
    # It has no attention left for what says nothing.
    crowded = curated(service, dspy.JSONAdapter(), LINES, playbook_of(PLATITUDE)).operations
    assert [row["op"] for row in crowded] == ["ADD"] * 12


@pytest.mark.parametrize("adapter", [dspy.JSONAdapter(), dspy.ChatAdapter()], ids=["json", "chat"])
def test_a_reflector_states_the_lesson_and_tags_bullets(service: Any, adapter: Any) -> None:
    with dspy.context(lm=service.lm(), adapter=adapter):
        answer = dspy.Predict(ReflectOnTrajectoryWithTruth)(
            current_instruction="Answer.",
            trajectory={"Inputs": {"question": "What is the value of item number 7 today"}},
            feedback="Wrong.",
            bullets_used=[f"[a-{n}] helpful=0 harmful=0 :: {LINES[n]}" for n in (6, 7)],
            earlier_reflection="",
            ground_truth={"answer": "7"},
        )
    assert LINES[7] in answer.key_insight
    assert LINES[6] not in answer.key_insight
    assert answer.bullet_tags == {"a-6": "neutral", "a-7": "helpful"}
