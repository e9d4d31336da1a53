"""No operator returns an edit that breaks what its input's guards protect, whatever the LM
answers.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from combee_dspy.guards import CopyIndex, Guards, check
from combee_dspy.lessons import write_section
from combee_dspy.operators import (
    FewShotSwap,
    Insert,
    InstructionChannel,
    Reorder,
    Rephrase,
    Rewrite,
    guard_input,
    without_copies,
)
from combee_dspy.records import Edit, Lesson, Lessons, PredictorRun

RULE = "Never name a customer."
SEED = f"Route {{ticket}} in <reply>.\n{RULE}\nQuestion: How much came back?\nFormula: roi"
PARENT = write_section(SEED, ["Give a unit.", f"{RULE} Ever.", "Write formula in lower case."])
RUNS = tuple(
    PredictorRun(f"{n:064x}", {"question": f"q{n}"}, {"formula": "roi"}, n % 2) for n in range(5)
)
VALUES = {
    "instruction": PARENT,
    "runs": RUNS,
    "guards": Guards(max_tokens=90, keep=[RULE]),
    "seed_instruction": SEED,
    "lessons": Lessons("route", (Lesson("Look twice. " * 9), Lesson("Use percent."))),
}
OPERATORS = (Insert(max_tokens=60), Rewrite(), Rephrase(), Reorder(), FewShotSwap())
OPERATORS = (*OPERATORS, InstructionChannel(), InstructionChannel(max_tokens=1))
LEAK = (
    "Acme Holdings of Leeds asked on the third of May how much of its bridge loan had come back by"
    " June"
)

TEXTS = st.text(max_size=30) | st.sampled_from(
    ["instruction", "formula", RULE, SEED, "- x\nLessons learned:\n- y"]
)
NUMBERS = st.integers(-1, 6)


@given(
    says=st.fixed_dictionaries(
        {
            "reworded_passages": st.lists(TEXTS, min_size=3, max_size=3) | st.none(),
            "new_instruction": TEXTS | st.just(PARENT + " {x}"),
            "new_order": st.permutations([1, 2, 3]) | st.lists(NUMBERS, max_size=4),
            "destinations": st.lists(TEXTS, min_size=2, max_size=2),
            "shorter_lessons": st.lists(TEXTS, max_size=4),
        }
    ),
    operator=st.sampled_from(OPERATORS),
    seed=st.integers(0, 3),
)
@settings(
    max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_nothing_that_breaks_a_guard_comes_out(bench, says, operator, seed):
    result = bench.apply(operator, says, seed=seed, **VALUES)
    if isinstance(result, Edit):
        assert check(result, VALUES["guards"], guard_input(bench.given(**VALUES), "route")) is None
        assert RULE in (result.instruction or PARENT)
    else:
        assert result.reason


@pytest.mark.parametrize("rewrite", ["Route it.", SEED.replace(RULE, ""), SEED + " more" * 90])
def test_a_rewrite_that_breaks_a_guard_is_refused(bench, rewrite):
    values = {**VALUES, "lessons": Lessons("route", rewrite=rewrite)}
    assert not isinstance(bench.apply(Insert(), **values), Edit)


def test_a_lesson_that_copies_an_example_goes_and_the_others_stay(bench):
    copies = CopyIndex([{"question": LEAK, "formula": "roi"}])
    given = bench.given(
        instruction=SEED,
        seed_instruction=SEED,
        lessons=[f"When {LEAK}, answer roi.", "Give a unit."],
    )
    edit = bench.apply(Insert(), instruction=SEED, lessons=given.lessons)
    judged = guard_input(given, "route")
    assert "copies" in check(edit, Guards(), judged, copies).reason
    left, dropped = without_copies(edit, judged, copies)
    assert left == Edit(instruction=write_section(SEED, ["Give a unit."]))
    assert dropped == (f"When {LEAK}, answer roi.",)
    assert check(left, Guards(), judged, copies) is None
