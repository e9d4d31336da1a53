"""The report's section of lessons: each with its state, its evidence and its tests, whatever their
texts are.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from combee_dspy.tracking import write_report
from tests.tracking.browser import CHROMIUM, LAPTOP, PHONE, browser
from tests.tracking.journals import Story, lesson
from tests.tracking.test_report import Page, page_of


def test_each_lesson_is_shown_with_its_state_its_examples_and_what_speaks_against_it(tmp_path):
    page = page_of(Story(tmp_path).whole())
    result = page.data["lessons"]
    assert result["counts"] == {
        "served": 2,
        "waiting": 0,
        "retired": 1,
        "removed_by_user": 0,
        "void": 2,
    }
    assert [(row["state"], row["for"], row["against"], row["born"]) for row in result["rows"]] == [
        ("served", 2, 0, 0),
        ("served", 1, 0, 1),
        ("retired", 1, 1, 0),
    ]
    assert (
        "Name the city. served not in the chosen text 2 none not measured 0 contradicts “ Name the"
        " river" in page.text
    )
    assert "exception to “ Name the city. ” (served)" in page.text
    assert (
        "tested: put into the prompt with 1 more: 2 better, 0 worse of 4 validation rows, accepted"
        in page.text
    )
    shown = page.text.replace("\N{NO-BREAK SPACE}", " ")
    assert "1 1 -50 points -90 points to +10 points, n = 4" in shown, "for, against, effect"
    against = [trace["id"] for row in result["rows"] for trace in row["traces"]]
    assert len(against) == 1, "one row has a rollout, the one that speaks against the river"
    assert f"against effect/{against[0]} question: What is the net margin? expected answer: 3" in (
        page.text
    )
    assert "9 rows are right without it" in page.text
    assert "The text that was chosen lacks 2 of the lessons that the book serves" in page.text


def test_a_run_without_a_book_has_no_table_of_lessons(tmp_path):
    page = page_of(Story(tmp_path).write("begin"))
    assert "Lessons" not in page.ids
    assert page.data["lessons"]["rows"] == []


ENDLESS = "x" * 3_000
REVERSED = "\u202eright to left\u202c \u05e9\u05dc\u05d5\u05dd \u2067never closed"
# Which rows a filter leaves, and whether the lesson's text is wider than its cell.
FILTERED = """(() => {
  const which = document.getElementById("which");
  const rows = [...document.getElementById("book").tBodies[0].rows];
  const shown = (value) => {
    which.value = value;
    which.dispatchEvent(new Event("input"));
    const visible = rows.filter((row) => row.offsetHeight);
    return visible.map((row) => row.querySelector(".state").textContent);
  };
  return {all: shown(""), waiting: shown("waiting"), against: shown("against"), again: shown(""),
    wide: [...document.querySelectorAll("#book td")].filter(
      (cell) => cell.scrollWidth > cell.clientWidth + 1).length,
    marks: document.querySelectorAll("#book img, #book script, #book b").length,
    direction: getComputedStyle(document.querySelector("#book bdi")).unicodeBidi};
})()"""


@pytest.mark.chromium
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_hostile_lessons_stay_text_within_their_cells(tmp_path, monkeypatch, size):
    texts = ("<img src=x onerror=alert(1)><b>bold", ENDLESS, REVERSED)
    lessons = [
        lesson(f"h{number}", text, rivals=["h1"] * (number != 1))
        for number, text in enumerate(texts)
    ]
    lessons[2].update(state="waiting", reason=f"{REVERSED} {ENDLESS}", rule="h0")
    monkeypatch.setattr("tests.tracking.journals.CITY", lessons[0])
    monkeypatch.setattr("tests.tracking.journals.UNIT", lessons[1])
    monkeypatch.setattr("tests.tracking.journals.RIVER", lessons[2])
    out = write_report(Story(tmp_path).write("begin", "first", "second"), tmp_path / "report.html")
    shots = Path(os.environ.get("COMBEE_SHOTS", tmp_path))

    async def look():
        async with browser() as tab:
            await tab.open(out, size)
            result = await tab.value(FILTERED)
            await tab.value("document.getElementById('Lessons').scrollIntoView()")
            await tab.picture(shots / f"lessons-{size[0]}.png")
            return tab.said, result, await tab.value("document.documentElement.scrollWidth")

    said, found, width = asyncio.run(look())
    assert said == []
    assert width <= size[0]
    assert found["all"] == found["again"] == ["served", "served", "waiting"]
    assert (found["waiting"], found["against"]) == (["waiting"], ["served", "waiting"])
    assert (found["wide"], found["marks"], found["direction"]) == (0, 0, "isolate")
    assert texts[0] in Page(out.read_text(encoding="utf-8")).texts
