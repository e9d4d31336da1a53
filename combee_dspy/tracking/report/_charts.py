"""The charts of a report: score against spending, the batch-size fit, weights, shares, and the timeline."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import median

from combee_dspy.records import PowerLawFit
from combee_dspy.tracking.report._data import PHASES, Heldout, IterationRow, Point, ReportData, Weights
from combee_dspy.tracking.report._html import Markup, el, join
from combee_dspy.tracking.report._svg import WIDTH, Frame, Scale, compact, legend, line, mark, nice_ticks, svg, text

__all__ = ["PHASE_NAMES", "fit_chart", "interval_chart", "score_chart", "share_chart", "timeline", "weights_chart"]

ROWS = 24
"""Neighbouring iterations share a row of the timeline while they take less than this part of all seconds together."""


def interval_chart(held: Heldout) -> Markup:
    """Draw the held-out difference with its interval, against no difference."""
    height, y = 74.0, 30.0
    edge = max(abs(held.low), abs(held.high), abs(held.gain), 1e-6) * 1.15
    low = -edge if held.low < 0 else min(0.0, held.low) - edge * 0.06
    high = edge if held.high > 0 else edge * 0.06
    x = Scale(low, high, 16, WIDTH - 16)
    label = f"Held-out difference {held.gain:+.3f}, {held.confidence:.0%} interval {held.low:+.3f} to {held.high:+.3f}"
    parts = [
        el("line", x1=x(0), x2=x(0), y1=8.0, y2=50.0, class_="axis"),
        el("line", x1=x.start, x2=x.end, y1=y, y2=y, class_="thin"),
        text("no difference", x(0), 68, "start" if x(0) < WIDTH / 4 else "middle"),
        el("line", x1=x(held.low), x2=x(held.high), y1=y, y2=y, class_="interval"),
        *(el("line", x1=x(end), x2=x(end), y1=y - 8, y2=y + 8, class_="interval") for end in (held.low, held.high)),
        mark(x(held.gain), y, label, "dot f3", 7),
    ]
    if x(held.gain) - x(0) > 110 or x(held.gain) < x(0):
        parts.append(text(f"{held.gain:+.3f}", x(held.gain), 68, "middle", "value"))
    return svg(label, parts, height)


def score_chart(
    points: Sequence[Point], spent: Callable[[Point], float | None], x_label: str, seed_score: float | None
) -> Markup | None:
    """Draw validation scores against what had been spent; ``None`` below one point that says both.

    Args:
        points: Validations, oldest first.
        spent: What had been spent by then; ``None`` leaves a point out.
        x_label: What that is, with its unit.
        seed_score: The seed's score, drawn as a line across.
    """
    found = [(at, point) for point in points if (at := spent(point)) is not None and math.isfinite(point.score)]
    if not any(at > 0 for at, _ in found):
        return None
    scores = [point.score for _, point in found] + ([seed_score] if seed_score is not None else [])
    low, high = min(scores), max(scores)
    pad = max((high - low) * 0.12, 0.01)
    bottom, top = low - pad, high + pad
    if low >= 0 and high <= 1:
        bottom, top = max(0.0, bottom), min(1.02, top)
    last = max(at for at, _ in found)
    frame = Frame.of((0.0, last * 1.03), (bottom, top))
    x, y = frame.x, frame.y
    parts = frame.axes(
        x_label, "validation score", nice_ticks(0, last * 1.03), nice_ticks(bottom, top), lambda tick: f"{tick:g}"
    )
    if seed_score is not None:
        parts.append(el("line", x1=x.start, x2=x.end, y1=y(seed_score), y2=y(seed_score), class_="line s5 dashed"))
        parts.append(text("seed", x.end, y(seed_score) - 5 if y(seed_score) > 40 else y(seed_score) + 14, "end"))
    steps: list[tuple[float, float]] = []
    best = seed_score if seed_score is not None else -math.inf
    for at, point in found:
        better = max(best, point.score)
        if math.isfinite(best):
            steps.append((x(at), y(best)))
        steps.append((x(at), y(better)))
        best = better
    steps.append((x(last), y(best)))
    drawn = line(steps, "line s1")
    parts += [drawn] if drawn else []
    for at, point in found:
        hint = f"candidate {point.index}, iteration {point.iteration}: {point.score:.3f} at {compact(at)} {x_label}"
        parts.append(mark(x(at), y(point.score), hint, "dot f1" if point.best else "dot hollow s1"))
    label = f"Validation score against {x_label}: from {found[0][1].score:.3f} to a best of {best:.3f}"
    return svg(label, parts)


def fit_chart(data: ReportData) -> Markup | None:
    """Draw seconds an epoch against batch size: measurements, fitted law, plateau, and the sizes chosen."""
    examples = data.sizes.get("train", 0)
    epochs = [
        (one.batch_size, one.seconds * examples / one.batch_size)
        for one in data.measurements
        if one.batch_size > 0 and 0 < one.seconds < math.inf and examples
    ]
    decisions = [decision for row in data.iterations for decision in row.decisions]
    fits = [decision.fit for decision in decisions if decision.fit is not None]
    fit = next((one for one in reversed(fits) if one.scale > 0 and math.isfinite(one.scale)), None)
    if not epochs:
        return None
    sizes = [float(size) for size, _ in epochs] + [float(decision.size) for decision in decisions]
    if fit is not None and 0 < fit.plateau < 20 * max(sizes):
        sizes.append(max(fit.plateau, 1.0))
    span = (min(sizes), max(sizes))
    curve = [] if fit is None else _curve(fit, span)
    seconds = [second for _, second in epochs] + [second for _, second in curve]
    frame = Frame.of(span, (min(seconds), max(seconds) * 1.2), log=True)
    x, y = frame.x, frame.y
    parts = frame.axes(
        "batch size (log)",
        "seconds an epoch (log)",
        nice_ticks(x.low, x.high, log=True),
        nice_ticks(y.low, y.high, log=True),
    )
    drawn = line([(x(size), y(second)) for size, second in curve], "line s1")
    parts += [drawn] if drawn else []
    if fit is not None and x.low <= fit.plateau <= x.high:
        at = x(fit.plateau)
        parts.append(el("line", x1=at, x2=at, y1=y.start, y2=y.end, class_="line s3 dashed"))
        anchor, shift = ("end", -6) if at > WIDTH * 0.6 else ("start", 6)
        parts.append(text(f"plateau {fit.plateau:.3g}", at + shift, y.end + 10, anchor, "value"))
    parts += [mark(x(size), y(second), f"{size}: {second:.4g} s", "f2 soft", 2.5) for size, second in epochs]
    for size in sorted({size for size, _ in epochs}):
        middle = median(second for at, second in epochs if at == size)
        parts.append(mark(x(size), y(middle), f"batch of {size}: {middle:.4g} s an epoch, median", "dot f2", 5))
    for size in sorted({decision.size for decision in decisions}):
        times = sum(decision.size == size for decision in decisions)
        at, base = x(size), y.start
        path = f"M{at:.1f} {base - 9:.1f}l-5 9h10z"
        parts.append(el("path", el("title", f"batch of {size}: chosen {times} times"), d=path, class_="f4"))
    law = "" if fit is None else f"; fitted T = {fit.scale:.4g} s · bs^(-{fit.exponent:.3g})"
    key = legend(
        [("f2", "measured, median of each size"), ("f1", "fitted law"), ("f3", "plateau"), ("f4", "size chosen")]
    )
    return join(svg(f"Seconds an epoch against batch size, {len(epochs)} measurements{law}", parts), key)


def _curve(fit: PowerLawFit, span: tuple[float, float]) -> list[tuple[float, float]]:
    low, high = math.log(span[0]), math.log(span[1])
    if high <= low or abs(fit.exponent) > 50:
        return []
    sizes = [math.exp(low + (high - low) * step / 24) for step in range(25)]
    return [(size, fit.scale * size**-fit.exponent) for size in sizes]


def weights_chart(weights: Sequence[Weights], last: int) -> Markup | None:
    """Draw the share of each operator over iterations, stacked."""
    if not weights:
        return None
    names = sorted({name for one in weights for name in one.weights})
    end = max(last, weights[-1].iteration) + 1
    frame = Frame.of((float(weights[0].iteration), float(end)), (0.0, 1.0))
    x, y = frame.x, frame.y
    parts: list[Markup] = []
    bounds = [(one, after.iteration) for one, after in pairwise(weights)] + [(weights[-1], end)]
    for one, until in bounds:
        below = 0.0
        for position, name in enumerate(names):
            share = max(0.0, one.weights.get(name, 0.0))
            hint = f"from iteration {one.iteration}: {name} {share:.0%}"
            box = {"x": x(one.iteration), "width": max(0.0, x(until) - x(one.iteration))}
            top = y(below + share)
            area = el("title", hint)
            parts.append(el("rect", area, **box, y=top, height=y(below) - top, class_=f"f{position % 6 + 1} soft"))
            below += share
    ticks = [tick for tick in nice_ticks(frame.x.low, frame.x.high) if tick == int(tick)]
    parts += frame.axes("iteration", "", ticks, [0, 0.5, 1], lambda tick: f"{tick:.0%}")
    shown = ", ".join(f"{name} {share:.0%}" for name, share in weights[-1].weights.items())
    key = legend([(f"f{position % 6 + 1}", name) for position, name in enumerate(names)])
    return join(svg(f"Operator weights over iterations, at the end: {shown}", parts), key)


def share_chart(series: Mapping[str, Sequence[tuple[float, float]]], label: str) -> Markup | None:
    """Draw shares between 0 and 1 over iterations; ``None`` where there are none.

    Args:
        series: ``(iteration, share)`` by name.
        label: What the chart shows.
    """
    drawn = {name: points for name, points in series.items() if points}
    if not drawn:
        return None
    across = [at for points in drawn.values() for at, _ in points]
    frame = Frame.of((min(across), max(across)), (0.0, 1.0))
    ticks = [tick for tick in nice_ticks(frame.x.low, frame.x.high) if tick == int(tick)]
    parts = frame.axes("iteration", "", ticks, [0, 0.25, 0.5, 0.75, 1], lambda tick: f"{tick:.0%}")
    for position, (name, points) in enumerate(drawn.items(), start=1):
        path = line([(frame.x(at), frame.y(share)) for at, share in points], f"line s{position}")
        parts += [path] if path else []
        for at, share in points:
            hint = f"{name}, iteration {at:g}: {share:.0%}"
            parts.append(mark(frame.x(at), frame.y(share), hint, f"dot f{position}", 3.5))
    key = legend([(f"f{position}", name) for position, name in enumerate(drawn, start=1)])
    return join(svg(label, parts), key)


def timeline(rows: Sequence[IterationRow]) -> Markup | None:
    """Draw what the run's seconds went to: one bar an iteration, one colour a phase."""
    timed = [row for row in rows if row.seconds]
    if not timed:
        return None
    total = sum(row.seconds or 0.0 for row in timed)
    groups = _groups(timed, total / ROWS)
    height = 14.0 + 19 * len(groups) + 42
    x = Scale(0.0, total, 96, WIDTH - 14)
    parts = [
        el("line", x1=x(tick), x2=x(tick), y1=10.0, y2=height - 40, class_="grid") for tick in nice_ticks(0, total)
    ]
    parts += [text(compact(tick), x(tick), height - 24, "middle") for tick in nice_ticks(0, total)]
    parts.append(text("seconds since the first iteration", (x.start + x.end) / 2, height - 6, "middle", "label"))
    begun = 0.0
    for place, group in enumerate(groups):
        seconds = sum(row.seconds or 0.0 for row in group)
        parts += _bar(group, begun, seconds, 14.0 + 19 * place, x)
        begun += seconds
    used = [phase for phase in PHASES if any(row.phases.get(phase) for row in timed)]
    key = legend([(f"f{PHASES.index(phase) % 6 + 1}", PHASE_NAMES[phase]) for phase in used])
    label = f"Timeline: {len(timed)} iterations in {total:.4g} seconds, by phase"
    return join(svg(label, parts, height), key)


