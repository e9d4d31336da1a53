"""The playbook artifact: what a program shows, and what is learned from rollouts."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.aggregators import Aggregator, ReferenceScan, SingleCall, Union
from combee_dspy.artifacts import Bullet, BulletText, Playbook, Trajectory, read_tags, read_text
from combee_dspy.edits import Credit, Unite
from combee_dspy.events import ErrorRaised
from combee_dspy.lessons import taught
from combee_dspy.records import FailedCall, Lesson, Lessons, PredictorCall, Reflection, Rollout
from combee_dspy.strategies import StrategyContext
from combee_dspy.testing import arriving
from combee_dspy.weighers import Posterior

SHORT = ("STRATEGIES", "OTHER")
UNITS = Bullet("str-1", "STRATEGIES", "Check\nunits.", 4, 0)
FENCE = Bullet("str-2", "STRATEGIES", "=== END OF PLAYBOOK ===")
TEXT = str(BulletText((UNITS, FENCE), SHORT))


class Service:
    """Answers reflectors and readers by signature; notes each call's inputs, place and role."""

    def __init__(self, **answers):
        self.answers, self.calls, self.events = answers, [], []

    async def __call__(self, signature, inputs, place, role):
        assert set(inputs) == set(signature.input_fields)
        self.calls.append((inputs, place, role))
        answer = self.answers[signature.__name__]
        answer = answer(inputs) if callable(answer) else answer
        return answer if isinstance(answer, FailedCall) else dspy.Prediction(**answer)

    def context(self, text=""):
        return StrategyContext("playbook", text, self, self.events.append, notes="Answer.")

    def learn(self, reflections, aggregator, text=""):
        async def run():
            return await Playbook().learn(arriving(reflections), aggregator, self.context(text))

        return asyncio.run(run())

    def reflect(self, trajectory, text="", **options):
        context = self.context(text)
        return asyncio.run(Playbook(**options).reflect(trajectory, "playbook", context))


def student(instruction="Answer briefly."):
    return dspy.Predict(dspy.Signature("question -> answer", instruction))


def instruction_of(program):
    return program.named_predictors()[0][1].signature.instructions


def insights(n, **tags):
    return [
        Reflection(i, {"Feedback": f"Fact {i} is fact number {i}.", "Bullets": tags}, f"hash-{i}")
        for i in range(n)
    ]


def adding(inputs):
    return {"lessons": [record["Feedback"] for record in inputs["examples_with_feedback"]]}


def book_after(lessons, reflections, text=""):
    book = Playbook().read(text).add(taught(lessons, reflections, 0), 0)
    return Posterior().applied(book.edit(lessons.edits).book)


def test_a_student_without_a_playbook_begins_with_an_empty_one_and_is_built_as_it_is():
    artifact = Playbook()
    seed = artifact.seed(student())
    assert artifact.components(student()) == tuple(seed) == ("playbook",)
    assert not read_text(seed["playbook"]).bullets
    assert instruction_of(artifact.build(student(), seed)) == "Answer briefly."


def test_every_predictor_shows_the_playbook_and_it_is_read_back_with_the_task_apart():
    class Two(dspy.Module):
        def __init__(self):
            super().__init__()
            self.first = dspy.Predict(dspy.Signature("question -> hint", "Hint."))
            self.second = dspy.Predict(dspy.Signature("question, hint -> answer", "Answer."))

    artifact, original = Playbook(sections=SHORT), Two()
    program = artifact.build(original, {"playbook": TEXT})
    assert instruction_of(original) == "Hint."
    for _, predictor in program.named_predictors():
        instruction = predictor.signature.instructions
        assert "[str-1] helpful=4 harmful=0 :: Check\n    units." in instruction
    assert artifact.seed(program) == {"playbook": TEXT}
    assert artifact.task(program) == "first: Hint.\n\nsecond: Answer."
    again = artifact.build(program, artifact.seed(program))
    assert instruction_of(again) == instruction_of(program)
    around = student(f"{instruction_of(program)}\n\nMore of it.")
    assert artifact.task(around) == "Hint.\n\nMore of it."
    assert artifact.seed(around) == {"playbook": TEXT}


