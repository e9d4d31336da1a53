"""The whole report as one file."""

from __future__ import annotations

from combee_dspy.tracking.report import _sections, _texts
from combee_dspy.tracking.report._data import ReportData
from combee_dspy.tracking.report._headline import badges, headline
from combee_dspy.tracking.report._html import Markup, el, join
from combee_dspy.tracking.report._style import STYLE

__all__ = ["POLICY", "render"]

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
"""What a browser may do with the page: show it. No script, no network."""

_NAV = {
    "result": "Result",
    "progress": "Score",
    "cost": "Cost",
    "prompts": "Prompts",
    "scans": "Scans",
    "batches": "Batch size",
    "schedule": "Schedule",
    "operators": "Operators",
    "diversity": "Diversity",
    "candidates": "Candidates",
    "rollouts": "Rollouts",
    "notes": "Errors",
    "setup": "Setup",
}


def render(data: ReportData) -> str:
    """Return a report as one self-contained HTML page.

    No script, no network, no external font or image, and a content security
    policy that forbids them. Every text of the run is escaped; what is
    invisible in it, or would reverse its direction, is shown as a mark. The
    same data give the same page.

    Args:
        data: What it shows.
    """
    sections = {
        "result": headline(data),
        "progress": _sections.progress(data),
        "cost": _sections.cost(data),
        "prompts": _texts.prompts(data),
        "scans": _texts.scans(data),
        "batches": _sections.batches(data),
        "schedule": _sections.schedule(data),
        "operators": _sections.operators(data),
        "diversity": _sections.diversity(data),
        "candidates": _texts.candidates(data),
        "rollouts": _texts.rollouts(data),
        "notes": _texts.notes(data),
        "setup": _texts.setup(data),
    }
    shown = {name: section for name, section in sections.items() if section is not None}
    name = data.name or "a run without a beginning"
    links = [el("a", _NAV[name], href=f"#{name}") for name in shown]
    top = el("header", el("h1", name), el("div", badges(data)), el("nav", links, aria_label="Sections"), class_="top")
    foot = el("footer", "Combee report. One file, without scripts: it can be kept, mailed and opened offline.")
    body = el("body", top, el("main", list(shown.values())), foot)
    page = el("html", _head(name), body, lang="en")
    return f"<!DOCTYPE html>\n{page.text}\n"


def _head(name: str) -> Markup:
    return el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=POLICY),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="referrer", content="no-referrer"),
        el("title", f"{name} · Combee report"),
        # Our own text, which holds neither foreign words nor a closing tag: escaping would break its quotes.
        join(Markup(f"<style>{STYLE}</style>")),
    )
