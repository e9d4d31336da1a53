"""Which pairs of lessons a way of dealing brings together: recall of pairs about one category.

From plugins/bench: ``python -m studies.weighing.likeness --help``.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Annotated

import typer

from combee_dspy.aggregators import Union
from combee_dspy.lessons import deal_alike
from studies.weighing.records import make_records, reduce_records
from studies.weighing.service import Service
from studies.weighing.words import read_line

Groups = Sequence[tuple[int, ...]]


def by_words(texts: Sequence[str], most: int, seed: int) -> Groups:
    """Deal as the reference scan does: clusters of tf-idf of words."""
    return deal_alike(texts, range(len(texts)), most, random.Random(seed))  # noqa: S311 - no secret


def by_chance(texts: Sequence[str], most: int, seed: int) -> Groups:
    """Deal at random."""
    order = list(range(len(texts)))
    random.Random(seed).shuffle(order)  # noqa: S311 - no secret
    return [tuple(order[start : start + most]) for start in range(0, len(order), most)]


def recall(texts: Sequence[str], groups: Groups) -> float:
    """Return the share of pairs about one category, whatever their code, that share a group."""
    categories: defaultdict[str, list[int]] = defaultdict(list)
    for place, text in enumerate(texts):
        if (meaning := read_line(text)) is not None:
            categories[meaning.category].append(place)
    group_of = {place: number for number, group in enumerate(groups) for place in group}
    pairs = [pair for places in categories.values() for pair in combinations(places, 2)]
    met = sum(group_of.get(first, -1) == group_of.get(second, -2) for first, second in pairs)
    return met / len(pairs)


WAYS: dict[str, Callable[[Sequence[str], int, int], Groups]] = {
    "words": by_words,
    "chance": by_chance,
}


def main(
    seeds: Annotated[int, typer.Option(help="Seeds, from 0 on.")] = 3,
    most: Annotated[str, typer.Option(help="Lessons in a group at most.")] = "16,24,40",
) -> None:
    """Print recall and groups of one level, over the lines of 2,000 records with wrong labels."""
    for size in map(int, most.split(",")):
        for name, way in WAYS.items():
            outcomes = []
            for seed in range(seeds):
                task = make_records(seed, 0.2)
                lessons = asyncio.run(reduce_records(Union(), task, Service(task.laws, seed)))
                texts = [lesson.text for lesson in lessons.lessons]
                groups = way(texts, size, seed)
                outcomes.append((recall(texts, groups), len(groups), len(texts)))
            share, count, lines = (sum(column) / seeds for column in zip(*outcomes, strict=True))
            typer.echo(
                f"{size} a group, by {name}: {share:.2f} of pairs meet, "
                f"{count:.0f} groups of {lines:.0f} lines"
            )


if __name__ == "__main__":
    typer.run(main)
