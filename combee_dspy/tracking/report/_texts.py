"""The sections of a report that hold foreign text: prompts, scans, candidates, rollouts, notes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from combee_dspy.tracking.report._data import CandidateRow, Note, ReportData, ScanNode, ScanView, TellingRollout
from combee_dspy.tracking.report._diff import Line, diff, readable
from combee_dspy.tracking.report._html import Child, Markup, el
from combee_dspy.tracking.report._lineage import texts_before
from combee_dspy.tracking.report._parts import amount, block, duration, score, section, table
from combee_dspy.tracking.report._tree import scan_tree

__all__ = ["candidates", "changes", "notes", "prompts", "rollouts", "scans", "setup"]

TREES = 40
"""Scans drawn; of more, the latest and those that made a kept candidate."""

COMPARED = 60
"""Candidates outside the pool whose change is shown."""


def prompts(data: ReportData) -> Markup:
    """What changed from the seed to the result."""
    if not data.seed_texts and not data.best_texts:
        return section("prompts", "Prompts", el("p", "No candidate was heard.", class_="dim"))
    best = next((one for one in data.candidates if one.chosen), None)
    what = "the result" if data.finished else "the best so far"
    name = f"{what}, candidate {best.index}" if best is not None and best.index is not None else what
    shown = changes(data.seed_texts, data.best_texts)
    same = el("p", "The result is the seed: nothing was changed.", class_="dim")
    lead = el("p", f"From the seed (−) to {name} (+).", class_="note")
    return section("prompts", "Prompts: seed → result", lead, shown or same)


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[Markup]:
    """Return the comparison of every component that differs."""
    found = []
    for component in sorted({*old, *new}):
        before, after = old.get(component, ""), new.get(component, "")
        if before == after:
            continue
        size = f"{amount(len(before))} → {amount(len(after))} characters"
        found.append(el("h3", _component(component), " ", el("span", size, class_="note")))
        found.append(_diff(diff(readable(before), readable(after))))
    return found


def _component(name: str) -> str:
    path, _, part = name.partition("::")
    return f"{path} · {part}" if part else path


def _diff(lines: Sequence[Line]) -> Markup:
    tags = {"add": "ins", "del": "del"}
    rows = [
        el("div", [el(tags[one.kind], text) if changed else text for text, changed in one.spans], **_row(one))
        for one in lines
    ]
    return el("div", rows, class_="diff", tabindex="0", role="group", aria_label="comparison")


def _row(one: Line) -> dict[str, str]:
    return {"class_": one.kind, "dir": "auto"}


def scans(data: ReportData) -> Markup:
    """Every scan as a tree, with what each node kept."""
    if not data.scans:
        return section("scans", "Scans", el("p", "No scan was made.", class_="dim"))
    kept = {one.iteration for one in data.candidates if one.index}
    made = next((one.iteration for one in data.candidates if one.chosen), 0)
    first = next((scan for scan in data.scans if scan.iteration == made), data.scans[-1])
    ranked = sorted(data.scans, key=lambda scan: (scan is not first, scan.iteration not in kept, -scan.iteration))
    drawn = ranked[:TREES]
    others = sorted(drawn[1:], key=lambda scan: -scan.iteration)
    lead = "Read from left to right: 12 → 5 is 12 reflections below a node and 5 lessons out of it."
    if any(node.kept is not None for scan in drawn for node in scan.nodes):
        lead += " Green: the share of its reflections that the result still covers on this path; −2: lost after it."
    rest = len(data.scans) - len(drawn)
    return section(
        "scans",
        "Scans: what each node kept",
        el("p", lead, class_="note"),
        _scan(first, opened=True),
        el(
            "details",
            el("summary", "Other scans ", el("span", f"({len(others)})", class_="dim")),
            [_scan(scan, opened=False) for scan in others],
        )
        if others
        else None,
        el("p", f"{rest} further scans are not drawn.", class_="note") if rest else None,
    )


def _scan(scan: ScanView, *, opened: bool) -> Markup:
    told = f"{scan.aggregator}: {scan.reflections} reflections → {scan.lessons} lessons, {duration(scan.seconds)}"
    if scan.covered is not None:
        told += f", {scan.covered} of {scan.measured} covered"
    failed = sum(bool(node.failed) for node in scan.nodes)
    told += f", {failed} failed" if failed else ""
    more = (
        [f"Estimated tokens by level: {' → '.join(map(amount, scan.tokens_per_level))}."]
        if scan.tokens_per_level
        else []
    )
    more += [f"Lost before and offered again: {scan.rescued}."] if scan.rescued else []
    title = f"Iteration {scan.iteration} · {_component(scan.component)} "
    nodes = sorted(scan.nodes, key=lambda node: (-node.level, node.node))
    tree = scan_tree(scan)
    return el(
        "details",
        el("summary", title, el("span", told, class_="dim")),
        el(
            "div",
            el("figure", tree, el("p", " ".join(more), class_="note") if more else None) if tree else None,
            el("div", [_node(node, opened=place == 0) for place, node in enumerate(nodes)]),
            class_="grid2",
        ),
        open="" if opened else None,
    )


def _node(node: ScanNode, *, opened: bool) -> Markup | None:
    if not node.lessons and not node.failed:
        return None
    title = f"Level {node.level}, node {node.node}: {node.sources} → {node.count}"
    more = node.count - len(node.lessons)
    body: list[Child] = [el("ol", [el("li", lesson, dir="auto") for lesson in node.lessons])] if node.lessons else []
    body += [el("p", f"… and {more} more", class_="note")] if more > 0 and node.lessons else []
    body += [el("p", f"Failed: {node.failed}", class_="note")] if node.failed else []
    return el("details", el("summary", title), body, open="" if opened and len(node.lessons) <= 12 else None)


def candidates(data: ReportData) -> Markup:
    """Where every candidate came from, and what it changed."""
    rows = data.candidates
    if not rows:
        return section("candidates", "Candidates", el("p", "No candidate was heard.", class_="dim"))
    columns = (
        "#pool",
        "id",
        "#iteration",
        "made by",
        "parent",
        "#parent on minibatch",
        "#on minibatch",
        "#validation",
        "~fate",
    )
    best = next((place for place, one in enumerate(rows) if one.chosen), -1)
    known = {one.candidate_id: one for one in reversed(rows)}
    inside = _compared([one for one in rows if one.index], known, data)
    outside = _compared([one for one in rows if one.index is None][-COMPARED:], known, data)
    if outside:
        title = el("summary", "Candidates that were not kept ", el("span", f"({len(outside)})", class_="dim"))
        inside.append(el("details", title, outside))
    return section(
        "candidates",
        "Candidates and where they came from",
        table(columns, [_candidate(one, known) for one in rows], best=best),
        el("h3", "What each changed in its parent") if inside else None,
        inside,
    )


def _compared(rows: Sequence[CandidateRow], known: Mapping[str, CandidateRow], data: ReportData) -> list[Markup]:
    return [
        el("details", el("summary", _name(one), " ", el("span", _told(one, known), class_="dim")), changed)
        for one in rows
        if one.texts and (changed := _changed(one, known, data))
    ]


def _told(one: CandidateRow, known: Mapping[str, CandidateRow]) -> str:
    parent = _parent(one, known)
    validated = f", validation {one.validation:.3f}" if one.validation is not None else ""
    return f"{one.operator} on {parent}, iteration {one.iteration}{validated}, {one.fate}"


def _parent(one: CandidateRow, known: Mapping[str, CandidateRow]) -> str:
    parent = known.get(one.parent_id)
    named = f"{parent.index}" if parent is not None and parent.index is not None else one.parent_id[:8]
    return ", ".join(map(str, one.parents)) or named or "–"


def _changed(one: CandidateRow, known: Mapping[str, CandidateRow], data: ReportData) -> list[Markup]:
    before = texts_before(one, known, data.seed_texts)
    return changes({name: text for name, text in before.items() if name in one.texts}, one.texts)


def _name(one: CandidateRow) -> str:
    return f"Candidate {one.index}" if one.index is not None else f"Candidate {one.candidate_id[:8]}"


def _candidate(one: CandidateRow, known: Mapping[str, CandidateRow]) -> list[Child]:
    return [
        "–" if one.index is None else str(one.index),
        el("code", one.candidate_id[:12]),
        str(one.iteration),
        one.operator,
        _parent(one, known),
        score(one.parent_minibatch),
        score(one.minibatch),
        score(one.validation),
        one.fate,
    ]


_WHY = {
    "improved": "better than its parent",
    "fell": "worse than its parent",
    "error": "error",
    "worst": "lowest score",
    "best": "highest score",
}


def rollouts(data: ReportData) -> Markup:
    """The most telling rollouts."""
    if not data.telling:
        return section("rollouts", "Rollouts worth reading", el("p", "None were heard.", class_="dim"))
    lead = el("p", "Held-out rows are never shown.", class_="note")
    return section("rollouts", "Rollouts worth reading", lead, [_rollout(one) for one in data.telling])


def _rollout(one: TellingRollout) -> Markup:
    badge = el("span", _WHY[one.kind], class_="badge bad" if one.kind in ("error", "fell") else "badge")
    scored = f"{one.before:.3f} → {one.score:.3f}" if one.before is not None else f"{one.score:.3f}"
    told = f" {one.split}, iteration {one.iteration}, candidate {one.candidate_id[:8]}, rollout {one.rollout_id}"
    texts = (("input", one.inputs), ("answer", one.prediction), ("feedback", one.feedback), ("error", one.error))
    blocks = [el("div", el("div", name, class_="note"), block(readable(text))) for name, text in texts if text]
    head = el("div", badge, el("strong", f"score {scored}"), el("span", told, class_="note"))
    return el("div", head, el("div", blocks, class_="what"), class_="rollout")


def notes(data: ReportData) -> Markup:
    """Errors and whatever else a reader should know."""
    kinds = {"error": "badge bad", "warning": "badge warn", "info": "badge"}
    rows: list[list[Child]] = [
        [str(one.iteration), el("span", one.severity, class_=kinds[one.severity]), one.title, one.text]
        for one in _grouped(data.notes)
    ]
    shown = table(("#iteration", "", "what", "~"), rows) if rows else el("p", "No errors.", class_="dim")
    left = el("ul", [el("li", one) for one in data.dropped], class_="note") if data.dropped else None
    about = el("p", "Left out to keep this page small:", class_="note") if data.dropped else None
    return section("notes", "Errors and notes", shown, about, left)


def _grouped(found: Sequence[Note]) -> list[Note]:
    order = {"error": 0, "warning": 1, "info": 2}
    return sorted(found, key=lambda one: (order[one.severity], one.iteration))


def setup(data: ReportData) -> Markup:
    """What was run: strategies, models, data."""
    rows: list[list[Child]] = [[f"model of {role}", el("code", model)] for role, model in sorted(data.models.items())]
    for split in ("train", "validation", "heldout"):
        if data.sizes.get(split) or split in data.digests:
            digest = data.digests.get(split, "")
            told = f"{amount(data.sizes.get(split, 0))} rows"
            rows.append([f"data: {split}", [told, el("br"), el("code", f"SHA-256 {digest}")] if digest else told])
    rows += [[f"strategy: {kind}", el("code", _spec(spec))] for kind, spec in sorted(data.specs.items())]
    rows.append(["seed", "–" if data.seed is None else str(data.seed)])
    return section("setup", "How it was run", table(("", "~"), rows))


def _spec(spec: object) -> str:
    try:
        return spec if isinstance(spec, str) else json.dumps(spec, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return str(spec)
