"""Answers that a run before has paid for are not bought again."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy.lms import LMPort
from combee_dspy.records import FailedCall
from combee_dspy.rollouts import EvaluationCache, ExecutorSession, Threads
from combee_dspy.testing._scripted_lm import ScriptedLM, as_json


class Ask(dspy.Signature):
    """Ask."""

    question: str = dspy.InputField()
    answers: list[str] = dspy.OutputField()


@pytest.fixture
def session() -> Iterator[ExecutorSession]:
    running = Threads().start(4)
    yield running
    running.close()


def _sampling() -> ScriptedLM:
    """An LM that never gives the same answer twice."""
    draws, lock = itertools.count(), threading.Lock()

    def answer(request: Any) -> str:
        with lock:
            return as_json({"answers": [f"draw {next(draws)}"]})

    return ScriptedLM(answer, temperature=1.0)


def _texts(answers: Any) -> list[str]:
    return [answer.answers[0] for answer in answers]


def test_the_kth_identical_request_gets_the_kth_answer(session: ExecutorSession, tmp_path: Path) -> None:
    path, same = tmp_path / "cache.sqlite", [{"question": "q"}, {"question": "q"}, {"question": "r"}]
    first = _sampling()
    port = LMPort(session, {"proposer": first}, cache=EvaluationCache(path))
    bought = _texts(port.predict(Ask, same)) + _texts(port.predict(Ask, same[:1]))
    assert len(set(bought)) == 4
    second = _sampling()
    again = LMPort(session, {"proposer": second}, cache=(cache := EvaluationCache(path)))
    assert _texts(again.predict(Ask, same)) + _texts(again.predict(Ask, same[:1])) == bought
    assert not second.requests
    assert cache.stats.answered == 4
    again.predict(Ask, same[:1])
    assert len(second.requests) == 1


def test_another_model_role_or_temperature_is_another_request(session: ExecutorSession, tmp_path: Path) -> None:
    cache = EvaluationCache(tmp_path / "cache.sqlite")
    lm = _sampling()
    LMPort(session, {"proposer": lm}, cache=cache).predict(Ask, [{"question": "q"}])
    fresh = lambda given: LMPort(session, {"proposer": given, "reflector": lm.copy(max_tokens=9)}, cache=cache)  # noqa: E731
    for port, kwargs in (
        (fresh(lm.copy(temperature=0.5)), {}),
        (fresh(lm), {"role": "reflector"}),
        (LMPort(session, {"proposer": lm}, dspy.ChatAdapter(), cache=cache), {}),
    ):
        before = len(lm.requests)
        port.predict(Ask, [{"question": "q"}], **kwargs)
        assert len(lm.requests) > before
    before = len(lm.requests)
    fresh(lm).at(0.25)(Ask, [{"question": "q"}])
    assert len(lm.requests) == before + 1
    fresh(lm).predict(Ask, [{"question": "q"}])
    assert len(lm.requests) == before + 1


def test_failures_are_asked_again(session: ExecutorSession, tmp_path: Path) -> None:
    cache = EvaluationCache(tmp_path / "cache.sqlite")
    broken = ScriptedLM(lambda request: "no answer")
    (failed,) = LMPort(session, {"proposer": broken}, cache=cache).predict(Ask, [{"question": "q"}])
    assert isinstance(failed, FailedCall)
    working = ScriptedLM(lambda request: as_json({"answers": ["a"]}))
    assert _texts(LMPort(session, {"proposer": working}, cache=cache).predict(Ask, [{"question": "q"}])) == ["a"]


def test_without_a_file_nothing_is_kept(session: ExecutorSession) -> None:
    lm = _sampling()
    for _ in range(2):
        LMPort(session, {"proposer": lm}, cache=EvaluationCache()).predict(Ask, [{"question": "q"}])
    assert len(lm.requests) == 2