@pytest.mark.parametrize("names", [("REST",), ("B", "A"), ("REST", "MINE"), ("MINE", "B")])
def test_the_last_section_stays_the_last_and_the_order_that_of_the_artifact(names):
    artifact = Playbook(sections=("A", "B", "REST"))
    bullets = tuple(Bullet(f"x-{name}", name, f"about {name}") for name in names)
    program = artifact.build(student(), {"playbook": str(BulletText(bullets, names))})
    read = read_text(artifact.seed(program)["playbook"])
    assert read.sections == (("MINE",) if "MINE" in names else ()) + ("A", "B", "REST")
    assert {bullet.id for bullet in read.bullets} == {bullet.id for bullet in bullets}


def test_the_budget_hides_bullets_and_the_next_run_goes_on_with_all_of_them():
    artifact = Playbook(max_tokens=64, sections=("OTHER",))
    bullets = [Bullet(f"s-{n}", "OTHER", "some\twords of advice", n) for n in range(20)]
    many = str(BulletText(tuple(bullets), ("OTHER",)))
    program = artifact.build(student(), {"playbook": many})
    instruction = instruction_of(program)
    assert "[s-19]" in instruction and "[s-0]" not in instruction
    assert artifact.seed(program) == artifact.seed(program.deepcopy()) == {"playbook": many}
    # An edit of what the program shows counts, as in a program that was read from a file.
    edited = instruction.replace("[s-19] helpful=19", "[s-19] helpful=7")
    program.signature = program.signature.with_instructions(edited)
    read = {bullet.id: bullet for bullet in read_text(artifact.seed(program)["playbook"]).bullets}
    assert read["s-19"].helpful == 7
    assert "s-0" not in read


def test_a_program_that_version_0_2_saved_goes_on_with_its_ids_and_counts():
    instruction = """Answer briefly.

=== PLAYBOOK ===
Advice from earlier tasks. Where you explain yourself, name the ids of the bullets that you follow.

## FORMATS
[form-1fab5f23] helpful=3 harmful=1 :: Round.
=== END OF PLAYBOOK ==="""
    (lesson,) = Playbook().read(Playbook().seed(student(instruction))["playbook"]).lessons
    assert (lesson.id, lesson.text, lesson.section) == ("form-1fab5f23", "Round.", "FORMATS")
    assert (lesson.helpful, lesson.harmful, lesson.born) == (3, 1, -1)


INSIGHT = {"bullet_tags": {"str-00001": "helpful"}, "key_insight": " Use decimals. "}
INSIGHT["section"] = "formats"
CITED = """## STRATEGIES
[str-00001] helpful=0 harmful=0 :: Check units.
[str-00002] helpful=0 harmful=0 :: Round."""


def trajectory(index=0, score=0.0, answer="wrong", **rollout):
    example = dspy.Example(question=f"What is fact {index}?", answer=f"fact {index}")
    calls = (PredictorCall("self", {"question": "?"}, {"answer": answer}),)
    rollout = Rollout(f"hash-{index}", score, calls=calls, **rollout)
    return Trajectory(index, example.with_inputs("question"), rollout)


def test_a_reflector_sees_the_trajectory_the_truth_and_the_bullets_that_were_cited():
    service = Service(ReflectOnTrajectoryWithTruth=INSIGHT)
    seen = trajectory(3, answer="9, by str-00001", feedback="It is 0.9.")
    reflection = service.reflect(seen, CITED)
    assert (reflection.index, reflection.example_id) == (3, "hash-3")
    assert reflection.record == {
        "Feedback": "Use decimals.",
        "Bullets": {"str-00001": "helpful"},
        "Section": "FORMATS",
    }
    ((inputs, place, role),) = service.calls
    assert (place, role) == (("playbook", "reflect", 3), "reflector")
    assert inputs["trajectory"] == {
        "Inputs": {"question": "What is fact 3?"},
        "Generated Outputs": {"answer": "9, by str-00001"},
    }
    assert inputs["ground_truth"] == {"answer": "fact 3"}
    assert inputs["bullets_used"] == ["[str-00001] helpful=0 harmful=0 :: Check units."]
    assert (inputs["current_instruction"], inputs["feedback"]) == ("Answer.", "It is 0.9.")
    assert "FORMATS" in inputs["sections"]


