"""The gallery's programs run as they stand, against a scripted service, and learn."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest

from tests.journeys.minds import field, written
from tests.journeys.server import Asked, Server
from tests.slow import slow_but

PROGRAMS = Path(__file__).parents[2] / "examples" / "programs"
PAGE = Path(__file__).parents[2] / "docs" / "gallery.md"


def route(asked: Asked) -> dict[str, Any]:
    topic = re.search(r"(?:my|the|a) (\w+)[:.?]", field(asked, "ticket"))[1]
    taught = re.search(rf"about a {topic} goes to (\w+)", asked.system)
    return {"team": taught[1] if taught else "K2"}


def look_up(asked: Asked) -> dict[str, Any]:
    number, years = re.search(r"\[(\d+)\].*?warranty of (\d+) years", asked.last).groups()
    cites = "the paragraph's number in brackets" in asked.system
    return {"reasoning": "by the handbook", "answer": f"{years} years" + f" [{number}]" * cites}


def act(asked: Asked) -> dict[str, Any]:
    customer, product = re.search(r"a (\w+) asks for the price of a (\w+)", asked.last).groups()
    prices = re.findall(r"\[\[ ## observation_0 ## \]\]\n(.*)", asked.last)
    if "next_tool_name" not in asked.system:
        return {"reasoning": "as the tool says", "answer": prices[-1]}
    taught = re.search(rf"For a {customer} call (\w+)", asked.system)
    tool = "finish" if prices else taught[1] if taught else "gross_price"
    arguments = {} if prices else {"product": product}
    return {"next_thought": "ask", "next_tool_name": tool, "next_tool_args": arguments}


def reply(asked: Asked) -> dict[str, Any]:
    if "criteria" in asked.system:
        number = re.search(r"Case (\d+):", asked.last)[1]
        right = f"Your case number is {number}." in asked.last
        feedback = "Good." if right else "Close with the case number."
        return {"feedback": feedback, "score": float(right)}
    number = re.search(r"Case (\d+):", asked.last)[1]
    closes = "Close with the case number" in asked.system or int(number) % 4 == 0
    return {"reply": "We look into it." + f" Your case number is {number}." * closes}


def name_code(asked: Asked) -> dict[str, Any]:
    thing = re.search(r"which code does a (\w+) get", asked.last)[1]
    taught = re.search(rf"A {thing} gets (\w+)", asked.system)
    return {"answer": taught[1] if taught else "unknown"}


# What answers a program untaught and taught, and what a reader finds in its metric's feedback.
MINDS: dict[str, tuple[Callable[[Asked], dict[str, Any]], str]] = {
    "agent": (act, r"For a \w+ call \w+"),
    "classifier": (route, r"A ticket about a \w+ goes to \w+"),
    "live": (name_code, r"A \w+ gets \w\d"),
    "judge": (reply, r"Close with the case number"),
    "rag": (look_up, r"Answer with the number of years alone, .*? in brackets"),
    "traces": (name_code, r"A \w+ gets \w\d"),
}


def mind(name: str) -> Callable[[Asked], str]:
    answers, lesson = MINDS[name]

    def answer(asked: Asked) -> str:
        if asked.last == "Reply with OK.":
            return "OK"
        if asked.model != "gpt-5":
            return written(asked, answers(asked))
        if "narrower" in asked.system + asked.last:
            relations = ("same", "contradictory", "narrower", "empty")
            return written(asked, dict.fromkeys(relations, "[]"))
        lessons = dict.fromkeys(re.findall(lesson, asked.last))
        return written(asked, {"lessons": [f"{text}." for text in lessons]})

    return answer


@pytest.mark.parametrize("name", slow_but(("classifier",), MINDS))
def test_a_program_of_the_gallery_learns(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = dspy.settings.copy()
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    try:
        with Server(mind(name)) as server:
            monkeypatch.setenv("OPENAI_API_BASE", server.base)
            monkeypatch.setenv("OPENAI_API_KEY", "any-word")
            ran = runpy.run_path(str(PROGRAMS / f"{name}.py"))
    finally:
        dspy.configure_cache()
        dspy.configure(**settings)
    out = capsys.readouterr().out
    if name == "live":
        assert "propose - " in out, out
        assert "production and challenger: (1, 2)" in out
        return
    report = ran["better"].combee_report
    assert report.heldout.low > 0, report
    assert (tmp_path / f"{name}.json").is_file()
    assert "held-out" in out


def test_each_program_is_on_the_page_and_has_a_mind() -> None:
    names = {path.stem for path in PROGRAMS.glob("*.py")}
    assert names == set(MINDS)
    shown = re.findall(r"literalinclude\} \.\./examples/programs/(\w+)\.py", PAGE.read_text())
    assert set(shown) == names
