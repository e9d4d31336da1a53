"""The ledger of lessons: what a refused child had learned is offered to the next update."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy import Combee
from combee_dspy.engine.lessons import MAX_OFFERS, LessonLedger
from combee_dspy.events import CandidateProposed, CandidateRejected, IterationStarted
from combee_dspy.records import Lesson, Lessons, NodeOutput
from combee_dspy.reflections import normalised
from combee_dspy.testing._scripted_lm import ScriptedLM, as_chat
from tests.engine.conftest import Recorder


def _found(*texts: str, nodes: tuple[NodeOutput, ...] = ()) -> Lessons:
    return Lessons("self", lessons=tuple(Lesson(text, (number,)) for number, text in enumerate(texts)), nodes=nodes)


def test_a_lesson_knows_where_it_was_found() -> None:
    ledger = LessonLedger()
    nodes = (NodeOutput(1, 0, (0,), ("Add the tax.",)), NodeOutput(2, 0, (0, 1), ("add the tax", "Round down.")))
    ledger.add(_found("Add the tax.", "Round down.", nodes=nodes), 3, ["row a", None])
    tax, down = ledger.of("self")
    assert (tax.text, tax.iteration, tax.examples, tax.nodes) == ("Add the tax.", 3, ("row a",), ((1, 0), (2, 0)))
    assert (down.examples, down.nodes) == ((), ((2, 0),))
    ledger.add(_found("Add the TAX"), 9, ["row b"])
    assert len(ledger) == 2
    assert ledger.of("self")[0].iteration == 3
    ledger.carried("candidate", {"self": "Answer.\n- Add the tax."})
    assert [one.candidates for one in ledger.of("self")] == [["candidate"], []]


def test_only_what_the_parent_and_the_scan_lack_is_offered_and_twice_at_most() -> None:
    ledger = LessonLedger()
    ledger.add(_found("In the text.", "Found again.", "An older one.", "A newer one."), 1, [])
    parent, fresh = "Answer.\n- In the text.", [Lesson("found again")]
    for _ in range(MAX_OFFERS):
        offered = ledger.offer("self", parent, fresh)
        assert [one.text for one in offered] == ["A newer one.", "An older one."]
    assert ledger.offer("self", parent, fresh) == ()
    assert [one.text for one in ledger.offer("self", "Answer.")] == ["Found again.", "In the text."]
    assert ledger.offer("other", "Answer.") == ()


def test_offers_stay_within_their_room() -> None:
    ledger = LessonLedger()
    ledger.add(_found(*[f"Lesson {number}: {'word ' * 200}" for number in range(20)]), 1, [])
    assert 0 < len(ledger.offer("self", "")) < 10


@given(
    st.lists(st.lists(st.text(min_size=1, max_size=12), max_size=4), max_size=4),
    st.lists(st.text(max_size=20), max_size=6),
)
def test_a_ledger_comes_back_from_its_dump_whole(rounds: list[list[str]], parents: list[str]) -> None:
    ledger = LessonLedger()
    for number, texts in enumerate(rounds):
        ledger.add(_found(*texts), number, [f"row {place}" for place in range(4)])
        ledger.carried(f"candidate {number}", {"self": " ".join(texts)})
    restored = LessonLedger()
    restored.load(ledger.dump())
    assert restored.dump() == ledger.dump()
    for parent in parents:
        mine, other = ledger.offer("self", parent), restored.offer("self", parent)
        assert mine == other
        assert not {normalised(one.text) for one in mine if normalised(one.text) in normalised(parent)}
    assert all(one.offers <= MAX_OFFERS for one in ledger.of("self"))


FIRST_ROW = "3"
FIRST = "The first scan found this sentence about vowels."


def _propose(request: Any) -> str:
    """One row teaches a lesson of its own; each other row another one."""
    seen = sorted(set(re.findall(r"Number (\d+):", request.text)))
    if FIRST_ROW in seen:
        return as_chat({"lessons": [FIRST]})
    return as_chat({"lessons": [f"Sentence that belongs to row {number} alone." for number in seen]})


def _never(request: Any) -> str:
    """No instruction helps: every child is rejected."""
    return as_chat({"answer": "unknown"})


class _Until:
    def __init__(self, iterations: int) -> None:
        self.iterations = iterations

    def __call__(self, state: Any) -> bool:
        return bool(state.i + 1 >= self.iterations)


def _run(world: Any, last: int = 6, log_dir: Path | None = None, **kwargs: Any) -> tuple[dspy.Module, Recorder]:
    hook = Recorder()
    given = {
        "max_metric_calls": 300,
        "reflection_minibatch_size": 3,
        "operators": ["insert"],
        "num_threads": 4,
        "probe": False,
        "log_dir": None if log_dir is None else str(log_dir),
        "gepa_kwargs": {"stop_callbacks": [_Until(last)]},
        "hooks": [hook],
        **kwargs,
    }
    with dspy.context(lm=ScriptedLM(_never)):
        program = Combee(world.metric, reflection_lm=ScriptedLM(_propose), **given).compile(
            world.student(), trainset=world.examples(18), valset=world.examples(6, start=48)
        )
    return program, hook


def _carriers(hook: Recorder) -> list[int]:
    return [event.iteration for event in hook.of(CandidateProposed) if FIRST in event.texts["self"]]


def test_a_rejected_childs_lesson_is_in_the_next_two_children_and_no_more(world: Any) -> None:
    _, hook = _run(world)
    assert len(hook.of(CandidateRejected)) == len(hook.of(IterationStarted)) == 6
    carriers = _carriers(hook)
    found = carriers[0]
    assert found <= 4, "the row must come early enough for the test to say something"
    assert carriers == [found, found + 1, found + 2]


def test_without_the_ledger_it_is_lost_with_its_child(world: Any) -> None:
    _, hook = _run(world, lesson_ledger=False)
    assert len(_carriers(hook)) == 1


@pytest.mark.parametrize("after", [0, 1, 2])
def test_offers_survive_a_resume_and_are_not_begun_anew(world: Any, tmp_path: Path, after: int) -> None:
    _, whole = _run(world)
    expected = _carriers(whole)
    _, first = _run(world, last=expected[0] + after, log_dir=tmp_path)
    _, second = _run(world, log_dir=tmp_path)
    assert _carriers(first) + _carriers(second) == expected
    proposed = [event.texts for one in (first, second) for event in one.of(CandidateProposed)]
    assert proposed == [event.texts for event in whole.of(CandidateProposed)]


def test_what_the_parent_carries_is_not_offered(world: Any) -> None:
    """Accepted lessons are in the text: no child holds one twice."""
    hook = Recorder()
    Combee(
        world.metric,
        reflection_lm=world.proposer_lm,
        max_metric_calls=160,
        reflection_minibatch_size=4,
        operators=["insert"],
        hooks=[hook],
        probe=False,
    ).compile(world.student(), trainset=world.examples(24), valset=world.examples(8, start=48))
    proposed = hook.of(CandidateProposed)
    assert len(proposed) > 1
    for event in proposed:
        bullets = [line for line in event.texts["self"].splitlines() if line.startswith("- ")]
        assert len(bullets) == len({normalised(line) for line in bullets})
