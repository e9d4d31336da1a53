"""The playbook artifact: what a program shows, and what is learned from rollouts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import dspy
import pytest

from combee_dspy.aggregators import Aggregator, ReferenceScan, SingleCall, Union
from combee_dspy.artifacts import Bullet, BulletText, Playbook, Trajectory, read_text
from combee_dspy.edits import Credit, Unite
from combee_dspy.events import ErrorRaised, Event, WarningRaised
from combee_dspy.lessons import taught as taught_by
from combee_dspy.records import FailedCall, Lesson, Lessons, PredictorCall, Reflection, Rollout
from combee_dspy.strategies import StrategyContext
from combee_dspy.weighers import Posterior

SHORT = ("STRATEGIES", "OTHER")
BOOK = BulletText(
    (
        Bullet("str-1", "STRATEGIES", "Check\nunits.", 4, 0),
        Bullet("str-2", "STRATEGIES", "=== END OF PLAYBOOK ==="),
    ),
    SHORT,
)


class Service:
    """Answers reflectors and readers by a script, and keeps what they were asked."""

    def __init__(self, **answers):
        self.answers = answers
        self.asked: list[tuple[str, Mapping[str, Any], tuple[str | int, ...], str]] = []
        self.events: list[Event] = []

    async def __call__(self, signature, inputs, place, role):
        assert set(inputs) == set(signature.input_fields)
        self.asked.append((signature.__name__, inputs, place, role))
        await asyncio.sleep(0)
        answer = self.answers[signature.__name__]
        answer = answer(inputs) if callable(answer) else answer
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, FailedCall) else dspy.Prediction(**answer)

    def context(self, text="", **more):
        return StrategyContext(
            "playbook",
            text,
            self,
            self.events.append,
            notes="Answer.",
            **more,
        )

    def inputs(self, name):
        return [inputs for asked, inputs, _, _ in self.asked if asked == name]


def student(instruction="Answer briefly."):
    return dspy.Predict(dspy.Signature("question -> answer", instruction))


def told(program):
    return program.named_predictors()[0][1].signature.instructions


def trajectory(index=0, score=0.0, **more):
    example = dspy.Example(question=f"What is fact {index}?", answer=f"fact {index}").with_inputs(
        "question"
    )
    given = {"calls": (PredictorCall("self", {"question": "?"}, {"answer": "wrong"}),), **more}
    return Trajectory(index, example, Rollout(f"hash-{index}", score, **given))


def adding(inputs):
    return {"lessons": [record["Feedback"] for record in inputs["examples_with_feedback"]]}


async def _ready(reflections):
    futures = []
    for one in reflections:
        futures.append(asyncio.get_running_loop().create_future())
        futures[-1].set_result(one)
    return futures


def learn(service, reflections, aggregator, text=""):
    async def run():
        return await Playbook().learn(await _ready(reflections), aggregator, service.context(text))

    return asyncio.run(run())


def taught(n, **tags):
    return [
        Reflection(i, {"Feedback": f"Fact {i} is fact number {i}.", "Bullets": tags}, f"hash-{i}")
        for i in range(n)
    ]


def test_a_student_without_a_playbook_begins_with_an_empty_one_and_is_built_as_it_is():
    artifact = Playbook()
    seed = artifact.seed(student())
    assert artifact.components(student()) == tuple(seed) == ("playbook",)
    assert not read_text(seed["playbook"]).bullets
    assert told(artifact.build(student(), seed)) == "Answer briefly."


def test_what_is_shown_is_read_back_with_the_task_apart():
    artifact, original = Playbook(sections=SHORT), student()
    program = artifact.build(original, {"playbook": str(BOOK)})
    assert told(original) == "Answer briefly."
    assert "[str-1] helpful=4 harmful=0 :: Check\n    units." in told(program)
    assert artifact.seed(program) == {"playbook": str(BOOK)}
    assert artifact.task(program) == "Answer briefly."
    again = artifact.build(program, artifact.seed(program))
    assert told(again) == told(program)


def test_every_predictor_reads_the_same_playbook():
    class Two(dspy.Module):
        def __init__(self):
            super().__init__()
            self.first = dspy.Predict(dspy.Signature("question -> hint", "Hint."))
            self.second = dspy.Predict(dspy.Signature("question, hint -> answer", "Answer."))

    artifact = Playbook(sections=SHORT)
    program = artifact.build(Two(), {"playbook": str(BOOK)})
    assert all(
        "[str-1]" in predictor.signature.instructions for _, predictor in program.named_predictors()
    )
    assert artifact.task(program) == "first: Hint.\n\nsecond: Answer."
    assert artifact.seed(program) == {"playbook": str(BOOK)}


def test_what_stands_around_a_playbook_stays_apart():
    artifact = Playbook(sections=SHORT)
    shown = told(artifact.build(student(), {"playbook": str(BOOK)}))
    assert artifact.task(student(f"{shown}\n\nMore of it.")) == "Answer briefly.\n\nMore of it."
    assert artifact.seed(student(f"{shown}\n\nMore of it.")) == {"playbook": str(BOOK)}


def test_the_last_section_stays_the_last_and_the_order_that_of_the_artifact():
    artifact = Playbook(sections=("A", "B", "REST"))
    for standing in (("REST",), ("B", "A"), ("REST", "MINE"), ("MINE", "B")):
        book = BulletText(
            tuple(Bullet(f"x-{name}", name, f"about {name}") for name in standing), standing
        )
        program = artifact.build(student(), {"playbook": str(book)})
        found = read_text(artifact.seed(program)["playbook"])
        assert found.sections == (("MINE",) if "MINE" in standing else ()) + ("A", "B", "REST")
        assert {one.id for one in found.bullets} == {one.id for one in book.bullets}


def test_the_budget_hides_bullets_and_the_next_run_goes_on_with_all_of_them():
    artifact = Playbook(max_tokens=64, sections=("OTHER",))
    many = str(
        BulletText(
            tuple(Bullet(f"s-{n}", "OTHER", "some words of advice", n) for n in range(20)),
            ("OTHER",),
        )
    )
    program = artifact.build(student(), {"playbook": many})
    assert "[s-19]" in told(program)
    assert "[s-0]" not in told(program)
    assert artifact.seed(program) == {"playbook": many}
    assert artifact.seed(program.deepcopy()) == {"playbook": many}
    # Who edits what stands there means it; and a program read from a file knows what it shows.
    edited = told(program).replace("[s-19] helpful=19", "[s-19] helpful=7")
    program.signature = program.signature.with_instructions(edited)
    found = {bullet.id: bullet for bullet in read_text(artifact.seed(program)["playbook"]).bullets}
    assert found["s-19"].helpful == 7
    assert "s-0" not in found


def test_tabs_in_a_bullet_do_not_pass_for_an_edit():
    code = Bullet("code-1", "OTHER", "Write\n\treturn\tx", 3)
    text = str(BulletText((code, Bullet("long-1", "OTHER", "word " * 100)), SHORT))
    playbook = Playbook(max_tokens=64, sections=SHORT)
    built = playbook.build(dspy.Predict("question -> answer"), {"playbook": text})
    assert playbook.seed(built) == {"playbook": text}


INSIGHT = {
    "bullet_tags": {"str-00001": "helpful"},
    "key_insight": " Use decimals. ",
    "section": "formats",
}
CITED = (
    "## STRATEGIES\n[str-00001] helpful=0 harmful=0 :: Check units.\n[str-00002] helpful=0"
    " harmful=0 :: Round."
)


def reflect(service, given, artifact=None, text=CITED):
    return asyncio.run((artifact or Playbook()).reflect(given, "playbook", service.context(text)))


def test_a_reflector_sees_the_trajectory_the_truth_and_the_bullets_that_were_cited():
    service = Service(ReflectOnTrajectoryWithTruth=INSIGHT)
    calls = (
        PredictorCall("self", {"question": "?"}, {"answer": "9", "reasoning": "by str-00001"}),
    )
    found = reflect(service, trajectory(3, calls=calls, feedback="It is 0.9."))
    assert (found.index, found.example_id) == (3, "hash-3")
    assert found.record == {
        "Feedback": "Use decimals.",
        "Bullets": {"str-00001": "helpful"},
        "Section": "FORMATS",
    }
    ((_, inputs, place, role),) = service.asked
    assert (place, role) == (("playbook", "reflect", 3), "reflector")
    assert inputs["trajectory"]["Inputs"] == {"question": "What is fact 3?"}
    assert inputs["trajectory"]["Generated Outputs"]["answer"] == "9"
    assert inputs["ground_truth"] == {"answer": "fact 3"}
    assert inputs["bullets_used"] == ["[str-00001] helpful=0 harmful=0 :: Check units."]
    assert (inputs["current_instruction"], inputs["feedback"]) == ("Answer.", "It is 0.9.")
    assert "FORMATS" in inputs["sections"]


def test_without_the_truth_the_reflector_is_not_told_it_and_a_score_stands_for_feedback():
    service = Service(ReflectOnTrajectory=INSIGHT)
    reflect(service, trajectory(score=0.25), Playbook(ground_truth=False))
    (inputs,) = service.inputs("ReflectOnTrajectory")
    assert "ground_truth" not in inputs
    assert "0.25" in inputs["feedback"]


def test_where_none_was_cited_the_bullets_most_like_the_task_are_judged():
    text = "\n".join(
        [
            "## A",
            *(f"[b-{n}] helpful=0 harmful=0 :: what to know of fact {n}" for n in range(1, 10)),
        ]
    )
    service = Service(ReflectOnTrajectoryWithTruth=INSIGHT)
    reflect(service, trajectory(4), text=text)
    (inputs,) = service.inputs("ReflectOnTrajectoryWithTruth")
    assert len(inputs["bullets_used"]) == 8
    assert any("[b-4]" in line for line in inputs["bullets_used"])
    calls = (PredictorCall("self", {}, {"answer": "word " * 40_000}),)
    reflect(service, trajectory(calls=calls))
    *_, inputs = service.inputs("ReflectOnTrajectoryWithTruth")
    assert len(json.dumps(inputs["trajectory"])) < 60_000
    assert any("the middle left out" in event.text for event in service.events)


def test_a_reflection_that_fails_is_lost_alone_and_said():
    service = Service(ReflectOnTrajectoryWithTruth=FailedCall("AdapterParseError: no"))
    assert reflect(service, trajectory()) is None
    assert service.events == [ErrorRaised("reflector", "AdapterParseError: no")]


def test_tags_of_bullets_that_were_not_shown_are_ignored_and_said():
    service = Service(
        ReflectOnTrajectoryWithTruth={"bullet_tags": {"ghost": "harmful"}, "key_insight": None}
    )
    assert reflect(service, trajectory()) is None
    (event,) = service.events
    assert isinstance(event, WarningRaised)
    assert "'ghost'" in event.text


def book_after(lessons, reflections, text=""):
    book = Playbook().read(text).add(taught_by(lessons, reflections, 0), 0)
    return Posterior().applied(book.edit(lessons.edits).book)


@pytest.mark.parametrize("aggregator", [Union(fan_in=8), ReferenceScan(levels=0)], ids=str)
def test_what_was_taught_is_learned_whichever_aggregator_reads_it(aggregator):
    service = Service(AddLessons=adding, AddCitedLessons=adding, LearnFromExamples=adding)
    lessons = learn(service, taught(40), aggregator)
    assert {lesson.text for lesson in lessons.lessons} == {
        f"Fact {i} is fact number {i}." for i in range(40)
    }
    assert all(lesson.sources == (int(lesson.text.split()[1]),) for lesson in lessons.lessons), (
        "each its own insight"
    )
    assert {role for _, _, _, role in service.asked} == {"proposer"}


class Mine(Aggregator):
    """Says what it was given, in an order and in words of its own."""

    def __init__(self, rewrite=None, edits=()):
        self.rewrite, self.edits = rewrite, edits

    async def aggregate(self, reflections, context):
        self.read, self.context = (
            [one for one in [await one for one in reflections] if one is not None],
            context,
        )
        mine = tuple(Lesson(f"Mine: {one.record['Feedback']}", (one.index,)) for one in self.read)
        return Lessons(context.component, mine[::-1], self.rewrite, edits=self.edits)


def test_an_aggregator_reads_the_insights_alone_the_task_and_what_is_shown():
    mine, book = Mine(), Playbook().read(str(BOOK))

    async def run():
        context = Service().context(str(BOOK), book=book)
        return await Playbook().learn(
            await _ready([*taught(2, **{"str-1": "harmful"}), None]), mine, context
        )

    lessons = asyncio.run(run())
    assert [dict(one.record) for one in mine.read] == [
        {"Feedback": f"Fact {i} is fact number {i}."} for i in range(2)
    ]
    assert mine.context.text.startswith("Answer.\n\n## STRATEGIES\n[str-1] helpful=4")
    assert mine.context.book == book
    assert [lesson.text for lesson in lessons.lessons] == [
        f"Mine: Fact {i} is fact number {i}." for i in (1, 0)
    ]


def test_a_lesson_comes_from_the_insights_that_are_most_like_it_and_stands_in_their_section():
    records = [
        ("Round to two decimals.", "FORMATS"),
        ("Round all to two decimals.", "FORMATS"),
        ("Add units.", ""),
    ]
    read = [
        Reflection(i, {"Feedback": text, "Section": section}, f"hash-{i}")
        for i, (text, section) in enumerate(records)
    ]
    service = Service(AddLessons={"lessons": ["Round to two decimals.", "Add units."]})
    lessons = learn(service, read, Union()).lessons
    assert [(one.sources, one.section) for one in lessons] == [((0, 1), "FORMATS"), ((2,), "")]


def test_what_teaches_nothing_costs_no_call():
    service = Service(AddLessons=adding)
    silent = [Reflection(0, {"Feedback": "", "Bullets": {}}, "x"), None, None]
    assert learn(service, silent, Union()) == Lessons("playbook")
    assert learn(service, [], Union()) == Lessons("playbook")
    assert learn(service, [], SingleCall()) == Lessons("playbook")
    assert not service.asked


def test_judgements_are_counted_once_an_example_and_what_harms_is_retired():
    service = Service(AddLessons={"lessons": []})
    tags = {"str-1": "harmful", "str-2": "helpful"}
    read = [
        *taught(3, **tags),
        replace(taught(1, **tags)[0], index=3),
        *taught(1, **{"str-1": "neutral"}),
    ]
    lessons = learn(service, read, Union(), str(BOOK))
    book = book_after(lessons, read, str(BOOK))
    assert [(one.helpful, one.harmful, one.state) for one in book.lessons] == [
        (4, 3, "served"),
        (3, 0, "served"),
    ]
    many = [replace(one, example_id=f"other-{i}") for i, one in enumerate(taught(7, **tags))]
    text = Playbook(sections=SHORT).serve(str(BOOK), book)
    after = book_after(learn(service, many, Union(), text), many, text)
    assert [one.state for one in after.lessons] == ["retired", "served"]
    assert "it harmed 10 examples and helped 4" in after.lessons[0].reason
    assert [bullet.id for bullet in read_text(Playbook().serve(text, after)).bullets] == ["str-2"]


def test_judgements_of_successes_count():
    service = Service(AddLessons={"lessons": []})
    (own,) = taught(1, **{"str-1": "helpful"})
    lessons = learn(service, [replace(own, perfect=True)], Union(), str(BOOK))
    assert lessons.edits == (Credit("str-1", ("hash-0",)),)


def test_an_aggregators_edits_of_the_book_come_before_the_judgements():
    united = Unite(("str-2", "str-1"))
    read = taught(1, **{"str-2": "helpful"})
    lessons = learn(Service(), read, Mine(edits=(united,)), str(BOOK))
    assert lessons.edits == (united, Credit("str-2", ("hash-0",)))
    held = book_after(lessons, read, str(BOOK)).find("str-2")
    assert (held.id, held.text, held.helpful) == ("str-1", "=== END OF PLAYBOOK ===", 5)


def test_a_text_in_the_place_of_lessons_adds_its_lines_and_loses_none():
    rewrite = (
        "Answer.\n\n## STRATEGIES\n[str-1] helpful=9 harmful=0 :: Check\n- Round fact 0.\n- Add"
        " units.\n"
    )
    service = Service(RewriteInstruction={"new_instruction": rewrite}, RewriteWithinConstraints={})
    read = taught(2)
    text = (
        "## STRATEGIES\n[str-1] helpful=4 harmful=0 :: Check\n[str-2] helpful=0 harmful=0 ::"
        " Keep me."
    )
    lessons = learn(service, read, SingleCall(), text)
    assert lessons.rewrite is None
    assert [lesson.text for lesson in lessons.lessons] == ["Round fact 0.", "Add units."]
    served = read_text(Playbook().serve(text, book_after(lessons, read, text)))
    assert {bullet.content for bullet in served.bullets} == {
        "Check",
        "Keep me.",
        "Round fact 0.",
        "Add units.",
    }


def test_a_program_that_version_0_2_saved_goes_on_with_its_ids_and_counts(tmp_path):
    shown = (
        "Answer briefly.\n\n=== PLAYBOOK ===\nAdvice from earlier tasks. Where you explain"
        " yourself, name the ids of the bullets that you follow.\n\n## FORMATS\n[form-1fab5f23]"
        " helpful=3 harmful=1 :: Round.\n=== END OF PLAYBOOK ==="
    )
    saved = student(shown)
    saved.save(tmp_path / "program.json")
    loaded = student("anything")
    loaded.load(tmp_path / "program.json")
    (lesson,) = Playbook().read(Playbook().seed(loaded)["playbook"]).lessons
    assert (
        lesson.id,
        lesson.text,
        lesson.helpful,
        lesson.harmful,
        lesson.section,
        lesson.born,
    ) == ("form-1fab5f23", "Round.", 3, 1, "FORMATS", -1)
