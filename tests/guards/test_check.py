from __future__ import annotations

from dataclasses import replace
from typing import Any

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.guards import (
    CopyIndex,
    GuardInput,
    Guards,
    check,
    guard_notes,
    placeholders,
    validate_against,
)
from combee_dspy.records import Demonstration, Edit, Refusal

RULE = "Never give medical advice."
PARENT = f"Answer {{name}} in <reply>.\n{RULE}"


class Route(dspy.Signature):
    """Route."""

    question: str = dspy.InputField()
    formula: str = dspy.OutputField(desc="Its short name, as in {table}.")


def judge(guards: Guards, edit: Edit, **changes: Any) -> Refusal | None:
    judged = GuardInput("route", PARENT, edit, PARENT, signature=Route)
    return check(guards, replace(judged, **changes))


def refused(guards: Guards, edit: Edit, **changes: Any) -> str:
    found = judge(guards, edit, **changes)
    assert isinstance(found, Refusal)
    return found.reason


def test_an_edit_that_breaks_nothing_passes() -> None:
    guards = Guards(max_tokens=50, keep=[RULE])
    assert judge(guards, Edit(instruction=PARENT + "\nBe brief.")) is None
    assert judge(guards, Edit(demonstrations=(Demonstration({"question": "a"}, {"formula": "b"}),))) is None
    assert judge(guards, Edit(field_descriptions={"question": "Any.", "formula": "A {table} name."})) is None


@pytest.mark.parametrize("lost", ["{name}", "<reply>"])
def test_a_lost_placeholder_is_refused(lost: str) -> None:
    assert lost in refused(Guards(), Edit(instruction=PARENT.replace(lost, "")))


def test_a_placeholder_that_only_learned_text_has_may_go() -> None:
    assert judge(Guards(), Edit(instruction=PARENT), parent=PARENT + "\n- Use <b> for {bold}.") is None


def test_without_a_seed_the_parent_counts() -> None:
    assert "{bold}" in refused(Guards(), Edit(instruction=PARENT), parent=PARENT + " {bold}", seed=None)


@pytest.mark.parametrize("name", ["question", "formula"])
def test_a_stand_in_for_a_description_is_no_placeholder(name: str) -> None:
    fields = {name: f"${{{name}}}"}
    assert judge(Guards(), Edit(field_descriptions={name: "New."}), parent_fields=fields, seed_fields=fields) is None


def test_a_placeholder_of_a_description_stays_in_it() -> None:
    fields = {"formula": "As in {table}."}
    assert "{table}" in refused(Guards(), Edit(field_descriptions={"formula": "A name."}), parent_fields=fields)


def test_a_placeholder_that_only_a_learned_description_has_may_go() -> None:
    fields = {"question": "Any. {bold}"}
    edit = Edit(field_descriptions={"question": "Any."})
    assert judge(Guards(), edit, parent_fields=fields, seed_fields={"question": "Any."}) is None
    assert "{bold}" in refused(Guards(), edit, parent_fields=fields)


@pytest.mark.parametrize(
    "text", ["Answer {name} in <reply>.", PARENT.lower().replace("answer {", "Answer {"), PARENT.replace("Never", "")]
)
def test_a_protected_rule_stays_verbatim(text: str) -> None:
    assert "protected rule" in refused(Guards(keep=[RULE]), Edit(instruction=text))


def test_a_rule_binds_the_texts_that_have_it() -> None:
    guards = Guards(keep=[RULE])
    assert judge(guards, Edit(instruction="Sum {name} up in <reply>."), parent="Sum up.", seed="Sum up.") is None
    assert "protected" in refused(guards, Edit(instruction="Sum up."), parent=RULE, seed="Sum up.")
    assert "protected" in refused(guards, Edit(instruction="Sum up."), parent="Sum up.", seed=RULE)
    fields = {"formula": RULE}
    assert "protected" in refused(guards, Edit(field_descriptions={"formula": "x"}), parent_fields=fields)


def test_a_rule_of_one_component_does_not_bind_another() -> None:
    guards = Guards(keep={"other": [RULE]})
    assert judge(guards, Edit(instruction="Answer {name} in <reply>.")) is None
    assert "protected" in refused(guards, Edit(instruction="Answer {name} in <reply>."), component="other")


def test_the_budget_counts_instruction_and_descriptions_together() -> None:
    long = "word " * 40
    assert "takes" in refused(Guards(max_tokens=40), Edit(instruction=PARENT + long))
    edit = Edit(field_descriptions={"formula": long})
    assert judge(Guards(max_tokens=70), edit) is None
    assert "takes" in refused(Guards(max_tokens=40), edit)
    assert "takes" in refused(Guards(max_tokens=40), Edit(instruction=PARENT + "!"), parent_fields={"formula": long})


def test_demonstrations_do_not_count_against_the_budget() -> None:
    shown = Demonstration({"question": "word " * 400}, {"formula": "b"})
    assert judge(Guards(max_tokens=1), Edit(demonstrations=(shown,))) is None


