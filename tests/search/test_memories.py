"""Memories in whole runs: what is searched is what is served."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import dspy
import pytest

from combee_dspy import load_candidate, load_skill
from combee_dspy.artifacts import Memory
from combee_dspy.diversity import CharNgrams, Embedder, Vectors
from combee_dspy.exceptions import ArgumentValueError, UnknownStrategyError
from combee_dspy.memory import (
    BM25,
    Embeddings,
    Lookup,
    Retriever,
    _embeddings,
    load_memory,
    read_memory,
)
from combee_dspy.strategies import parameters
from combee_dspy.testing import ScriptedRequest
from tests.worlds import (
    ANIMALS,
    TwoSteps,
    World,
    animal_of,
    code_word,
    examples,
    in_kind,
    proposer_answer,
)

_LINE = re.compile(r"the word for \w+ is \w+")


def test_a_run_learns_more_than_a_call_reads(tmp_path: Path) -> None:
    world = World.made()
    program = world.compile(artifact=Memory(k=2), log_dir=tmp_path, heldout=12)
    report = program.combee_report
    assert report.heldout.after == 1.0
    assert len(read_memory(report.texts["self"], 2).lookup) >= len(ANIMALS) - 2
    # Rollouts saw what the served program shows.
    assert max(len(_LINE.findall(request.system)) for request in world.task_lm.requests) == 2


def test_nobody_reads_more_of_a_memory_than_calls_were_shown(tmp_path: Path) -> None:
    world = World.made()
    small = {"reflection_minibatch_size": 3, "skip_perfect_score": False}
    world.compile(artifact=Memory(k=2), log_dir=tmp_path, train=48, **small)
    asked = [request.text for request in world.proposer_lm.requests]
    assert any("contradictory" in text for text in asked)
    assert not any("Lessons to look up" in text or "[cues:" in text for text in asked)


def test_what_it_returns_is_saved_loaded_and_found_in_the_journal(tmp_path: Path) -> None:
    world = World.made()
    program = world.compile(artifact="memory", log_dir=tmp_path / "run")
    program.save(tmp_path / "program.json")
    others = (
        load_memory(dspy.Predict("question -> answer"), tmp_path / "program.json"),
        load_candidate(dspy.Predict("question -> answer"), tmp_path / "run", "best"),
    )
    row = examples(1, 5)[0]
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        answers = [other(question=row.question).answer for other in (program, *others)]
    assert answers == [row.answer] * 3


@parameters
class Own(Retriever):
    """What no distribution publishes."""

    name: ClassVar[str] = "own"

    def index(self, texts: Sequence[str]) -> Lookup:
        return BM25().index(texts)


def test_a_retriever_that_nobody_publishes_is_given_to_load(tmp_path: Path) -> None:
    program = World.made().compile(artifact=Memory(retriever=Own()), log_dir=tmp_path)
    assert (tmp_path / "report.html").exists()
    student, own = dspy.Predict("question -> answer"), Memory(retriever=Own())
    loaded = load_candidate(student, tmp_path, "best", artifact=own)
    assert loaded.dump_state() == program.dump_state()
    assert load_skill(tmp_path, artifact=own).book.served
    with pytest.raises(UnknownStrategyError, match="an object of a class of your own"):
        load_candidate(student, tmp_path, "best")
    with pytest.raises(ArgumentValueError, match="is another than the run's"):
        load_candidate(student, tmp_path, "best", artifact=Memory())


@parameters
class Hosted(Embedder):
    """Waits for a service; notes texts that a thread with a running loop waited for."""

    name: ClassVar[str] = "hosted"
    asked: ClassVar[list[str]] = []
    held_up: ClassVar[list[str]] = []

    def embed(self, texts: Sequence[str]) -> Vectors:
        self.asked.extend(texts)
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            self.held_up.extend(texts)
        return CharNgrams().embed(texts)


def test_no_vector_holds_the_searchs_loop_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor where none is at hand any more, as in a run that goes on."""
    monkeypatch.setattr(_embeddings, "_HELD", 0)
    World.made(in_capitals, read_harm).compile(
        artifact=Memory(k=2, retriever=Embeddings(Hosted())), max_metric_calls=200
    )
    assert Hosted.asked
    assert not Hosted.held_up


def test_each_predictor_has_a_memory_of_its_own(tmp_path: Path) -> None:
    program = World.made().compile(TwoSteps(), artifact=Memory(k=1), log_dir=tmp_path)
    texts = program.combee_report.texts
    assert set(texts) == {"first", "second"}
    assert read_memory(texts["second"], 1).lookup


def in_capitals(request: ScriptedRequest) -> str:
    """Know the codes of all animals, and write them as the prompt says."""
    animal = animal_of(request.last)
    spoilt = f"small letters for the {animal}" in request.system
    capitals = "capital letters" in request.system and not spoilt
    word = code_word(animal)
    return in_kind(request, {"answer": word if capitals else word.lower()})


def read_capitals(request: ScriptedRequest) -> str:
    if "contradictory" in request.text:
        return proposer_answer(request)
    # A lesson of its own for each animal, and one that no word of a question points to.
    animals = [
        line for animal in ANIMALS if (line := f"Mind the {animal}.") and animal in request.text
    ]
    return in_kind(request, {"lessons": [*animals, "Write capital letters."]})


def read_harm(request: ScriptedRequest) -> str:
    """Teach what helps, and what spoils the answers to some questions."""
    if "contradictory" in request.text:
        return proposer_answer(request)
    bad = [f"Use small letters for the {animal}." for animal in ANIMALS if animal in request.text]
    return in_kind(request, {"lessons": ["Write capital letters.", *bad]})


def test_a_rule_that_no_word_points_to_is_learned(tmp_path: Path) -> None:
    world = World.made(in_capitals, read_capitals)
    program = world.compile(artifact=Memory(k=1), log_dir=tmp_path, heldout=12)
    assert program.combee_report.heldout.before == 0.0
    assert program.combee_report.heldout.after == 1.0
    text = read_memory(program.combee_report.texts["self"], 1)
    assert "Write capital letters." in text.always


def test_the_report_finds_the_lessons_of_a_memory_in_its_text(tmp_path: Path) -> None:
    World.made().compile(artifact=Memory(k=1), log_dir=tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    book = page.split('id="book"')[1].split("</table>")[0]
    assert "not in the chosen text" not in book
    answers = page.split('id="answers"')[1].split("</section>")[0].split("<details")[1:]
    for answer in answers:
        lesson = f"the word for {animal_of(answer)} is"
        assert (lesson in book) == (lesson in answer.partition("lessons shown")[2])


def test_validation_chooses_how_many_are_looked_up(tmp_path: Path) -> None:
    world = World.made()
    program = world.compile(artifact="memory", log_dir=tmp_path, max_metric_calls=400)
    text = read_memory(program.combee_report.texts["self"], 0)
    assert text.k < 4, "as good with fewer"


def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    world = World.made()
    first: Any = world.compile(artifact=Memory(k=2), log_dir=tmp_path)
    asked = world.asked
    again: Any = world.compile(artifact=Memory(k=2), log_dir=tmp_path)
    assert world.asked == asked
    assert again.combee_report.texts == first.combee_report.texts
