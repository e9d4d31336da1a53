from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy import events
from combee_dspy.tracking.report import ReportData, collect, render
from combee_dspy.tracking.report._data import Heldout, Spending
from combee_dspy.tracking.report._headline import sentence
from combee_dspy.tracking.report._html import el, visible

Tell = Callable[..., Iterator[events.Event]]
VOID = {"meta", "br", "hr"}


class Reader(HTMLParser):
    """Every element with its attributes, all text outside styles, and whether each element is closed."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.comments: list[str] = []
        self.wrong: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data) -> None:
        if self.open[-1:] != ["style"]:
            self.words.append(data)

    def handle_comment(self, data) -> None:
        self.comments.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    return reader


def shape(page: str) -> tuple[set[str], set[str]]:
    found = read(page)
    return {tag for tag, _ in found.elements}, {name for _, attributes in found.elements for name in attributes}


def test_hostile_text_adds_no_element_and_no_attribute(tell: Tell, hostile: str) -> None:
    page, plain = render(collect(tell(6, hostile))), render(collect(tell(6, "plain\nword")))
    assert shape(page)[0] <= shape(plain)[0]
    assert shape(page)[1] <= shape(plain)[1]
    reader = read(page)
    assert not reader.wrong
    assert not reader.open
    assert not reader.comments
    tags, attributes = shape(page)
    assert not tags & {"script", "img", "iframe", "object", "link", "base", "form"}
    assert not {name for name in attributes if name.startswith("on")}
    assert "document.title='owned'" in "".join(reader.words)


def test_nothing_is_loaded_and_a_policy_forbids_it(tell: Tell, hostile: str) -> None:
    page = render(collect(tell(3, hostile)))
    reader = read(page)
    policy = next(a["content"] for tag, a in reader.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:")
    links = {a["href"] for _, a in reader.elements if "href" in a}
    assert links
    assert all(link is not None and link.startswith("#") for link in links)
    assert not [a for _, a in reader.elements if "src" in a or "srcset" in a]
    style = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert len(style) == 1
    assert "url(" not in style[0]
    assert "@import" not in style[0]


def test_every_link_leads_to_a_section(tell: Tell) -> None:
    reader = read(render(collect(tell(4))))
    ids = [a["id"] for _, a in reader.elements if a.get("id")]
    assert len(ids) == len(set(ids))
    assert {a["href"] for tag, a in reader.elements if tag == "a"} == {f"#{name}" for name in ids}


def test_every_drawing_says_what_it_shows(tell: Tell) -> None:
    drawings = [a for tag, a in read(render(collect(tell(4)))).elements if tag == "svg"]
    assert len(drawings) >= 8
    assert all(a["role"] == "img" and a["aria-label"] and a["viewbox"] for a in drawings)
    assert not [a for a in drawings if "nan" in str(a)]


def test_no_coordinate_is_missing(tell: Tell) -> None:
    assert not re.search(r'="(?:[^"]*\b)?(?:nan|inf)\b', render(collect(tell(5))))


def test_what_is_in_it_where_everything_was_heard(tell: Tell) -> None:
    text = " ".join(read(render(collect(tell(6)))).words)
    for expected in (
        "Held-out improved: +27.0 points (95% interval +15.0 to +39.0) on 100 examples",
        "cost per held-out point",
        "the validation split is small",
        "Score against dollars",
        "epoch-updates: 21 → 16",
        "Operator weights over iterations",
        "Demonstration 1",
        "better than its parent",
        "TimeoutError",
        "SHA-256 " + "a" * 64,
    ):
        assert expected in text, expected


def test_an_empty_report_renders(tell: Tell) -> None:
    page = render(ReportData())
    assert "supports no claim" in page
    assert "not finished" in page
    assert not read(page).wrong


def test_a_run_cut_short_anywhere_renders(tell: Tell) -> None:
    heard = list(tell(3))
    for length in range(1, len(heard), 11):
        assert not read(render(collect(heard[:length]))).wrong


def test_the_same_data_give_the_same_page(tell: Tell) -> None:
    assert render(collect(tell(3))) == render(collect(tell(3)))


def test_a_simulated_service_is_named_in_the_first_lines(tell: Tell) -> None:
    heard = [
        replace(event, models={"task": "openai/simulated"}) if isinstance(event, events.RunStarted) else event
        for event in tell(2)
    ]
    words = "".join(read(render(collect(heard))).words)
    assert words.index("simulated service: no language model was measured") < words.index("Held-out improved")


@pytest.mark.parametrize(
    "part", ["<b>&\"'\n" * 12_500, "x" * 100_000, "\n" * 100_000, "word " * 20_000, "a b\n" * 25_000]
)
def test_prompts_of_100_kilobytes_survive(tell: Tell, part: str) -> None:
    page = render(collect(tell(1, part)))
    assert not read(page).wrong
    assert len(page) < 20_000_000


HELD = Heldout(0.5, 0.6, 0.05, 0.15, 0.95, 50, "d")


@pytest.mark.parametrize(
    ("held", "start"),
    [
        (HELD, "Held-out improved: +10.0 points"),
        (replace(HELD, low=-0.02), "No held-out improvement is shown"),
        (replace(HELD, after=0.4, low=-0.2, high=-0.01), "Held-out got worse: -10.0 points"),
        (None, "Nothing has been validated yet"),
    ],
)
def test_the_headline_claims_no_more_than_the_interval(held: Heldout | None, start: str) -> None:
    assert sentence(ReportData(heldout=held)).startswith(start)


def test_unknown_prices_are_never_shown_as_free() -> None:
    data = ReportData(heldout=HELD, spending=Spending(tokens=10, dollars=0.0, unpriced=3, calls=5))
    text = " ".join(read(render(data)).words)
    assert "unknown" in text
    assert "$0.00" not in text


@given(st.text())
def test_any_text_stays_text(text: str) -> None:
    reader = read(el("p", text, title=text).text)
    assert [tag for tag, _ in reader.elements] == ["p"]
    assert list(reader.elements[0][1]) == ["title"]
    assert "".join(reader.words) == visible(text)
    assert reader.elements[0][1]["title"] == visible(text)


@given(st.text(alphabet=st.characters()))
def test_what_is_shown_is_visible_and_keeps_its_direction(text: str) -> None:
    shown = visible(text)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200b\ufeff\ud800-\udfff]", shown)
    shown.encode("utf-8")