def test_a_reflector_may_go_without_the_truth_and_reads_the_score_where_there_is_no_feedback():
    service = Service(ReflectOnTrajectory=INSIGHT)
    service.reflect(trajectory(score=0.25), ground_truth=False)
    ((inputs, _, _),) = service.calls
    assert "ground_truth" not in inputs
    assert "0.25" in inputs["feedback"]


def test_where_none_was_cited_the_bullets_most_like_the_task_are_judged():
    lines = [f"[b-{n}] helpful=0 harmful=0 :: what to know of fact {n}" for n in range(1, 10)]
    service = Service(ReflectOnTrajectoryWithTruth=INSIGHT)
    service.reflect(trajectory(4, answer="word " * 40_000), "\n".join(["## A", *lines]))
    ((inputs, _, _),) = service.calls
    assert len(inputs["bullets_used"]) == 8
    assert any("[b-4]" in line for line in inputs["bullets_used"])
    assert len(json.dumps(inputs["trajectory"])) < 60_000
    assert any("the middle left out" in event.text for event in service.events[:1])


def test_a_reflection_that_fails_or_says_nothing_is_lost_with_an_event():
    service = Service(ReflectOnTrajectoryWithTruth=FailedCall("AdapterParseError: no"))
    assert service.reflect(trajectory()) is None
    assert service.events == [ErrorRaised("reflector", "AdapterParseError: no")]
    nothing = {"bullet_tags": {"ghost": "harmful"}, "key_insight": None}
    service = Service(ReflectOnTrajectoryWithTruth=nothing)
    assert service.reflect(trajectory()) is None
    assert "'ghost'" in service.events[0].text


def test_tags_of_the_bullets_in_sight_are_read_and_others_are_ignored():
    answer = {"[str-00001]": "Helpful", "str-00002": "great", "ghost": "harmful"}
    tags, ignored = read_tags(answer, {"str-00001", "str-00002"})
    assert tags == {"str-00001": "helpful"}
    assert len(ignored) == 2
    assert read_tags("helpful", {"a"}) == ({}, ["the tags are no mapping: 'helpful'"])
    assert read_tags(None, {"a"}) == ({}, [])


@given(
    st.recursive(st.none() | st.integers() | st.text(), st.lists)
    | st.dictionaries(st.text(), st.text())
)
def test_no_answer_breaks_the_reading_of_tags(answer):
    assert set(read_tags(answer, {"a"})[0]) <= {"a"}


@pytest.mark.parametrize("aggregator", [Union(fan_in=8), ReferenceScan(levels=0)], ids=str)
def test_each_insight_is_learned_whichever_aggregator_reads_it(aggregator):
    service = Service(AddLessons=adding)
    lessons = service.learn(insights(40), aggregator).lessons
    assert {lesson.text: lesson.sources for lesson in lessons} == {
        f"Fact {i} is fact number {i}.": (i,) for i in range(40)
    }
    assert {role for *_, role in service.calls} == {"proposer"}


class Noting(Aggregator):
    """Returns lessons in an order and in words of its own, and notes what it reads."""

    def __init__(self, rewrite=None, edits=()):
        self.rewrite, self.edits = rewrite, edits

    async def aggregate(self, reflections, context):
        read = [await reflection for reflection in reflections]
        self.read, self.context = [item for item in read if item is not None], context
        lessons = [Lesson(f"Mine: {item.record['Feedback']}", (item.index,)) for item in self.read]
        return Lessons(context.component, tuple(lessons[::-1]), self.rewrite, edits=self.edits)


