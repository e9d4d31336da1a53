"""Skills that runs write, and runs that go on from a skill."""

from __future__ import annotations

import json
from pathlib import Path

import dspy
import pytest

from combee_dspy import Combee, learn_lessons, load_skill
from combee_dspy.artifacts import Skill
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.lessons import Book, Remove, Taught, encode_book
from combee_dspy.skills import read_skill, write_skill
from combee_dspy.testing import ScriptedLM
from tests.cli.conftest import shell  # noqa: F401 - a fixture
from tests.traces.test_learning import THINGS, answer, logs
from tests.worlds import ANIMALS, TwoSteps, World, code_word, rows

RULES = [f"Rule: the word for {animal} is {code_word(animal)}" for animal in ANIMALS]


def run(folder, **more):
    options = {"artifact": "skill", "reflection_minibatch_size": 8, "log_dir": folder, **more}
    return World.made().compile(**options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("skills") / "run"
    run(folder)
    return folder


def test_a_run_is_written_as_a_skill_by_one_command(finished, shell):  # noqa: F811 - the fixture
    code, out, err = shell("skill", finished, "--out", "skills/code-words")
    assert (code, err) == (0, "")
    assert "skills/code-words/SKILL.md" in out
    skill = read_skill("skills/code-words")
    assert {lesson.text for lesson in skill.book.served} >= set(RULES[2:])
    assert all(lesson.sources for lesson in skill.book.served)
    assert skill.task.startswith("Given the fields")
    page = Path("skills/code-words/SKILL.md")
    page.write_text(page.read_text().replace(RULES[5], "Rule: ask Ann about foxes"))
    code, _, err = shell("skill", finished, "--out", "skills/code-words")
    assert (code, err) == (0, "")
    later = read_skill("skills/code-words").book
    assert [lesson.text for lesson in later.served if lesson.own] == ["Rule: ask Ann about foxes"]
    assert RULES[5] not in page.read_text()


def test_what_a_memory_looks_up_stands_in_a_skill_under_its_instruction(tmp_path):
    run(tmp_path, artifact="memory")
    skill = load_skill(tmp_path)
    assert skill.task == dspy.Predict("question -> answer").signature.instructions
    assert {lesson.text for lesson in skill.book.served} >= set(RULES[2:])
    assert len(skill.first) < len(skill.book.served)


def test_a_run_goes_on_from_a_skill(finished, tmp_path):
    write_skill(tmp_path / "words", load_skill(finished))
    book = read_skill(tmp_path / "words").book
    before = {lesson.id: lesson for lesson in book.lessons}
    # The first half alone, as if the run had been about fewer animals.
    half = Book(tuple(lesson for lesson in book.lessons if lesson.text in RULES[:6]))
    program = run(tmp_path / "run", artifact=Skill(book=encode_book(half)))
    instruction = program.signature.instructions
    assert all(rule in instruction for rule in RULES[2:])
    start = rows(tmp_path / "run", "SELECT data FROM event WHERE kind = 'candidate' ORDER BY id")[0]
    assert RULES[4] in json.dumps(start["data"])
    assert RULES[8] not in json.dumps(start["data"])
    learned = load_skill(tmp_path / "run").book
    earlier = learned.find(half.lessons[-1].id)
    assert earlier is not None
    assert set(before[earlier.id].sources) <= set(earlier.sources)


def test_what_people_decided_stays_so_in_the_next_run(finished, tmp_path):
    book = load_skill(finished).book
    removed = next(lesson for lesson in book.served if lesson.text == RULES[5])
    book = book.edit([Remove(removed.id)]).book.add([Taught("Ask Ann about foxes.")], born=-1)
    program = run(tmp_path, artifact=Skill(book=encode_book(book)))
    assert RULES[5] not in program.signature.instructions
    assert RULES[6] in program.signature.instructions
    later = load_skill(tmp_path).book
    assert [lesson.text for lesson in later.served if lesson.own] == ["Ask Ann about foxes."]
    again = later.find(removed.id)
    assert again is not None
    assert again.state == "removed_by_user"


def test_a_program_reads_no_more_than_the_limit():
    taught = [Taught(f"Code {n} is Q{n * 3}.", ("a",) * (n == 77)) for n in range(200)]
    taught[77] = Taught("Code 77 is Q231.", ("a", "b", "c"))
    artifact = Skill(book=encode_book(Book().add(taught, born=0)), max_tokens=100)
    student = dspy.Predict("question -> answer")
    seed = artifact.seed(student)["self"]
    assert "Code 77 is Q231." in seed
    assert 15 < seed.count("\n- ") < 25
    assert len(artifact.begin(seed).served) == 200
    assert Combee(lambda *_: 1.0, artifact=artifact, auto="light", reflection_lm=ScriptedLM(answer))


def test_the_predictor_of_a_book_is_named():
    book = encode_book(Book().add([Taught("Be brief.", ("a",))], born=0))
    with pytest.raises(ArgumentValueError, match="Name the one that the book is about: first, sec"):
        Skill(book=book).seed(TwoSteps())
    artifact = Skill(book=book, predictor="second")
    texts = artifact.seed(TwoSteps())
    assert "Be brief." in texts["second"]
    assert "Be brief." not in texts["first"]
    assert artifact.begin(texts["second"]).lessons[0].sources == ("a",)
    assert not artifact.begin(texts["first"]).lessons


def test_the_book_of_a_run_is_named(finished, tmp_path):
    with pytest.raises(ArgumentValueError, match="none of the run's books"):
        load_skill(finished, predictor="other")
    run(tmp_path, train=2, artifact="instruction", max_metric_calls=20)
    with pytest.raises(ArgumentValueError, match="holds no book"):
        load_skill(tmp_path)


def test_learning_goes_on_from_a_skill_and_keeps_edits(tmp_path):
    reader = ScriptedLM(answer)
    first = learn_lessons(logs(THINGS[:3]), reflection_lm=reader, task="Give the code.")
    *_, page = first.save(tmp_path, skill="thing-codes")
    assert page == tmp_path / "thing-codes" / "SKILL.md"
    assert "Not validated." in page.read_text().splitlines()[2]
    page.write_text(page.read_text().replace("For thingb, the code is bbb.", "For thingb, call."))
    book = read_skill(page.parent).book
    second = learn_lessons(
        logs(THINGS[1:5]), reflection_lm=reader, book=book, log_dir=tmp_path / "log"
    )
    second.save(tmp_path, skill="thing-codes")
    served = {lesson.text: lesson for lesson in read_skill(page.parent).book.served}
    assert list(served) == [
        "For thingb, call.",
        "For thinga, the code is aaa.",
        "For thingc, the code is ccc.",
        "For thingd, the code is ddd.",
        "For thinge, the code is eee.",
    ]
    assert served["For thingb, call."].own
    assert read_skill(page.parent).task == "Give the code."
    assert load_skill(tmp_path / "log").task == ""
    assert load_skill(tmp_path / "log").book.served[-1].text == "For thinge, the code is eee."
