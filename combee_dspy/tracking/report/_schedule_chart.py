"""The charts of a schedule: what was released when, and the slots and the queue behind it."""

from __future__ import annotations

from combee_dspy.tracking.report._data import ScheduleView
from combee_dspy.tracking.report._html import Markup, el, join
from combee_dspy.tracking.report._svg import Frame, legend, line, nice_ticks, svg

__all__ = ["queue_chart", "release_chart"]

_HEIGHT = 220
_X_LABEL = "seconds since the run began"


def release_chart(view: ScheduleView) -> Markup | None:
    """Draw how many tasks were released when, by lane, stacked; ``None`` where none were."""
    ticks = [tick for tick in view.ticks if tick.total]
    if not ticks:
        return None
    end = ticks[-1].seconds + view.width
    frame = Frame.of((0.0, end), (0.0, max(tick.total for tick in ticks) * 1.05), height=_HEIGHT)
    parts = frame.axes(_X_LABEL, "tasks released", nice_ticks(0, end), nice_ticks(0, frame.y.high))
    colours = {lane: f"f{position % 6 + 1}" for position, lane in enumerate(view.lanes)}
    for tick in ticks:
        below = 0.0
        left, right = frame.x(tick.seconds), frame.x(tick.seconds + view.width)
        for lane, count in sorted(tick.released.items(), key=lambda item: list(colours).index(item[0])):
            top = frame.y(below + count)
            hint = f"{tick.seconds:.4g} s: {count} of {lane}"
            box = {"x": left, "width": max(right - left - 0.6, 0.8), "y": top, "height": frame.y(below) - top}
            parts.append(el("rect", el("title", hint), **box, class_=colours[lane]))
            below += count
    total = sum(tick.total for tick in ticks)
    key = legend([(colour, lane) for lane, colour in colours.items()])
    return join(svg(f"Tasks released over time, by lane: {total} in {end:.4g} seconds", parts, _HEIGHT), key)


def queue_chart(view: ScheduleView) -> Markup | None:
    """Draw the longest queue and the slots over time; ``None`` where neither was told."""
    slots = [(tick.seconds, tick.limit) for tick in view.ticks if tick.limit is not None]
    if not slots and not any(tick.queued for tick in view.ticks):
        return None
    end = view.ticks[-1].seconds + view.width
    high = max([*(tick.queued for tick in view.ticks), *(limit for _, limit in slots), 1])
    frame = Frame.of((0.0, end), (0.0, high * 1.08), height=_HEIGHT)
    x, y = frame.x, frame.y
    parts = frame.axes(_X_LABEL, "tasks", nice_ticks(0, end), nice_ticks(0, frame.y.high))
    for tick in view.ticks:
        box = {"x": x(tick.seconds), "width": max(x(tick.seconds + view.width) - x(tick.seconds) - 0.6, 0.8)}
        top = y(tick.queued)
        hint = el("title", f"{tick.seconds:.4g} s: {tick.queued} waiting")
        parts.append(el("rect", hint, **box, y=top, height=y.start - top, class_="f5 soft"))
    steps: list[tuple[float, float]] = []
    for seconds, limit in slots:
        steps += [(x(seconds), steps[-1][1])] if steps else []
        steps.append((x(seconds), y(limit)))
    drawn = line([*steps, (x(end), steps[-1][1])], "line s1") if steps else None
    parts += [drawn] if drawn else []
    key = legend([("f5", "longest queue"), *([("f1", "slots")] if slots else [])])
    return join(svg(f"Slots and queue over time: at most {high} tasks", parts, _HEIGHT), key)
