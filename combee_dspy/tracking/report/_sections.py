"""The sections of a report that are about the search: spending, batches, schedule, operators, diversity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from combee_dspy.records import BatchDecision
from combee_dspy.tracking.report._charts import (
    PHASE_NAMES,
    fit_chart,
    score_chart,
    share_chart,
    timeline,
    weights_chart,
)
from combee_dspy.tracking.report._data import PHASES, CostRow, IterationRow, Point, ReportData, ScheduleView, Spending
from combee_dspy.tracking.report._html import Child, Markup, el
from combee_dspy.tracking.report._parts import amount, dollars, duration, figure, money, score, section, table
from combee_dspy.tracking.report._schedule_chart import queue_chart, release_chart

__all__ = ["batches", "cost", "diversity", "operators", "progress", "schedule"]


def progress(data: ReportData) -> Markup:
    """Score against rollouts, tokens and dollars."""
    points, seed = data.points, data.seed_score
    drawn = [
        ("Score against rollouts", score_chart(points, lambda one: float(one.rollouts), "rollouts", seed)),
        (
            "Score against tokens",
            score_chart(points, _tokens, "tokens", seed),
        ),
        (
            "Score against dollars",
            score_chart(points, _dollars, "dollars", seed),
        ),
    ]
    figures = [figure(caption, drawing) for caption, drawing in drawn if drawing is not None]
    note = None
    minibatches = _minibatches(data.iterations)
    figures += [figure("Parents and children on the same minibatch", minibatches)] if minibatches else []
    if figures and drawn[2][1] is None:
        why = "no price is known for its calls" if data.spending.unpriced else "every call was free"
        note = el("p", f"No chart against dollars: {why}.", class_="note")
    elif data.spending.unpriced:
        note = el("p", f"Dollars are those known; {amount(data.spending.unpriced)} calls have no price.", class_="note")
    lead = el("p", "Each dot is a candidate on the validation set; the line is the best so far.", class_="note")
    empty = el("p", "No candidate has been validated yet.", class_="dim")
    return section("progress", "Score against what was spent", *([lead, _grid(figures), note] if figures else [empty]))


def _minibatches(rows: Sequence[IterationRow]) -> Markup | None:
    means = {
        "parents": [(float(row.number), row.parent_mean) for row in rows if row.parent_mean is not None],
        "children": [(float(row.number), row.child_mean) for row in rows if row.child_mean is not None],
    }
    if not means["children"] or not all(0 <= mean <= 1 for points in means.values() for _, mean in points):
        return None
    return share_chart(means, "Mean score of parents and children on each minibatch")


def _tokens(point: Point) -> float | None:
    return None if point.spending is None else float(point.spending.tokens)


def _dollars(point: Point) -> float | None:
    return None if point.spending is None else point.spending.dollars


def cost(data: ReportData) -> Markup:
    """What each role cost."""
    if not data.costs:
        return section("cost", "Cost by role", el("p", "No costs were heard.", class_="dim"))
    columns = (
        "role",
        "model",
        "#calls",
        "#errors",
        "#cached",
        "#tokens in",
        "#tokens out",
        "#dollars",
        "#GPU s",
        "#s a call",
        "#slowest",
        "#peak",
    )
    rows = [_cost(row) for row in data.costs]
    total = data.spending
    sums = [sum(getattr(row, name) for row in data.costs) for name in ("errors", "cached", "prompt_tokens")]
    gpu = [row.gpu_seconds for row in data.costs if row.gpu_seconds is not None]
    out = sum(row.completion_tokens for row in data.costs)
    last: list[Child] = ["all", "", amount(total.calls), *map(amount, sums), amount(out), dollars(total)]
    last += [f"{sum(gpu):,.1f}" if gpu else "–", "", "", ""]
    note = (
        "The whole run, its held-out readings included. Peak: most calls at once. A dash: not declared, or not known."
    )
    shown = el("p", note, class_="note")
    return section("cost", "Cost by role", table(columns, [*rows, last], foot=True), shown)


def _cost(row: CostRow) -> list[Child]:
    spent = Spending(dollars=row.dollars, unpriced=row.unpriced)
    return [
        row.role,
        ", ".join(row.models),
        amount(row.calls),
        amount(row.errors),
        amount(row.cached),
        amount(row.prompt_tokens),
        amount(row.completion_tokens),
        "unknown" if row.unpriced and not row.dollars else dollars(spent) if row.unpriced else money(row.dollars),
        "–" if row.gpu_seconds is None else f"{row.gpu_seconds:,.1f}",
        f"{row.seconds / row.calls:.3g} s" if row.calls else "–",
        duration(row.slowest),
        amount(row.peak),
    ]


def batches(data: ReportData) -> Markup:
    """The batch-size fit, and every decision with its clamps."""
    decided = [(row, decision) for row in data.iterations for decision in row.decisions]
    if not decided:
        none = el("p", "No controller planned batches in this run.", class_="dim")
        return section("batches", "Batch size", none)
    fit = next((decision.fit for _, decision in reversed(decided) if decision.fit is not None), None)
    law = None
    if fit is not None:
        law = el(
            "p",
            f"T(bs) = {fit.scale:.4g} s · bs^(−{fit.exponent:.3g}); the plateau is the last size at which one more "
            f"example a batch still saves {fit.tau:.3g} s an epoch: {fit.plateau:.3g} examples.",
        )
    chart = fit_chart(data)
    clamps = Counter(clamp.name for _, decision in decided for clamp in decision.clamps)
    clamped = ", ".join(f"{name} ({count}×)" for name, count in clamps.most_common())
    sizes = Counter(decision.size for _, decision in decided)
    used = table(
        ("#batch size", "#iterations"), [[str(size), str(count)] for size, count in sorted(sizes.items())[:12]]
    )
    columns = ("#iteration", "#size", "~why", "~clamps")
    rows = [[str(row.number), str(decision.size), decision.reason, _clamps(decision)] for row, decision in decided]
    summary = el("summary", "Every decision ", el("span", f"({len(rows)})", class_="dim"))
    return section(
        "batches",
        "Batch size",
        _grid(
            [
                figure("Seconds an epoch against batch size", chart) if chart else None,
                el("div", law, used, el("p", f"Clamps that changed a size: {clamped or 'none'}.", class_="note")),
            ]
        ),
        el("details", summary, table(columns, rows), open="" if len(rows) <= 12 else None),
    )


def _clamps(decision: BatchDecision) -> Child:
    parts = [f"{clamp.name}: {clamp.before} → {clamp.after} ({clamp.reason})" for clamp in decision.clamps]
    return "; ".join(parts) or "–"


def schedule(data: ReportData) -> Markup:
    """The run as a timeline."""
    rows = data.iterations
    if not rows:
        return section("schedule", "Schedule", el("p", "No iteration has begun.", class_="dim"))
    chart = timeline(rows)
    known = any("parents" in row.phases for row in rows)
    note = "+n: candidates that joined the pool."
    if not known:
        note += " Heard without a clock: only scans are told apart."
    decided = Counter({name: 0 for row in rows for name in row.schedule})
    for row in rows:
        decided.update(row.schedule)
    told = ", ".join(f"{count} × {name}" for name, count in decided.most_common(12))
    columns = (
        "#iteration",
        "#batch",
        "#seconds",
        "#rollouts",
        "#from memo",
        "#errors",
        "#parent mean",
        "#child mean",
        "#proposed",
        "#accepted",
        "~notes",
    )
    summary = el("summary", "Every iteration ", el("span", f"({len(rows)})", class_="dim"))
    return section(
        "schedule",
        "Schedule",
        _grid([figure("Where the seconds went", chart, note), _phases(rows, told)]) if chart else None,
        _released(data.schedule),
        el("details", summary, table(columns, [_iteration(row) for row in rows])),
    )


def _released(view: ScheduleView) -> Markup | None:
    """Return what the run's scheduler decided, where there was one."""
    drawn = [("Released when, by lane", release_chart(view)), ("Slots and queue", queue_chart(view))]
    figures = [figure(caption, drawing) for caption, drawing in drawn if drawing is not None]
    gave_way = sum(tick.dropped for tick in view.ticks)
    reasons = sorted(view.releases, key=lambda one: -one.tasks)
    rows = [[one.reason, amount(one.times), amount(one.tasks)] for one in reasons]
    parts = [_grid(figures) if figures else None]
    parts += [table(("~released because", "#batches", "#tasks"), rows)] if rows else []
    told = f"Waiting tasks gave way to more urgent ones {gave_way} times."
    parts += [el("p", told, class_="note")] if gave_way else []
    return el("div", parts) if any(parts) else None


