"""The report's section of lessons: each with its state, its evidence and its tests, whatever their
texts are.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.tracking.browser import CHROMIUM, LAPTOP, PHONE, browser
from tests.tracking.journals import Story, lesson
from tests.tracking.pages import page_of


def test_each_lesson_is_shown_with_its_state_its_examples_and_what_speaks_against_it(tmp_path):
    page = page_of(Story(tmp_path).whole())
    lessons = page.facts["lessons"]
    assert lessons["counts"] == {
        "served": 2,
        "waiting": 0,
        "retired": 1,
        "removed_by_user": 0,
        "void": 2,
    }
    assert [(row["state"], row["for"], row["against"], row["born"]) for row in lessons["rows"]] == [
        ("served", 2, 0, 0),
        ("served", 1, 0, 1),
        ("retired", 1, 1, 0),
    ]
    city = "Name the city. served not in the chosen text 2 none not measured 0 contradicts “ Name"
    assert city in page.text
    assert "exception to “ Name the city. ” (served)" in page.text
    tested = "put into the prompt with 1 more: 2 better, 0 worse of 4 validation rows, accepted"
    assert f"tested: {tested}" in page.text
    assert "1 1 -50 points -90 points to +10 points, n = 4" in page.text, "for, against, effect"
    (trace,) = [trace for row in lessons["rows"] for trace in row["traces"]]
    assert f"against effect/{trace['id']} question: What is the net margin? expected answer: 3" in (
        page.text
    )
    assert "9 rows are right without it" in page.text
    assert "The text that was chosen lacks 2 of the lessons that the book serves" in page.text


def test_a_run_without_a_book_has_no_table_of_lessons(tmp_path):
    page = page_of(Story(tmp_path).write("begin"))
    assert "Lessons" not in page.ids
    assert page.facts["lessons"]["rows"] == []


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
    image = "<img src=x onerror=alert(1)><b>bold"
    waiting = {"state": "waiting", "reason": f"{REVERSED} {ENDLESS}", "rule": "h0"}
    lessons = (
        lesson("h0", image, rivals=("h1",)),
        lesson("h1", ENDLESS),
        lesson("h2", REVERSED, rivals=("h1",), **waiting),
    )
    for name, hostile in zip(("CITY", "UNIT", "RIVER"), lessons, strict=True):
        monkeypatch.setattr(f"tests.tracking.journals.{name}", hostile)
    place = Story(tmp_path).write("begin", "first", "second")
    assert image in page_of(place).texts
    picture = Path(os.environ.get("COMBEE_SHOTS", tmp_path), f"lessons-{size[0]}.png")

    async def look():
        async with browser() as tab:
            await tab.open(place / "report.html", size)
            filtered = await tab.value(FILTERED)
            await tab.value("document.getElementById('Lessons').scrollIntoView()")
            await tab.picture(picture)
            width = await tab.value("document.documentElement.scrollWidth")
            return tab.messages, filtered, width

    messages, filtered, width = asyncio.run(look())
    assert messages == []
    assert width <= size[0]
    assert filtered["all"] == filtered["again"] == ["served", "served", "waiting"]
    assert (filtered["waiting"], filtered["against"]) == (["waiting"], ["served", "waiting"])
    assert (filtered["wide"], filtered["marks"], filtered["direction"]) == (0, 0, "isolate")
