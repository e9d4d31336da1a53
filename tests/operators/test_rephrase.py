import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.guards import Guards
from combee_dspy.operators import Rephrase
from combee_dspy.operators._facts import lost_fact
from combee_dspy.records import Edit, Refusal

PARENT = "Answer {name}.\n\nLessons learned:\n- Round to 2 digits.\n- Write `roi`, never ROI."


def reword(bench, *passages, **changes):
    return bench.apply(
        Rephrase(), {"reworded_passages": list(passages)}, **{"instruction": PARENT, **changes}
    )


def test_own_text_and_lessons_are_reworded_in_their_places(bench):
    result = reword(
        bench, "Give {name} an answer.", "Use 2 digits.", "The word is `roi`; do not write ROI."
    )
    section = "Lessons learned:\n- Use 2 digits.\n- The word is `roi`; do not write ROI."
    assert result == Edit(instruction=f"Give {{name}} an answer.\n\n{section}")


@pytest.mark.parametrize(
    ("passages", "reason"),
    [
        (("Give {name} one.", "Round.", "Write `roi`, never ROI."), "lost the number 2"),
        (
            ("Give {name} one.", "Round to 2 of 3 digits.", "Write `roi`, never ROI."),
            "invented the number 3",
        ),
        (("Give one.", "Round to 2 digits.", "Write `roi`, never ROI."), "{name}"),
        (("Give {name} one.", "Round to 2 digits.", "Write heroic, never ROI."), "quoted text"),
        (("Give {name} one.", "Round to 2 digits.", "Write `roi`, not the other."), "ROI"),
        (("Give {name} one.", "Round to 2 digits."), "3 passages"),
        (("Give {name} one.", "Round to 2 digits.", " "), "empty"),
        (("Give {name} one.", "Round to 2 digits.", None), "cannot be read"),
        (
            ("Give {name} one." + " more" * 60, "Round to 2 digits.", "Write `roi`, never ROI."),
            "grew",
        ),
        (("Answer {name}.", "Round to 2 digits.", "Write `roi`, never ROI."), "changes nothing"),
    ],
)
def test_a_lost_or_invented_fact_is_refused(bench, passages, reason):
    result = reword(bench, *passages)
    assert isinstance(result, Refusal) and reason in result.reason


def test_labels_of_the_task_stay(bench):
    result = reword(bench, "Choose the return.", instruction="Choose npv or irr.")
    assert isinstance(result, Refusal) and "'npv'" in result.reason


def test_a_protected_lesson_is_not_sent_and_a_protected_line_is_checked(bench):
    guards = Guards(keep=["Round to 2 digits.", "Answer {name}."])
    result = reword(bench, "Answer {name}. Please.", "Write ROI as `roi`.", guards=guards)
    assert bench.calls[0][1]["passages"] == ["Answer {name}.", "Write `roi`, never ROI."]
    assert isinstance(result, Edit) and "- Round to 2 digits.\n- Write ROI as `roi`." in (
        result.instruction or ""
    )
    broken = reword(bench, "Give {name} one.", "Write ROI as `roi`.", guards=guards)
    assert isinstance(broken, Refusal) and "protected rule" in broken.reason


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("roi = gain / cost", "divide gain by cost to get roi"),
        ("Use 1,000.5 units", "Use 1000.5 units"),
        ('Say "no".', "Say nothing."),
        ("Fill field_name in.", "Fill it in."),
        ("Under 5% fees.", "Under 5 fees."),
    ],
)
def test_facts_that_code_can_see(before, after):
    assert lost_fact(before, after)


@given(st.text(max_size=100))
def test_a_text_loses_nothing_to_itself(text):
    assert lost_fact(text, text, ("roi", "a+b")) == ""
