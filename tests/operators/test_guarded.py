"""No operator returns an edit that breaks what its input's guards protect, whatever the LM
answers.
"""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from combee_dspy.guards import Guards, check
from combee_dspy.lessons import write_section
from combee_dspy.operators import (
    FewShotSwap,
    Insert,
    InstructionChannel,
    Reorder,
    Rephrase,
    Rewrite,
    guard_input,
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
OPERATORS = (Insert(max_tokens=60), Rewrite(), Rephrase(), Reorder())
OPERATORS = (*OPERATORS, FewShotSwap(), InstructionChannel())

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
        assert (
            check(result, VALUES["guards"], guard_input(bench.material(**VALUES), "route")) is None
        )
        assert RULE in (result.instruction or PARENT)
    else:
        assert result.reason
