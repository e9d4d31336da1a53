"""Eleven tasks that differ in program, rows, scores and feedback."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import dspy

from studies.unseen.programs import FAMILIES, Desk, Hops, desk_rows, make_agent
from studies.unseen.scoring import (
    score_agent,
    score_checked,
    score_desk,
    score_hops,
    score_plainly,
    score_style,
    score_words,
)
from studies.unseen.world import Rule, Task

__all__ = ["TASKS"]

_NAMES = [
    "anvil",
    "basalt",
    "cinnabar",
    "dolomite",
    "ember",
    "fjord",
    "garnet",
    "hornblende",
    "indigo",
    "jasper",
    "kelp",
    "limestone",
    "marble",
    "nickel",
    "onyx",
    "pumice",
    "quartz",
    "rhyolite",
    "slate",
    "topaz",
    "umber",
    "vellum",
    "willow",
    "xenon",
    "yarrow",
    "zircon",
    "alder",
    "birch",
    "cedar",
    "damson",
    "elm",
    "fir",
    "gorse",
    "hazel",
    "ivy",
    "juniper",
    "larch",
    "maple",
    "nettle",
    "oak",
]
_FILLERS = (
    "harbour",
    "morning",
    "ledger",
    "courier",
    "window",
    "kettle",
    "bridge",
    "garden",
    "signal",
    "lantern",
    "orchard",
    "parcel",
    "meadow",
    "cabinet",
    "staircase",
    "workshop",
)


def _write(task: Task, source: random.Random, rule: Rule) -> dspy.Example:
    """A note with the rule's cues among other words."""
    words = [*rule.cues, *source.sample(task.fillers, 3)]
    source.shuffle(words)
    text = f"Note {source.randrange(10_000)}: about the " + ", the ".join(words) + "."
    return _example(task, text)


def _example(task: Task, text: str) -> dspy.Example:
    answers = {
        field: ", ".join(task.right(text, field)) for field in {rule.field for rule in task.rules}
    }
    return dspy.Example(question=text, **answers).with_inputs("question")


def _write_several(task: Task, source: random.Random, rule: Rule) -> dspy.Example:
    """A note with the cues of three rules."""
    others = source.sample([other for other in task.rules if other != rule], 2)
    words = [*(part.cues[0] for part in (rule, *others)), source.choice(task.fillers)]
    source.shuffle(words)
    return _example(task, f"Note {source.randrange(10_000)}: " + ", ".join(words) + ".")


def _one_to_one(
    cues: Sequence[str], values: Sequence[str], field: str = "answer"
) -> tuple[Rule, ...]:
    return tuple(
        Rule((cue,), field, values[number % len(values)]) for number, cue in enumerate(cues)
    )


def _codes(letter: str, count: int) -> list[str]:
    return [f"{letter}{number}" for number in range(11, 11 + count)]


def _in_context(topics: Iterable[str], regions: Sequence[str]) -> tuple[Rule, ...]:
    """A rule for each topic, and another answer in some regions."""
    rules = []
    for number, topic in enumerate(topics):
        rules.append(Rule((topic,), "answer", f"D{10 + number}", 3.0))
        for place, region in enumerate(regions[: 1 + number % 2]):
            rules.append(Rule((topic, region), "answer", f"D{30 + 3 * number + place}", 1.0))
    return tuple(rules)


def _write_japanese(task: Task, source: random.Random, rule: Rule) -> dspy.Example:
    here, there = source.sample(task.fillers, 2)
    text = f"受付{source.randrange(10_000)}番、{here}にて{rule.cues[0]}について{there}から連絡あり"
    return _example(task, text)


def _polish(rules: Sequence[Rule]) -> str:
    """A careful prompt of about 400 words that has most of the rules in its prose."""
    prose = [
        "You sort notes for a small trading house and answer with one code",
        "Clerks read your answer and act on it within the hour, so a wrong code costs a delivery",
        "Read the note to its end, since what matters may stand last",
        "A note has a number, which means nothing to you",
        "The words of a note come in no order and may be about several places at once",
        "Answer with the code alone, without a full stop and without a reason",
    ]
    ends = ("as agreed with the house", "which the clerks of the first floor expect", "by custom")
    lines = [
        f"Where a note speaks of {rule.cues[0]} the code is {rule.value}, {ends[number % 3]}"
        for number, rule in enumerate(rules)
    ]
    closing = [
        (
            "These rules were settled over years, and each has its reason in a loss that the house"
            " took"
        ),
        "If nothing in this list fits, choose the code that seems nearest to you",
        "The house does not mind a note that takes long, but it minds a note that is sorted twice",
    ]
    return ".\n".join([*prose, *lines, *closing]) + "."


