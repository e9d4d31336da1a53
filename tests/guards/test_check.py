from dataclasses import replace

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
    check_program,
    guard_notes,
    placeholders,
)
from combee_dspy.lessons import write_section
from combee_dspy.operators import without_copies
from combee_dspy.records import Demonstration, Edit, Refusal

RULE = "Never give medical advice."
PARENT = f"Answer {{name}} in <reply>.\n{RULE}"


class Route(dspy.Signature):
    """Route."""

    question: str = dspy.InputField()
    formula: str = dspy.OutputField(desc="Its short name, as in {table}.")


GIVEN = GuardInput("route", PARENT, seed_instruction=PARENT, signature=Route)


def judge(guards, edit, **changes):
    return check(edit, guards, replace(GIVEN, **changes))


def refused(guards, edit, **changes):
    refusal = judge(guards, edit, **changes)
    assert isinstance(refusal, Refusal)
    return refusal.reason


def described(name, text):
    return {"field_descriptions": {name: text}}


def test_an_edit_that_breaks_nothing_passes():
    guards = Guards(max_tokens=50, keep=[RULE])
    assert judge(guards, Edit(instruction=PARENT + "\nBe brief.")) is None
    assert (
        judge(guards, Edit(demonstrations=(Demonstration({"question": "a"}, {"formula": "b"}),)))
        is None
    )
    assert (
        judge(guards, Edit(field_descriptions={"question": "Any.", "formula": "A {table} name."}))
        is None
    )


@pytest.mark.parametrize("lost", ["{name}", "<reply>"])
def test_a_lost_placeholder_is_refused(lost):
    assert lost in refused(Guards(), Edit(instruction=PARENT.replace(lost, "")))


def test_the_seeds_placeholders_count_or_the_parents_where_the_seed_is_not_known():
    assert (
        judge(Guards(), Edit(instruction=PARENT), instruction=PARENT + "\n- Use <b> for {bold}.")
        is None
    )
    changes = {"instruction": PARENT + " {bold}", "seed_instruction": None}
    assert "{bold}" in refused(Guards(), Edit(instruction=PARENT), **changes)
    edit, parent = Edit(**described("question", "Any.")), described("question", "Any. {bold}")
    assert judge(Guards(), edit, **parent, seed_field_descriptions={"question": "Any."}) is None
    assert "{bold}" in refused(Guards(), edit, **parent)


@pytest.mark.parametrize(
    "text",
    [
        "Answer {name} in <reply>.",
        PARENT.lower().replace("answer {", "Answer {"),
        PARENT.replace("Never", ""),
    ],
)
def test_a_protected_rule_stays_verbatim(text):
    assert "protected rule" in refused(Guards(keep=[RULE]), Edit(instruction=text))


def test_a_rule_binds_the_texts_that_have_it():
    guards, edit = Guards(keep=[RULE]), Edit(instruction="Sum up.")
    changed = Edit(instruction="Sum it up.")
    assert judge(guards, changed, instruction="Sum up.", seed_instruction="Sum up.") is None
    assert "protected" in refused(guards, edit, instruction=RULE, seed_instruction="Sum up.")
    assert "protected" in refused(guards, changed, instruction="Sum up.", seed_instruction=RULE)
    assert "protected" in refused(
        guards, Edit(**described("formula", "x")), **described("formula", RULE)
    )


def test_the_budget_counts_instruction_and_descriptions_together_but_no_demonstration():
    long = "word " * 40
    assert "takes" in refused(Guards(max_tokens=40), Edit(instruction=PARENT + long))
    assert judge(Guards(max_tokens=70), Edit(**described("formula", long))) is None
    assert "takes" in refused(Guards(max_tokens=40), Edit(**described("formula", long)))
    assert "takes" in refused(
        Guards(max_tokens=40), Edit(instruction=PARENT + "!"), **described("formula", long)
    )
    demonstration = Demonstration({"question": "word " * 400}, {"formula": "b"})
    assert judge(Guards(max_tokens=1), Edit(demonstrations=(demonstration,))) is None


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
def test_an_edit_that_breaks_the_signature_is_refused(edit):
    assert "signature" in refused(Guards(), edit)


@pytest.mark.parametrize(
    "edit",
    [
        Edit(),
        Edit(instruction=""),
        Edit(instruction=" \n"),
        Edit(instruction=PARENT, demonstrations=()),
    ],
)
def test_an_edit_of_nothing_is_refused(edit):
    assert refused(Guards(), edit)