@pytest.mark.parametrize(
    "edit",
    [
        Edit(field_descriptions={"formula": "As in {table}.", "answer": "x"}),
        Edit(demonstrations=(Demonstration({"question": "a", "answer": "b"}, {"formula": "b"}),)),
        Edit(demonstrations=(Demonstration({"question": "a"}, {"question": "b"}),)),
        Edit(demonstrations=(Demonstration({"question": "a"}, {}),)),
        Edit(demonstrations=(Demonstration({}, {"formula": "b"}),)),
    ],
)
def test_an_edit_that_breaks_the_signature_is_refused(edit: Edit) -> None:
    assert "signature" in refused(Guards(), edit)


@pytest.mark.parametrize("edit", [Edit(), Edit(instruction=""), Edit(instruction=" \n")])
def test_an_edit_of_nothing_is_refused(edit: Edit) -> None:
    assert refused(Guards(), edit)


def test_a_refused_edit_is_not_mended() -> None:
    edit = Edit(instruction="short")
    judge(Guards(keep=[RULE]), edit)
    assert edit == Edit(instruction="short")


SECRET = "the quick brown fox jumps over the lazy dog near the old mill by the river"


def test_copied_text_is_refused_in_instructions_and_descriptions_but_not_in_demonstrations() -> None:
    copies = CopyIndex.build([dspy.Example(question=SECRET, formula="roi").with_inputs("question")])
    base = GuardInput("route", PARENT, Edit(), PARENT, signature=Route)
    for edit in (Edit(instruction=f"{PARENT} {SECRET.upper()}!"), Edit(field_descriptions={"question": SECRET})):
        found = check(Guards(), replace(base, edit=edit), copies)
        assert isinstance(found, Refusal) and "copies" in found.reason
        assert check(Guards(max_copied_words=None), replace(base, edit=edit), copies) is None
    shown = Edit(demonstrations=(Demonstration({"question": SECRET}, {"formula": "roi"}),))
    assert check(Guards(), replace(base, edit=shown), copies) is None


def test_text_of_the_seed_is_no_copy() -> None:
    copies = CopyIndex.build([{"question": SECRET}])
    judged = GuardInput("route", SECRET, Edit(instruction=SECRET + " Be brief."), SECRET)
    assert check(Guards(), judged, copies) is None
    assert check(Guards(), replace(judged, seed="Answer."), copies) is not None


@pytest.mark.parametrize("keep", ["a rule", 3, [3], {"route": "a rule"}, {"rule"}])
def test_keep_must_be_a_list_of_texts(keep: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="keep"):
        Guards(keep=keep)


@pytest.mark.parametrize("changes", [{"keep": [" "]}, {"max_tokens": 0}, {"max_copied_words": -1}])
def test_limits_out_of_range_are_errors(changes: Any) -> None:
    with pytest.raises(ArgumentValueError):
        Guards(**changes)


@pytest.mark.parametrize("value", [True, 1.5, "9"])
def test_limits_are_whole_numbers(value: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="max_tokens"):
        Guards(max_tokens=value)


def test_a_list_that_changes_later_changes_no_guard() -> None:
    rules = [RULE]
    guards = Guards(keep=rules)
    rules.clear()
    assert guards.rules("route") == (RULE,)


def test_a_rule_that_is_nowhere_is_a_user_error() -> None:
    validate_against(Guards(keep=[RULE]), {"other": "Sum up.", "route": PARENT})
    validate_against(Guards(keep=[RULE]), {"route": "Sum up."}, {"route": {"formula": RULE}})
    with pytest.raises(ArgumentValueError, match="not in any text"):
        validate_against(Guards(keep=[RULE + " Ever."]), {"route": PARENT})
    with pytest.raises(ArgumentValueError, match="not in the text of 'other'"):
        validate_against(Guards(keep={"other": [RULE]}), {"other": "Sum up.", "route": PARENT})
    with pytest.raises(ArgumentValueError, match="no component"):
        validate_against(Guards(keep={"rout": [RULE]}), {"route": PARENT})


def test_a_budget_below_the_program_is_a_user_error() -> None:
    with pytest.raises(ArgumentValueError, match="'route' starts with"):
        validate_against(Guards(max_tokens=5), {"route": PARENT})


def test_the_proposer_is_told_what_binds_it() -> None:
    notes = guard_notes(Guards(max_tokens=300, keep=[RULE, "Elsewhere."]), "route", PARENT)
    assert all(part in notes for part in ("300", RULE, "{name}", "<reply>", "12 words in a row"))
    assert "Elsewhere." not in notes
    assert guard_notes(Guards(), "route", "Answer.") == ""


def test_placeholders_are_identifiers_in_braces_and_tags() -> None:
    assert placeholders('{a} {a} <b> </b> <br/> {"k": 1} {1} < c > {not this} 3<4>2') == (
        "{a}",
        "<b>",
        "</b>",
        "<br/>",
    )


@given(st.text(max_size=200), st.text(max_size=50))
def test_no_text_without_the_rule_ever_passes(text: str, other: str) -> None:
    found = check(Guards(keep=[RULE]), GuardInput("route", PARENT, Edit(instruction=text + other), PARENT))
    assert isinstance(found, Refusal)