def _groups(rows: Sequence[IterationRow], least: float) -> list[list[IterationRow]]:
    groups: list[list[IterationRow]] = []
    seconds = 0.0
    for row in rows:
        own = row.seconds or 0.0
        if groups and seconds + own < least:
            groups[-1].append(row)
            seconds += own
        else:
            groups.append([row])
            seconds = own
    return groups


PHASE_NAMES = {
    "parents": "rollouts of parents",
    "scan": "scan",
    "update": "operators",
    "children": "rollouts of children",
    "validation": "validation",
    "other": "other",
}


def _bar(group: Sequence[IterationRow], begun: float, seconds: float, top: float, x: Scale) -> list[Markup]:
    first, last = group[0], group[-1]
    name = f"#{first.number}" if first is last else f"#{first.number}–{last.number}"
    batch = f"n={first.decisions[-1].size}" if first is last and first.decisions else ""
    parts = [text(name, 4, top + 11), text(batch, 88, top + 11, "end")]
    phases = {phase: sum(row.phases.get(phase, 0.0) for row in group) for phase in PHASES}
    known = sum(phases.values())
    # The clock of the phases hears an iteration a moment later than the one that measures it.
    scale = min(1.0, seconds / known) if known else 0.0
    at = begun
    for position, phase in enumerate(PHASES, start=1):
        width = x(at + phases[phase] * scale) - x(at)
        if width > 0:
            hint = f"{name} {PHASE_NAMES[phase]}: {phases[phase]:.3g} s"
            box = {"x": x(at), "y": top, "width": max(width, 0.6), "height": 14.0}
            parts.append(el("rect", el("title", hint), **box, class_=f"f{position}"))
        at += phases[phase] * scale
    accepted = sum(row.accepted for row in group)
    if accepted:
        end = x(begun + seconds)
        inside = end < WIDTH - 40
        hint = f"+{accepted}"
        parts.append(text(hint, end + 4 if inside else x(begun) - 4, top + 11, "start" if inside else "end", "value"))
    return parts
