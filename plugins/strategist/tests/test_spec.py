"""A specification is complete, or everything that it lacks is said at once."""

from __future__ import annotations

import copy
from datetime import date
from pathlib import Path

import pytest

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.files import NotPlainFileError
from combee_strategist.exceptions import PlanGapsError
from combee_strategist.planning import ask, questions, read_spec
from plugins.strategist.tests.searches import SPEC


def without(*fields: str) -> dict:
    found = copy.deepcopy(SPEC)
    for field in fields:
        section, _, key = field.rpartition(".")
        (found[section] if section else found).pop(key)
    return found


def gaps(spec: dict) -> tuple[str, ...]:
    with pytest.raises(PlanGapsError) as caught:
        read_spec(spec)
    assert str(caught.value).splitlines() == list(caught.value.gaps)
    return caught.value.gaps


def test_a_whole_specification_is_read():
    spec = read_spec(SPEC)
    assert spec.budget.deadline == date(2999, 1, 31)
    assert spec.serial.workers == 1


def test_nine_gaps_are_nine_lines_each_with_a_purpose_and_an_example():
    spec = without(
        "task.metric",
        "serial.rollouts",
        "hardware.slots",
        "budget.binds",
        "evaluation.used_to_tune",
    )
    spec["task"]["inputs"] = "TBD"  # vague
    spec["failure_cost"] = "it is bad"  # vague
    spec["serial"]["score"] = 62  # points where a share is meant
    spec["budget"]["deadline"] = "soon"
    found = gaps(spec)
    assert len(found) == 9
    for field in (
        "task.metric",
        "task.inputs",
        "serial.rollouts",
        "serial.score",
        "hardware.slots",
        "budget.binds",
        "budget.deadline",
        "evaluation.used_to_tune",
        "failure_cost",
    ):
        (line,) = [one for one in found if one.startswith(f"{field} ")]
        assert "(such as: " in line
        assert len(line.split(": ", 1)[1]) > 20
    assert sum("is missing" in one for one in found) == 5
    assert sum("is vague" in one for one in found) == 2


def test_an_empty_specification_lacks_every_field_and_a_missing_section_each_of_its_own():
    names = [name for name, _ in questions()]
    assert [one.split()[0] for one in gaps({})] == names
    assert [one.split()[0] for one in gaps(without("budget"))] == [
        one for one in names if one.startswith("budget.")
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "?",
        "TBD",
        "n/a",
        "todo...",
        "something",
        "Unknown",
        "  ",
        "to be decided",
        "not yet known",
    ],
)
def test_a_word_that_says_nothing_is_no_answer(text):
    spec = copy.deepcopy(SPEC)
    spec["evaluation"]["owner"] = text
    assert [one.split()[0] for one in gaps(spec)] == ["evaluation.owner"]


def test_a_key_that_is_not_known_is_a_gap_that_names_the_nearest():
    spec = copy.deepcopy(SPEC)
    spec["task"]["metrics"] = spec["task"].pop("metric")
    missing, unknown = gaps(spec)
    assert missing.startswith("task.metric is missing")
    assert unknown.startswith("task.metrics is no known key")
    assert unknown.endswith("(such as: metric)")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "a0: &a0 {x: 1}\n"
            + "".join(
                f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}], k{n}: 1}}\n" for n in range(1, 40)
            ),
            "merged keys",
        ),
        ("task: 1" + ":59" * 300_000, "a number of"),
        ("task: " + "9" * 2_000_000, "bytes"),
    ],
    ids=["merges", "sixties", "large"],
)
def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path, text, problem):
    path = tmp_path / "spec.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ArgumentValueError, match=problem):
        read_spec(path)


def test_a_device_in_the_place_of_a_specification_is_refused(tmp_path):
    with pytest.raises(NotPlainFileError, match="/dev/zero"):
        read_spec(Path("/dev/zero"))


def test_an_override_without_a_reason_is_a_gap():
    assert gaps({**SPEC, "overrides": {"workers": {"value": 4}}})[0].startswith(
        "overrides.workers.reason is missing"
    )
    assert gaps({**SPEC, "overrides": {"workers": {"value": 4, "reason": "faster"}}})[0].count(
        "is vague"
    )


@pytest.mark.parametrize(
    "reason", ["we we we we we", "still to be decided later", "a a b b c c", "... - ... - ..."]
)
def test_a_reason_is_a_sentence_that_says_something(reason):
    assert gaps({**SPEC, "overrides": {"workers": {"value": 4, "reason": reason}}})[0].count(
        "is vague"
    )


def test_fields_that_contradict_each_other_are_all_said():
    spec = copy.deepcopy(SPEC)
    spec["serial"]["score"] = spec["task"]["baseline"]
    spec["budget"] |= {"gpu_seconds": 0, "binds": "gpu_seconds", "deadline": "2020-02-01"}
    assert [one.split()[0] for one in gaps(spec)] == [
        "budget.deadline",
        "serial.score",
        "budget.binds",
    ]


@pytest.mark.parametrize("name", ["two words", "a;b", "../up", "$(x)", "`x`", 'a"b', "a\nb"])
def test_a_name_that_stands_in_commands_is_a_plain_word(name):
    spec = copy.deepcopy(SPEC)
    spec["task"]["name"] = name
    assert [one.split()[0] for one in gaps(spec)] == ["task.name"]


def test_a_file_that_holds_no_mapping_is_refused(tmp_path):
    for text in ("[1, 2]", "a: [", "\x00"):
        (tmp_path / "spec.yaml").write_text(text)
        with pytest.raises(ArgumentValueError, match="SPEC"):
            read_spec(Path(tmp_path / "spec.yaml"))


def test_what_is_measured_is_not_asked_and_a_bad_answer_is_asked_again():
    flat = {
        f"{part}.{key}": value
        for part, one in SPEC.items()
        if isinstance(one, dict)
        for key, value in one.items()
    }
    flat |= {name: SPEC[name] for name in ("failure_cost", "failure")}
    known, asked = {"serial.rollouts": 900, "serial.run": "runs/serial"}, []
    first = {"task.name": "TBD", "task.baseline": "forty"}

    def answer(name, field, problem):
        asked.append((name, problem))
        return str(first.pop(name, flat[name]))

    spec = read_spec(ask(known, answer))
    assert (spec.serial.rollouts, spec.serial.run) == (900, "runs/serial")
    assert "serial.rollouts" not in [name for name, _ in asked]
    assert [bool(problem) for name, problem in asked if name in ("task.name", "task.baseline")] == [
        0,
        1,
        0,
        1,
    ]
