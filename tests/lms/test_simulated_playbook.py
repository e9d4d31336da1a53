"""The simulated service as a playbook's reflector and curator, under its capacity laws."""

from __future__ import annotations

from typing import Any

import dspy
import pytest

from combee_dspy.artifacts import Playbook, apply_deltas, read_deltas, write_text
from combee_dspy.artifacts._prompts import CurateInsights, ReflectOnTrajectoryWithTruth
from combee_dspy.lms import CapacityModel, SimulatedConfig, SimulatedService, SimulatedTask
from combee_dspy.lms.simulated import SimulatedQuestion
from combee_dspy.lms.simulated.writing import PLATITUDE

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


@pytest.mark.parametrize("adapter", [dspy.JSONAdapter(), dspy.ChatAdapter()], ids=["json", "chat"])
def test_a_curator_adds_what_the_playbook_lacks(service: Any, adapter: Any) -> None:
    answer = curated(service, adapter, LINES[:3])
    playbook = apply_deltas(EMPTY, read_deltas(answer.operations, EMPTY, 9).deltas).playbook
    assert sorted(bullet.content for bullet in playbook.bullets) == sorted(LINES[:3])
    assert {bullet.section for bullet in playbook.bullets} == {"FORMULAS AND DEFINITIONS"}
    again = curated(service, adapter, LINES[:4], playbook)
    assert [row["content"] for row in again.operations] == [LINES[3]]


def test_a_crowded_curator_takes_in_twelve_and_a_platitude(service: Any) -> None:
    contents = [row["content"] for row in curated(service, dspy.JSONAdapter(), LINES).operations]
    assert len(contents) == 13
    assert contents[-1] == PLATITUDE


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
