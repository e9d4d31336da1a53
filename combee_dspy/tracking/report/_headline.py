"""The top of a report: what improved, how sure that is, what it cost, and what speaks against it."""

from __future__ import annotations

from combee_dspy.tracking.report._charts import interval_chart
from combee_dspy.tracking.report._data import Heldout, ReportData
from combee_dspy.tracking.report._html import Markup, el
from combee_dspy.tracking.report._parts import amount, dollars, duration, facts, money, score

__all__ = ["badges", "headline", "sentence"]


def badges(data: ReportData) -> list[Markup]:
    """Return what must not be overlooked, as labels."""
    found = []
    if data.simulated:
        found.append(el("span", "simulated service: no language model was measured", class_="badge warn"))
    if not data.finished:
        found.append(el("span", "not finished", class_="badge bad"))
    if data.heldout is None:
        found.append(el("span", "no held-out result", class_="badge warn"))
    if data.heldout is None or data.warnings:
        found.append(el("span", "supports no claim", class_="badge warn"))
    return found


def sentence(data: ReportData) -> str:
    """Return the result in one sentence."""
    held = data.heldout
    if held is None:
        if data.seed_score is None or data.best_score is None:
            return "Nothing has been validated yet."
        return (
            f"No held-out set was read, so nothing is claimed. On validation, which the search has seen, "
            f"the score went from {data.seed_score:.3f} to {data.best_score:.3f}."
        )
    interval = f"{held.confidence:.0%} interval {100 * held.low:+.1f} to {100 * held.high:+.1f}"
    points = f"{100 * held.gain:+.1f} points ({interval}) on {amount(held.size)} examples that the search never saw"
    if held.low > 0:
        return f"Held-out improved: {points}."
    if held.high < 0:
        return f"Held-out got worse: {points}."
    return f"No held-out improvement is shown: {points}; the interval includes none."


def headline(data: ReportData) -> Markup:
    """Return the first card."""
    before, after, what = _pair(data)
    shown = [
        el(
            "div",
            el("p", score(before), el("span", " → ", class_="arrow"), score(after), class_="big"),
            el("p", what, class_="dim"),
        )
    ]
    if data.heldout is not None:
        shown.append(el("div", interval_chart(data.heldout)))
    warnings = el("div", el("ul", [el("li", one) for one in data.warnings]), class_="alert", role="note")
    return el(
        "section",
        el("h2", "Result", id="result"),
        el("div", shown, class_="hero"),
        el("p", sentence(data), class_="lead"),
        warnings if data.warnings else None,
        facts(_facts(data)),
        el("p", f"Stopped: {data.reason}", class_="note") if data.reason else None,
        aria_labelledby="result",
    )


def _pair(data: ReportData) -> tuple[float | None, float | None, str]:
    if data.heldout is not None:
        return data.heldout.before, data.heldout.after, "mean held-out score, seed → result"
    return data.seed_score, data.best_score, "mean validation score, seed → best"


def _facts(data: ReportData) -> list[tuple[str, str, str]]:
    spent = data.spending
    simulated = "on a simulated service" if data.simulated else ""
    found = [_per_point(data, data.heldout)] if data.heldout is not None else []
    if data.heldout is not None:
        values = f"{score(data.seed_score)} → {score(data.best_score)}"
        found.append(("validation", values, "which the search has seen"))
    found.append(("rollouts", amount(data.rollouts), f"in {amount(len(data.iterations))} iterations"))
    found.append(("tokens", amount(spent.tokens), f"in {amount(spent.calls)} calls"))
    found.append(("dollars", "unknown" if spent.unpriced else money(spent.dollars), _unpriced(data) or simulated))
    seconds = data.seconds if data.seconds is not None else sum(row.seconds or 0.0 for row in data.iterations)
    found.append(("wall-clock", duration(seconds), simulated))
    return found


def _unpriced(data: ReportData) -> str:
    return dollars(data.spending).removeprefix("unknown ").strip("()") if data.spending.unpriced else ""


def _per_point(data: ReportData, held: Heldout) -> tuple[str, str, str]:
    """Return the cost of one point (0.01) of held-out score."""
    name = "cost per held-out point"
    if held.gain <= 0:
        return name, "–", "no point was gained"
    points = held.gain * 100
    tokens, rollouts = data.spending.tokens / points, data.rollouts / points
    note = f"{amount(tokens)} tokens, {rollouts:.3g} rollouts a point (0.01)"
    if data.simulated:
        note += ", on a simulated service"
    if held.low <= 0:
        note += "; the interval includes no gain"
    return name, "unknown" if data.spending.unpriced else money(data.spending.dollars / points), note
