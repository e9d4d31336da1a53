from __future__ import annotations

import dspy
from hypothesis import given, settings
from hypothesis import strategies as st

from combee_dspy.records import Reflection
from combee_dspy.reflections import MAX_PARTS, estimate_record_tokens, fit_reflections

TEXT = st.text(max_size=3_000)
RECORD = st.fixed_dictionaries(
    {
        "Inputs": st.dictionaries(
            st.text(min_size=1, max_size=8),
            TEXT | st.integers() | st.lists(TEXT, max_size=3),
            max_size=4,
        ),
        "Generated Outputs": (
            TEXT | st.dictionaries(st.text(min_size=1, max_size=8), TEXT, max_size=2)
        ),
        "Feedback": TEXT,
    }
)


def fit(record, limit, **kwargs):
    notes: list[str] = []
    return fit_reflections([Reflection(7, record, "id")], limit, notes.append, **kwargs), notes


def test_what_fits_is_returned_as_it_is():
    reflection = Reflection(
        0, {"Inputs": {"q": 3}, "Generated Outputs": {"a": None}, "Feedback": "no"}
    )
    notes: list[str] = []
    assert fit_reflections([reflection], 200, notes.append)[0] is reflection
    assert notes == []


def test_a_long_text_is_split_without_loss():
    text = "".join(f"step {number}: something happened. " for number in range(100))
    fitted, notes = fit(
        {"Inputs": {"q": "why?"}, "Generated Outputs": {"log": text}, "Feedback": "wrong unit"}, 400
    )
    assert "".join(part.record["Generated Outputs"]["log"] for part in fitted) == text
    assert [part.part for part in fitted] == list(range(1, len(fitted) + 1))
    assert all(part.index == 7 and part.example_id == "id" for part in fitted)
    assert all(
        part.record["Feedback"] == "wrong unit" and part.record["Inputs"]["q"] == "why?"
        for part in fitted
    )
    assert fitted[0].record["Part"] == f"1 of {len(fitted)}"
    assert notes == [f"reflection 7 of 753 tokens became {len(fitted)} parts of 400"]


def test_a_text_of_many_parts_loses_its_middle_and_says_so():
    text = "HEAD" + "x" * 100_000 + "TAIL"
    fitted, notes = fit(
        {"Inputs": {"q": "why?"}, "Generated Outputs": {"log": text}, "Feedback": "wrong"}, 300
    )
    assert len(fitted) == MAX_PARTS
    joined = "".join(part.record["Generated Outputs"]["log"] for part in fitted)
    assert joined.startswith("HEAD")
    assert joined.endswith("TAIL")
    left_out = int(joined.partition("[… ")[2].partition(" ")[0].replace(",", ""))
    assert left_out + joined.count("x") - "characters left out".count("x") == 100_000
    assert notes[0].endswith("became 4 parts of 300, the middle left out")


def test_one_part_means_trimming_only():
    fitted, notes = fit({"Feedback": "y" * 9_000}, 200, max_parts=1)
    assert [part.part for part in fitted] == [0]
    assert "Part" not in fitted[0].record
    assert estimate_record_tokens(fitted[0].record) <= 200
    assert notes[0].endswith("became one text of 200, the middle left out")


@settings(deadline=None)
@given(record=RECORD, limit=st.integers(64, 800), parts=st.integers(1, 5))
def test_everything_fits_afterwards(record, limit, parts):
    fitted, notes = fit(record, limit, max_parts=parts)
    long = estimate_record_tokens(record) > limit
    assert len(notes) <= long
    assert len(fitted) == 1 or len(notes) == 1
    assert 1 <= len(fitted) <= parts
    keys = estimate_record_tokens({**record, "Inputs": dict.fromkeys(record["Inputs"], "")})
    if not long or keys < limit // 2:
        assert all(estimate_record_tokens(part.record) <= limit for part in fitted)


def test_images_are_kept_whole_in_every_part():
    image = dspy.Image("https://example.org/a.png")
    history = dspy.History(messages=[{"picture": image, "said": "z" * 9_000}])
    record = {
        "Inputs": {"i": image, "h": history},
        "Generated Outputs": {"a": "w" * 9_000},
        "Feedback": "wrong",
    }
    fitted, notes = fit(record, 4_000)
    assert len(fitted) > 1
    assert "left out" not in notes[0]
    for part in fitted:
        assert part.record["Inputs"]["i"] is image
        assert part.record["Inputs"]["h"]["messages"][0]["picture"] is image
    assert (
        "".join(part.record["Inputs"]["h"]["messages"][0]["said"] for part in fitted) == "z" * 9_000
    )


def test_media_alone_above_the_limit_are_left_as_they_are():
    image = dspy.Image("https://example.org/a.png")
    record = {"Inputs": {"i": image}, "Generated Outputs": {"a": "b"}, "Feedback": "wrong"}
    fitted, notes = fit(record, 100)
    assert fitted[0].record == record
    assert notes == []


def test_a_long_list_without_media_becomes_text():
    fitted, _ = fit({"Inputs": {"rows": list(range(2_000))}, "Feedback": "wrong"}, 1_500)
    assert "".join(part.record["Inputs"]["rows"] for part in fitted) == str(list(range(2_000)))


def test_a_limit_too_small_to_say_anything_counts_as_64():
    fitted, _ = fit({"Feedback": "y" * 9_000}, -5, max_parts=1)
    assert 32 < estimate_record_tokens(fitted[0].record) <= 64
