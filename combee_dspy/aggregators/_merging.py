"""The tree above the shards: lists of lessons merged by an LM, level by level, up to one node."""

from __future__ import annotations

from collections.abc import Sequence

from combee_dspy.aggregators._base import together
from combee_dspy.aggregators._joining import joined, traced
from combee_dspy.aggregators._plan import even_runs
from combee_dspy.aggregators._prompts import MergeLessons
from combee_dspy.aggregators._scan import Node, Scan
from combee_dspy.reflections import estimate_record_tokens

__all__ = ["merge_levels"]


async def merge_levels(scan: Scan, fan_in: int) -> None:
    """Merge the lists of a scan's highest level, and the lists that come of it, up to one node.

    A level has the fewest merges of consecutive lists that respect the fan-in and
    the tokens of a call, all in flight at once. A merge that fails or returns
    nothing is replaced by code: the node holds all that its children hold, so
    nothing found is lost. So is the last one where whoever gets the lessons reads
    them all in a call of its own, and a level in which no two lists fit one call.

    Args:
        scan: A scan that has read its shards; gets a level for each level of merges.
        fan_in: The most lists that one call may merge, at least 2.
    """
    while len(scan.top) > 1:
        lower = scan.top
        sizes = [estimate_record_tokens(list(node.output.lessons)) for node in lower]
        runs = even_runs(sizes, scan.room, fan_in)
        if len(runs) == len(lower):
            scan.warn(0, f"no two of {len(lower)} lists fit one call of {scan.room:,} tokens: joined by code")
            scan.join(joined(node.lessons for node in lower))
        elif len(runs) == 1 and scan.context.joined_later:
            scan.join(joined(node.lessons for node in lower))
        else:
            answers = await together(_asked(scan, number, lower[slice(*run)]) for number, run in enumerate(runs))
            merged = zip(runs, answers, strict=True)
            scan.levels.append(
                [_merged(scan, number, lower[slice(*run)], answer) for number, (run, answer) in enumerate(merged)]
            )


async def _asked(scan: Scan, number: int, children: Sequence[Node]) -> object | None:
    """Return the answer of a merge, or ``None`` where fewer than two children hold something."""
    lists = [list(child.output.lessons) for child in children if child.lessons]
    if len(lists) < 2:
        return None
    given = {"current_instruction": scan.context.text, "lesson_lists": lists}
    return await scan.context.ask(MergeLessons, given, "merge", len(scan.levels) + 1, number)


def _merged(scan: Scan, number: int, children: Sequence[Node], answer: object | None) -> Node:
    lists = [child.lessons for child in children]
    below = tuple(sorted({source for child in children for source in child.output.sources}))
    lessons, failed = joined(lists), None
    if answer is not None:
        texts, failed = scan.texts(number, answer, "lessons", sum(map(len, lists)))
        if texts:
            lessons = traced(texts, lists, below)
        else:
            failed = failed or "EmptyAnswer: the merge returned no lessons"
    return scan.node(number, lessons, below, failed)