SECRET = "the quick brown fox jumps over the lazy dog near the old mill by the river"
COPIES = CopyIndex([dspy.Example(question=SECRET, formula="roi").with_inputs("question")])


def test_copied_text_is_refused_in_instructions_and_descriptions_but_not_in_demonstrations():
    for edit in (
        Edit(instruction=f"{PARENT} {SECRET.upper()}!"),
        Edit(**described("question", SECRET)),
    ):
        refusal = check(edit, Guards(), GIVEN, COPIES)
        assert isinstance(refusal, Refusal) and "copies" in refusal.reason
        assert check(edit, Guards(), GIVEN) is None
    demonstration = Edit(demonstrations=(Demonstration({"question": SECRET}, {"formula": "roi"}),))
    assert check(demonstration, Guards(), GIVEN, COPIES) is None


def test_text_of_the_seed_is_no_copy():
    edit, target = (
        Edit(instruction=SECRET + " Be brief."),
        GuardInput("route", SECRET, seed_instruction=SECRET),
    )
    assert check(edit, Guards(), target, COPIES) is None
    assert check(edit, Guards(), replace(target, seed_instruction="Answer."), COPIES) is not None


def test_what_copies_goes_and_the_rest_is_kept():
    target = replace(
        GIVEN, instruction=write_section(PARENT, ["Old."]), **described("formula", "Name.")
    )
    edit = Edit(
        instruction=write_section(
            f"{PARENT}\nSay {SECRET}. Say it twice.", ["Old.", f"Say {SECRET}.", "New."]
        ),
        field_descriptions={"question": f"Any.\n- {SECRET}", "formula": "Name.\n- One word."},
    )
    left, refused_lines = without_copies(edit, target, COPIES)
    # A sentence that says nothing without the copy goes with it, what stands beside it does not.
    assert left.instruction == write_section(f"{PARENT}\nSay it twice.", ["Old.", "New."])
    assert left.field_descriptions == {"question": "Any.", "formula": "Name.\n- One word."}
    assert refused_lines == (f"Say {SECRET}. Say it twice.", f"Say {SECRET}.", f"- {SECRET}")
    assert check(left, Guards(), target, COPIES) is None


@pytest.mark.parametrize("keep", ["a rule", 3, [3], {"route": "a rule"}])
def test_keep_must_be_a_list_of_texts(keep):
    with pytest.raises(ArgumentTypeError, match="keep"):
        Guards(keep=keep)


def test_a_rule_that_is_nowhere_is_a_user_error():
    check_program(Guards(keep=[RULE]), {"other": "Sum up.", "route": PARENT})
    check_program(Guards(keep=[RULE]), {"route": "Sum up."}, {"route": {"formula": RULE}})
    with pytest.raises(ArgumentValueError, match="not in any text"):
        check_program(Guards(keep=[RULE + " Ever."]), {"route": PARENT})
    with pytest.raises(ArgumentValueError, match="not in the text of 'other'"):
        check_program(Guards(keep={"other": [RULE]}), {"other": "Sum up.", "route": PARENT})
    with pytest.raises(ArgumentValueError, match="Components: route"):
        check_program(Guards(keep={"rout": [RULE]}), {"route": PARENT})


def test_a_budget_below_the_program_is_a_user_error():
    with pytest.raises(ArgumentValueError, match="'route' starts with"):
        check_program(Guards(max_tokens=5), {"route": PARENT})


def test_the_proposer_is_told_what_binds_it():
    notes = guard_notes(Guards(max_tokens=300, keep=[RULE, "Elsewhere."]), "route", PARENT)
    assert all(part in notes for part in ("300", RULE, "{name}", "<reply>", "12 words in a row"))
    assert "Elsewhere." not in notes
    assert (
        guard_notes(Guards(), "route", "Answer.")
        == "- No more than 12 words in a row may be copied from an example."
    )
    assert guard_notes(Guards(max_copied_words=None), "route", "Answer.") == ""


def test_placeholders_are_identifiers_in_braces_and_tags():
    text = '{a} {a} <b> </b> <br/> {"k": 1} {1} < c > {not this} 3<4>2'
    assert placeholders(text) == ("{a}", "<b>", "</b>", "<br/>")


@given(st.text(max_size=200), st.text(max_size=50))
def test_no_text_without_the_rule_ever_passes(text, other):
    assert isinstance(judge(Guards(keep=[RULE]), Edit(instruction=text + other)), Refusal)
