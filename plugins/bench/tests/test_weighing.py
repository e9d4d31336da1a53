"""The laws of the weighing study's service, each by what it answers."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import dspy
import pytest
from gepa.strategies.instruction_proposal import InstructionProposalSignature

from combee_dspy.aggregators._prompts import AddLessons, MergeLessons
from combee_dspy.operators._rewrite import RewriteWithLessons
from combee_dspy.streams import derive
from studies.weighing.laws import answer, edit, learn, merge, relate
from studies.weighing.prompts import ReadRecord
from studies.weighing.service import Service
from studies.weighing.tasks import KINDS, SERVICES, Laws, make_task
from studies.weighing.words import (
    ATTRIBUTES,
    CATEGORIES,
    NO_CODE,
    Case,
    Language,
    harmful,
    meanings,
    read_line,
    read_lines,
    rule,
    word,
)

SURE = Laws(
    miss=0,
    miss_proposing=0,
    empty=0,
    loss=0,
    votes=1,
    wrong_citation=0,
    overlooked=0,
    false_relation=0,
)
DRUM = Case("drum", ("urgent", "heavy"), "phone")


class Relate(dspy.Signature):
    """Say how the lessons are related."""

    current_instruction: str = dspy.InputField()
    lessons: list[str] = dspy.InputField()
    same: list[list[int]] = dspy.OutputField()
    contradictory: list[list[int]] = dspy.OutputField()
    narrower: list[list[int]] = dspy.OutputField()
    empty: list[int] = dspy.OutputField()


def record(number: int, case: Case, code: str, *, failed: bool = True) -> dict[str, Any]:
    return {
        "Example": number,
        "Inputs": {"case": case.text(100_000 + number)},
        "Generated Outputs": {"code": "unknown" if failed else code},
        "Feedback": f"Wrong: the right code is {code}." if failed else "Right.",
    }


def failures(count: int) -> list[ReadRecord]:
    return [
        ReadRecord(
            number, Case(category, ("urgent", "heavy"), "fax"), f"D{number + 1}", failed=True
        )
        for number, category in enumerate(CATEGORIES[:count])
    ]


def read(
    lm: Service,
    records: list[dict[str, Any]],
    adapter: dspy.Adapter,
    text: str = "Do it.",
) -> list[str]:
    with dspy.context(lm=lm, adapter=adapter):
        asked = dspy.Predict(AddLessons)
        answered = asked(current_instruction=text, examples_with_feedback=records, most_lessons=32)
        return list(answered.lessons)


def test_every_wording_reads_back_to_what_it_says() -> None:
    stream = derive(0, "wordings")
    said = [rule("drum", "D3"), rule("piano", "D12", "fragile"), harmful("fax")]
    worded = [(meaning, word(meaning, stream)) for meaning in said for _ in range(200)]
    assert all(read_line(text) == meaning for meaning, text in worded)
    assert len({text for _, text in worded}) > 30


@pytest.mark.parametrize("language", ["english", "german", "chinese"])
def test_a_paragraph_reads_back_to_its_rules_in_every_language(language: Language) -> None:
    stream = derive(0, "paragraphs", language)
    rules = [rule("drum", "D3"), rule("piano", "D12", "fragile"), harmful("fax")]
    for _ in range(100):
        lines = [word(meaning, stream, language) for meaning in rules]
        assert [read_line(line) for line in lines] == rules
        assert [meaning for _, meaning in read_lines(" ".join(lines))] == rules


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_answers_a_reader_and_a_judge_in_its_own_way(service: str) -> None:
    task = make_task("rules", 1, service)
    lm = Service(task.laws, 1)
    records = [record(number, DRUM, "D7") for number in (1, 2, 3)]
    texts = read(lm, records, dspy.ChatAdapter())
    assert len(texts) == 1
    cited = "[1, 2, 3] " if service == "cites-all" else ""
    assert all(
        cited in text and bool("[" in text) != (service == "cites-nothing") for text in texts
    )
    lessons = ["1. Every drum gets code D3.", "2. Use D3 for each drum.", "3. The drum is D7."]
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
        asked = dspy.Predict(Relate)
        if service in ("judge-prose", "judge-silent"):
            with pytest.raises(Exception, match=r"parse|empty"):
                asked(current_instruction="", lessons=lessons)
            return
        answered = asked(current_instruction="", lessons=lessons)
    every = [[1, 2, 3]]
    assert (answered.same == every) == (service == "judge-same")
    assert (answered.contradictory == every) == (service == "judge-contradictory")


def test_the_most_specific_line_wins_and_a_contradiction_is_drawn() -> None:
    general, narrow = rule("drum", "D3"), rule("drum", "D7", "urgent")
    stream = derive(0, "answers")
    assert answer(DRUM, [general, narrow, rule("piano", "D1")], stream) == "D7"
    assert answer(DRUM, [general, rule("drum", "D7", "fragile")], stream) == "D3"
    assert answer(DRUM, [], stream) is None
    assert answer(DRUM, [narrow, harmful("phone")], stream) == NO_CODE
    drawn = Counter(answer(DRUM, [general, rule("drum", "D9")], stream) for _ in range(400))
    assert 150 < drawn["D3"] < 250


def test_a_reader_misses_a_tenth_and_attends_to_a_few_records() -> None:
    taught = [len(learn(failures(12), [], Laws(empty=0), derive(seed))) for seed in range(200)]
    assert 0.87 < sum(taught) / 2_400 < 0.93
    assert len(learn(failures(40), [], SURE, derive(1))) == SURE.span


def test_a_row_that_contradicts_becomes_an_exception() -> None:
    odd = ReadRecord(1, Case("drum", ("antique", "foreign"), "fax"), "D7", failed=True)
    (lesson,) = learn([odd], [rule("drum", "D3")], SURE, derive(0))
    assert lesson.meaning in (rule("drum", "D7", "antique"), rule("drum", "D7", "foreign"))
    usual = [ReadRecord(n, DRUM, "D3", failed=False) for n in (2, 3)]
    (beside,) = learn([odd, *usual], [], SURE, derive(0))
    assert beside.meaning is not None
    assert beside.meaning.condition in odd.case.attributes
    (alone,) = learn([odd], [], SURE, derive(0))
    assert alone.meaning == rule("drum", "D7")


def test_a_proposer_replaces_what_a_lesson_contradicts_and_loses_lines() -> None:
    codes = {name: f"D{place}" for place, name in enumerate(CATEGORIES[:50])}
    lines = [(f"{name} gets {code}.", rule(name, code)) for name, code in codes.items()]
    written = edit(lines, [("An anchor gets D99.", rule("anchor", "D99"))], Laws(), derive(0))
    assert written[0] == "An anchor gets D99."
    assert len(written) == 50
    left = [len(edit(lines, [], Laws(keep=0.97), derive(seed))) for seed in range(100)]
    assert 0.95 < sum(left) / 5_000 < 0.99


def test_a_merge_unites_votes_and_loses_a_little() -> None:
    lists = [
        ["Drum: D3", "Piano: D4"],
        ["Every drum is D3", "A drum is D8"],
        ["An urgent drum is D9"],
    ]
    merged = {meaning for _, meaning in merge(lists, SURE, derive(0))}
    assert merged == {rule("drum", "D3"), rule("piano", "D4"), rule("drum", "D9", "urgent")}
    sides = [len(merge(lists, Laws(loss=0), derive(seed))) for seed in range(100)]
    assert set(sides) == {3, 4}


@pytest.mark.parametrize("adapter", [dspy.ChatAdapter(), dspy.JSONAdapter()])
def test_readers_cite_where_examples_are_numbered(adapter: dspy.Adapter) -> None:
    rows = [record(5, DRUM, "D3"), record(9, DRUM, "D3"), record(11, DRUM, "D3", failed=False)]
    assert read(Service(SURE, 0), rows, adapter)[0].startswith("[5, 9] ")
    unnumbered = [{name: value for name, value in row.items() if name != "Example"} for row in rows]
    assert read_line(read(Service(SURE, 0), unnumbered, adapter)[0]) == rule("drum", "D3")


def test_a_twentieth_of_the_citations_is_wrong() -> None:
    calls = [learn(failures(12), [], Laws(empty=0), derive(seed)) for seed in range(100)]
    cited = [(lesson.examples[0], lesson.meaning) for call in calls for lesson in call]
    wrong = [at for at, meaning in cited if meaning is None or meaning.code != f"D{at + 1}"]
    assert 0.03 < len(wrong) / len(cited) < 0.07


def test_a_bad_reader_adds_a_harmful_line_in_three_calls_of_ten() -> None:
    lessons = [learn(failures(3), [], Laws(bad=0.3), derive(seed)) for seed in range(300)]
    bad = sum(any(lesson.meaning and lesson.meaning.channel for lesson in call) for call in lessons)
    assert 0.22 < bad / 300 < 0.38


def test_a_judge_names_relations_by_number() -> None:
    texts = [
        "Drum: D3",
        "Each drum is D3",
        "A drum is D4",
        "An urgent drum is D9",
        "Take care.",
        "Piano: D3",
    ]
    lm = Service(SURE, 0)
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        answered = dspy.Predict(Relate)(
            current_instruction="Do it.",
            lessons=[f"{n}. {text}" for n, text in enumerate(texts, start=3)],
        )
    assert answered.same == [[3, 4]]
    assert answered.contradictory == [[3, 5]]
    assert answered.narrower == [[6, 3], [6, 5]]
    assert answered.empty == [7]
    assert lm.calls == {"judge": 1}


def test_a_judge_overlooks_a_tenth_and_what_comes_after_forty() -> None:
    texts = [(number, "Drum: D3") for number in range(60)]
    groups = [relate(texts, Laws(), derive(seed)).same[0] for seed in range(200)]
    assert 0.87 < sum(len(set(group)) for group in groups) / 8_000 < 0.93
    assert max(map(max, groups)) < 40


def test_gepas_own_prompt_and_rewrites_are_answered() -> None:
    rows = [record(1, DRUM, "D3")]
    prompt = InstructionProposalSignature.prompt_renderer(
        {"current_instruction_doc": "Do it.\n- Piano: D4", "dataset_with_feedback": rows}
    )
    (text,) = Service(SURE, 0)(prompt)
    new = InstructionProposalSignature.output_extractor(text)["new_instruction"]
    assert new.startswith("Do it.\n- Piano: D4\n- ")
    assert read_line(new.splitlines()[-1].removeprefix("- ")) == rule("drum", "D3")
    with dspy.context(lm=Service(SURE, 0), adapter=dspy.ChatAdapter()):
        written = dspy.Predict(RewriteWithLessons)(
            current_instruction=new, lessons=["A drum is D5"], most_words=1_000
        ).new_instruction
        lists = [["Drum: D3"], ["Piano: D4"]]
        merged = dspy.Predict(MergeLessons)(current_instruction=new, lesson_lists=lists).lessons
    assert [line for line, _ in meanings(written.splitlines())][1:] == [
        "- Piano: D4",
        "- A drum is D5",
    ]
    assert sorted(merged) == ["Drum: D3", "Piano: D4"]


def test_the_same_prompt_has_the_same_answer_and_others_other_wordings() -> None:
    rows, adapter = (
        [record(n, Case(CATEGORIES[n], ("urgent", "heavy"), "fax"), "D3") for n in range(8)],
        dspy.JSONAdapter(),
    )
    first, again = (read(Service(Laws(), 3), rows, adapter) for _ in range(2))
    assert first == again
    other = read(Service(Laws(), 3), rows, adapter, "Do it now.")
    assert re.sub(r"\[.*?\] ", "", str(first)) != re.sub(r"\[.*?\] ", "", str(other))


def test_what_has_no_law_is_said() -> None:
    with dspy.context(lm=Service(SURE, 0)), pytest.raises(Exception, match="no law for outputs"):
        dspy.Predict("question -> verdict")(question="Why?")


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_scores_on_clean_rows_and_its_prompt_is_worth_what_it_says(kind: str) -> None:
    task = make_task(kind, 4)
    assert (len(task.train), len(task.validation), len(task.heldout)) == (
        14 if kind == "few" else 80,
        40,
        200,
    )
    assert all(row.label == row.code == task.truth.code(row.case) for row in task.heldout)
    wrong = sum(row.label != row.code for row in task.train)
    assert wrong == (16 if kind == "noise" else 0)
    told = [meaning for _, meaning in read_lines(task.instruction)]
    right = sum(answer(row.case, told, derive(0)) == row.code for row in task.heldout)
    low, high = {"long": (120, 180), "good": (150, 190)}.get(kind, (0, 0))
    assert low <= right <= high
    assert make_task(kind, 4) == task
    assert task.count_lines(task.instruction)["wrong"] == 0


def test_lines_are_counted_by_what_is_true() -> None:
    task = make_task("exceptions", 0)
    (category, condition), code = next(iter(task.truth.exceptions.items()))
    other = next(name for name in ATTRIBUTES if name != condition)
    lines = [
        rule(category, code, condition),
        rule(category, code, other),
        rule(category, "D99"),
        harmful("fax"),
    ]
    counts = task.count_lines("\n".join(f"- {word(line, derive(0))}" for line in lines))
    assert (counts["exceptions"], counts["wrong"], counts["harmful"]) == (1, 2, 1)
    assert counts["exceptions_wrongly_missing"] == len(task.truth.exceptions) - 1