def _predict(signature: str) -> Callable[[], dspy.Module]:
    return lambda: dspy.Predict(signature)


_POLISHED = _one_to_one(_NAMES[:18], _codes("P", 18))
_JAPANESE = tuple(
    Rule((cue,), "answer", value)
    for cue, value in zip(
        [
            "返金",
            "配送遅延",
            "破損",
            "紛失",
            "請求書",
            "解約",
            "住所変更",
            "在庫",
            "領収書",
            "会員証",
            "予約",
            "延長",
            "保証",
            "修理",
        ],
        [
            "甲課",
            "乙課",
            "丙課",
            "丁課",
            "戊課",
            "己課",
            "庚課",
            "辛課",
            "壬課",
            "癸課",
            "子課",
            "丑課",
            "寅課",
            "卯課",
        ],
        strict=True,
    )
)


def _task(name: str, rules: Sequence[Rule], **other: Any) -> Task:
    defaults: dict[str, Any] = {
        "program": _predict("question -> answer"),
        "metric": score_words,
        "write_row": _write,
        "fillers": _FILLERS,
    }
    return Task(name, tuple(rules), **{**defaults, **other})


TASKS = {
    task.name: task
    for task in (
        # Three predictors, two output fields scored apart.
        _task(
            "desk",
            FAMILIES["desk"],
            program=Desk,
            metric=score_desk,
            write_row=desk_rows,
            fades=700,
        ),
        # Two predictors with faults of their own; one wrong step spoils the answer.
        _task("hops", FAMILIES["hops"], program=Hops, metric=score_hops, write_row=desk_rows),
        # Scores between 0 and 1 with noise; several demands at once; feedback names one of them.
        _task(
            "style",
            [
                Rule((cue,), "answer", value)
                for cue, value in zip(
                    _NAMES[:12], [f"+{word}" for word in _FILLERS[:12]], strict=True
                )
            ],
            metric=score_style,
            write_row=_write_several,
            joins=True,
            fillers=("pebble", "ribbon", "saddle", "thimble", "velvet", "whistle"),
            lines=30,
        ),
        # What is right depends on the region.
        _task("contexts", _in_context(_NAMES[:8], ["Norden", "Suden"]), validation=50),
        _task("few", _one_to_one(_NAMES[:8], _codes("F", 8)), train=12, validation=12),
        _task(
            "many",
            _one_to_one(_NAMES[:36], _codes("M", 12)),
            train=600,
            validation=60,
            fades=1500,
            metric=score_plainly,
        ),
        # A good prompt, which most changes make worse.
        _task(
            "polished",
            _POLISHED,
            program=lambda: dspy.Predict(
                dspy.Signature("question -> answer", _polish(_POLISHED[:14]))
            ),
            invents=0.25,
            misreads=0.25,
            fades=1200,
        ),
        _task(
            "japanese",
            _JAPANESE,
            write_row=_write_japanese,
            fillers=("本店", "駅前", "倉庫", "窓口", "支社", "工場"),
            language="ja",
            pattern=r"[。\n]",
        ),
        # The metric gives a bool, a number, nothing at all or a Prediction, and never a reason.
        _task("silent", _one_to_one(_NAMES[:6], _codes("S", 3)), metric=score_checked, guess=0.25),
        # An agent that has to pick a tool.
        _task(
            "agent",
            FAMILIES["agent"],
            program=make_agent,
            metric=score_agent,
            train=60,
            validation=30,
            heldout=80,
        ),
        # Most rows are easy; thirty rules come up in one row of fifty each.
        _task(
            "rare",
            [
                Rule((_NAMES[0],), "answer", "R10", 20.0),
                *(
                    Rule((cue,), "answer", value)
                    for cue, value in zip(_NAMES[1:31], _codes("R", 30), strict=True)
                ),
            ],
            train=150,
            validation=75,
            heldout=200,
            guess=0.45,
            lines=36,
        ),
    )
}
