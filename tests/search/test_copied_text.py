"""Proposers that copy out of the examples: what they copied goes, what they learned stays."""

import re

import dspy
import pytest

from combee_dspy import Guards, Search
from combee_dspy.events import CopiesRemoved
from combee_dspy.guards import CopyIndex, GuardInput, check
from combee_dspy.lessons import read_section, write_section
from combee_dspy.operators._base import without_copies
from combee_dspy.records import Edit, Lesson, Lessons
from combee_dspy.search import cut_copies
from tests.slow import slow_but
from tests.worlds import ANIMALS, World, events, in_kind, proposer_answer


def row_of(number, animal):
    """A question of thirty words of its own, that ends as the world's questions do."""
    words = " ".join(f"{animal}{number}x{place}" for place in range(24))
    return dspy.Example(
        question=f"{words} so what is the word for {animal}?", answer=animal[::-1].upper()
    )


TRAIN = [
    row_of(number, animal).with_inputs("question") for number in range(4) for animal in ANIMALS
]
VALID = [
    row_of(number, animal).with_inputs("question") for number in range(9, 10) for animal in ANIMALS
]


def quoting(animals):
    """A proposer that puts thirteen words of a row behind its lessons about some animals."""

    def answer(request):
        quotes = {
            animal: quote
            for animal in animals
            for quote in re.findall(rf"((?:{animal}\d+x\d+ ){{13}})", request.text)
        }
        rules = list(dict.fromkeys(re.findall(r"Rule: the word for (\w+) is (\w+)", request.text)))
        lines = [
            f"Rule: the word for {animal} is {word}"
            + (f', as in "{quotes[animal]}"' if animal in quotes else "")
            for animal, word in rules
        ]
        if "shorter_lessons" in request.text or "passages" in request.text:
            return proposer_answer(request)
        if "new_instruction" in request.text:
            return in_kind(request, {"new_instruction": "Give the code word.\n" + ". ".join(lines)})
        return in_kind(request, {"lessons": lines})

    return answer


def learned(world, **kwargs):
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        combee = world.combee(max_metric_calls=200, reflection_minibatch_size=24, **kwargs)
        return combee.compile(dspy.Predict("question -> answer"), trainset=TRAIN, valset=VALID)


@pytest.mark.parametrize("keep", slow_but(("trunk",), ["pareto", "trunk"]))
@pytest.mark.parametrize("how", [{}, {"aggregator": "single-call"}, {"operators": ["rewrite"]}])
@pytest.mark.parametrize("animals", [ANIMALS[2:3], ANIMALS[2:6]], ids=["one", "a third"])
def test_what_is_copied_goes_and_what_was_learned_stays(keep, how, animals):
    program = learned(
        World.made(proposer=quoting(animals)), search=Search(keep=keep, staleness=0), **how
    )
    assert program.combee_report.best_score == 1.0
    text = program.signature.instructions
    assert not CopyIndex(TRAIN).copied(text)
    # A call that writes the text anew may repeat what follows as a section: in other words, it
    # counts as lost.
    most = 2 if "operators" in how else 1
    assert all(1 <= text.count(f"is {animal[::-1].upper()}") <= most for animal in animals)


def test_a_line_that_copies_together_with_others_goes_and_takes_none_with_it():
    """Sentences of one answer, each a lesson, may quote a row that neither quotes alone."""
    quote = " ".join(f"ant0x{place}" for place in range(16)).split()
    lines = ["Be brief.", f"As in {' '.join(quote[:8])}.", f"{' '.join(quote[8:])} says.", "Go on."]
    index, events = CopyIndex(TRAIN), []
    lessons = Lessons("self", tuple(map(Lesson, lines)))
    assert not any(map(index.copied, lines)) and index.copied("\n".join(lines))
    rest = cut_copies(lessons, index, (), events.append)
    assert [lesson.text for lesson in rest.lessons] == [*lines[:2], "Go on."]
    assert events == [CopiesRemoved((lines[2],), 1)]

    edit = Edit(instruction=write_section("Answer.", lines))
    left, refused = without_copies(edit, GuardInput("self", "Answer."), index)
    assert read_section(left.instruction)[1] == [*lines[:2], "Go on."]
    assert refused == (lines[2],)


def test_a_copy_over_many_short_lines_loses_its_last_line():
    quote = [f"ant0x{place}" for place in range(16)]
    lines = [f"{first}, {last}." for first, last in zip(quote[::2], quote[1::2], strict=True)]
    index, target = CopyIndex(TRAIN), GuardInput("self", "Answer.")
    left, refused = without_copies(Edit(instruction=write_section("Answer.", lines)), target, index)
    assert refused == tuple(lines[6:7])
    assert read_section(left.instruction)[1] == lines[:6] + lines[7:]
    assert check(left, Guards(), target, index) is None


def test_readers_of_examples_know_how_much_may_be_copied():
    requests = {}
    for most in (12, 5, None):
        world = World.made()
        learned(world, guards=Guards(max_copied_words=most))
        requests[most] = [
            request.last for request in world.proposer_lm.requests if "narrower" not in request.text
        ]
    assert all("longest_quote ## ]]\n12" in text for text in requests[12]) and requests[12]
    assert all("longest_quote ## ]]\n5" in text for text in requests[5]) and requests[5]
    assert not any("longest_quote" in text for text in requests[None])


def test_a_line_that_is_nothing_but_a_copy_is_refused_once(tmp_path):
    """It is in no text, and no later update is offered it again."""
    copy = TRAIN[0]["question"]

    def answer(request):
        return in_kind(request, {"lessons": [copy, "Rule: the word for cat is TAC"]})

    program = learned(World.made(proposer=answer), log_dir=tmp_path)
    refused = events(tmp_path, "copied")
    reads = events(tmp_path, "scan")
    assert "TAC" in program.signature.instructions and copy not in program.signature.instructions
    assert refused and {tuple(set(event["lines"])) for event in refused} == {(copy,)}
    # Another check refuses it first where right answers alone teach it.
    teaching = [event["step"] for event in reads if copy in str(event["nodes"])]
    assert [event["step"] for event in refused] == teaching and len(teaching) > 1