def _phases(rows: Sequence[IterationRow], told: str) -> Markup:
    seconds = {phase: sum(row.phases.get(phase, 0.0) for row in rows) for phase in PHASES}
    total = sum(seconds.values())
    shown = [
        [PHASE_NAMES[phase], duration(spent), f"{spent / total:.0%}"] for phase, spent in seconds.items() if spent > 0
    ]
    decided = el("p", f"Decisions that depend on time: {told}.", class_="note") if told else None
    return el("div", table(("phase", "#time", "#share"), shown) if shown else None, decided)


def _iteration(row: IterationRow) -> list[Child]:
    sizes = ", ".join(str(decision.size) for decision in row.decisions)
    notes = [f"started again: {row.restarted}"] if row.restarted else []
    notes += [f"temperature {row.temperature:.2g}"] if row.temperature is not None else []
    return [
        str(row.number),
        sizes or "–",
        duration(row.seconds),
        amount(row.rollouts),
        amount(row.cached),
        amount(row.errors),
        score(row.parent_mean),
        score(row.child_mean),
        amount(row.proposed),
        amount(row.accepted),
        "; ".join(notes),
    ]


def operators(data: ReportData) -> Markup | None:
    """Operator weights, and what each operator achieved."""
    made = [one for one in data.candidates if one.operator != "seed"]
    if not (made or data.refusals or data.weights):
        return None
    names = sorted({one.operator for one in made} | {operator for operator, _, _ in data.refusals})
    rows: list[Sequence[Child]] = []
    for name in names:
        own = [one for one in made if one.operator == name]
        kept = [one for one in own if one.index is not None]
        gains = [
            one.minibatch - one.parent_minibatch
            for one in own
            if one.minibatch is not None and one.parent_minibatch is not None
        ]
        refused = [(count, reason) for operator, reason, count in data.refusals if operator == name]
        gain = f"{sum(gains) / len(gains):+.3f}" if gains else "–"
        why = max(refused)[1] if refused else ""
        times = sum(count for count, _ in refused)
        rows.append([name, amount(len(own)), amount(len(kept)), gain, amount(times), why])
    chart = weights_chart(data.weights, len(data.iterations))
    last = data.weights[-1].reason if data.weights else ""
    columns = ("operator", "#children", "#kept", "#mean gain on minibatch", "#no child", "~most often because")
    return section(
        "operators",
        "Operators",
        _grid([figure("Operator weights over iterations", chart, last)]) if chart else None,
        table(columns, rows),
        None if chart else el("p", "Every operator took its turn: no weights were learned.", class_="note"),
    )


