"""A report as a browser without scripts sees it."""

from __future__ import annotations

import html.parser
import json
from pathlib import Path
from typing import Any

from combee_dspy.journal import Reader, RunHistory, journal_file
from combee_dspy.tracking import run_number, write_report
from combee_dspy.tracking._text import clean_values, cleaner
from combee_dspy.tracking.report._facts import facts


class Page(html.parser.HTMLParser):
    """A page's scripts, attributes and visible text; ``facts`` is what it was made from."""

    def __init__(self, html: str, facts: dict[str, Any]) -> None:
        super().__init__()
        self.html, self.facts = html, facts
        self.scripts: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self._tag = ""
        self.feed(html)
        self.text = " ".join(" ".join(self.texts).split()).replace("\N{NO-BREAK SPACE}", " ")
        self.ids = {value for _, name, value in self.attributes if name == "id"}
        self.charts: dict[str, Any] = json.loads(self.scripts[0])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tag = tag
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""

    def handle_data(self, data: str) -> None:
        if self._tag == "script":
            self.scripts[-1] += data
        elif self._tag != "style":
            self.texts.append(data)


def page_of(place: Path, run: str | None = None) -> Page:
    """Write a run's report, and read it."""
    html = write_report(place, place / "report.html", run).read_text(encoding="utf-8")
    with Reader(journal_file(place)) as reader:
        history = RunHistory(reader, run_number(reader, run))
        return Page(html, clean_values(facts(history), cleaner()))