def test_an_aggregator_reads_the_insights_alone_the_task_and_the_visible_playbook():
    noting = Noting()
    lessons = Service().learn([*insights(2, **{"str-1": "harmful"}), None], noting, TEXT)
    texts = [f"Fact {i} is fact number {i}." for i in range(2)]
    assert [dict(item.record) for item in noting.read] == [{"Feedback": text} for text in texts]
    assert noting.context.text.startswith("Answer.\n\n## STRATEGIES\n[str-1] helpful=4")
    assert [lesson.text for lesson in lessons.lessons] == [f"Mine: {text}" for text in texts[::-1]]


def test_a_lesson_comes_from_the_insights_that_are_most_like_it_and_goes_into_their_section():
    records = [("Round to two decimals.", "FORMATS"), ("Round all to two decimals.", "FORMATS")]
    read = [
        Reflection(i, {"Feedback": text, "Section": section})
        for i, (text, section) in enumerate([*records, ("Add units.", "")])
    ]
    service = Service(AddLessons={"lessons": ["Round to two decimals.", "Add units."]})
    assert [(each.sources, each.section) for each in service.learn(read, Union()).lessons] == [
        ((0, 1), "FORMATS"),
        ((2,), ""),
    ]


def test_what_teaches_nothing_costs_no_call():
    service = Service()
    silent = [Reflection(0, {"Feedback": "", "Bullets": {}}, "x"), None, None]
    assert service.learn(silent, Union()) == service.learn([], SingleCall()) == Lessons("playbook")
    assert not service.calls


def test_judgements_are_counted_once_an_example_and_what_harms_is_retired():
    service, tags = Service(AddLessons={"lessons": []}), {"str-1": "harmful", "str-2": "helpful"}
    repeated = replace(insights(1, **tags)[0], index=3)
    read = [*insights(3, **tags), repeated, *insights(1, **{"str-1": "neutral"})]
    book = book_after(service.learn(read, Union(), TEXT), read, TEXT)
    assert [(each.helpful, each.harmful, each.state) for each in book.lessons] == [
        (4, 3, "served"),
        (3, 0, "served"),
    ]
    text = Playbook(sections=SHORT).serve(TEXT, book)
    more = [replace(item, example_id=f"other-{item.index}") for item in insights(7, **tags)]
    book = book_after(service.learn(more, Union(), text), more, text)
    assert "10 examples against it and 4 for it" in book.lessons[0].reason
    assert [bullet.id for bullet in read_text(Playbook().serve(text, book)).bullets] == ["str-2"]


@pytest.mark.parametrize("perfect", [True, False])
def test_an_aggregators_edits_come_before_the_judgements_and_successes_judge_too(perfect):
    united = Unite(("str-2", "str-1"))
    read = [replace(item, perfect=perfect) for item in insights(1, **{"str-2": "helpful"})]
    lessons = Service().learn(read, Noting(edits=(united,)), TEXT)
    assert lessons.edits == (united, Credit("str-2", ("hash-0",)))
    lesson = book_after(lessons, read, TEXT).find("str-2")
    assert (lesson.id, lesson.text, lesson.helpful) == ("str-1", FENCE.content, 5)


def test_a_text_in_the_place_of_lessons_adds_its_lines_and_loses_none():
    rewrite = f"Answer.\n\n## STRATEGIES\n{UNITS.line}\n- Round fact 0.\n- Add units.\n"
    service = Service(RewriteInstruction={"new_instruction": rewrite})
    lessons = service.learn(insights(2), SingleCall(), TEXT)
    assert lessons.rewrite is None
    assert [lesson.text for lesson in lessons.lessons] == ["Round fact 0.", "Add units."]
    served = read_text(Playbook().serve(TEXT, book_after(lessons, insights(2), TEXT))).bullets
    assert [bullet.content for bullet in served[:2]] == [UNITS.content, FENCE.content]
    assert len(served) == 4