def diversity(data: ReportData) -> Markup | None:
    """What scans retained, and how alike candidates were."""
    covered = [
        (float(scan.iteration), scan.covered / scan.measured)
        for scan in data.scans
        if scan.covered is not None and scan.measured
    ]
    alike = [(float(row.number), row.front_similarity) for row in data.iterations if row.front_similarity is not None]
    if not covered and not alike and not any(row.distinct is not None for row in data.iterations):
        return None
    retention = share_chart({"reflections covered": covered}, "Share of reflections that each scan's result covers")
    similar = share_chart({"similarity of the best": alike}, "Mean pairwise similarity of the best candidates")
    figures = [figure("Retention", retention)] if retention else []
    figures += [figure("Diversity", similar)] if similar else []
    last = next((row for row in reversed(data.iterations) if row.distinct is not None), None)
    counts = None
    if last is not None:
        counts = (
            f"{last.distinct} distinct candidates; refused: {last.too_similar} as too similar, "
            f"{last.repeated} as a text that had been refused before."
        )
    lost = sum(scan.measured - scan.covered for scan in data.scans if scan.covered is not None)
    rescued = sum(scan.rescued for scan in data.scans)
    told = f"Reflections no longer covered: {lost}; offered a second time: {rescued}." if covered else None
    parts = [el("p", one, class_="note") for one in (told, counts) if one]
    return section("diversity", "Retention and diversity", _grid(figures), parts)


def _grid(figures: Sequence[Markup | None]) -> Markup:
    return el("div", figures, class_="grid2")
