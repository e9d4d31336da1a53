"""The cells of the study, in the order in which they are run: an end leaves the first whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

__all__ = ["PARTS", "Cell", "planned"]

_SETS = range(611, 627)
_WIDE_SETS = range(641, 644)
_MANY_SETS = range(711, 714)
_NEW_SETS = range(651, 659)
_WRONG_SETS = range(671, 675)
_MENDED_SETS = range(681, 689)
_MENDED_WRONG_SETS = range(691, 695)
_TODAY_SETS = range(721, 729)
_PLAIN_SETS = range(741, 749)
_DRAWS = range(3)
_MENDED_DRAWS = range(3, 9)
_SIZES = (5, 10, 20, 40, 80)
# Equal budgets of a part, in tokens of both models.
_TOKENS = {
    "wide": {24: 90_000, 40: 90_000},
    "many": {24: 60_000, 40: 100_000},
    "many-again": {24: 60_000, 40: 100_000},
}
_MOST = 30_000
_FLOORS = ("floor", "ceiling")
_BESIDE = {
    "beside": ("memory", "traces", "traces-validated", "paper", "pxn"),
    "parts": ("trunk", "reference-pareto", "gepa-sampling"),
}
_LED = ("gepa", "combee", "union", *_FLOORS)
# Numbers, and methods by pass.
_MANY_RULES: Mapping[str, tuple[range, tuple[tuple[str, ...], ...]]] = {
    "wide": (_WIDE_SETS, (("gepa", "combee", "memory", "playbook", *_FLOORS, "nearest"),)),
    "many": (_MANY_SETS, (("gepa", "combee", "memory"), ("playbook",))),
    "many-again": (_MANY_SETS, (("combee", "memory"),)),
}
_AGGREGATORS = ("combee", "trunk")
# Rules or labels, numbers and methods of the parts that are run set by set.
_SET_BY_SET = {
    "sets": (6, _SETS, _LED),
    "labels": (4, _DRAWS, _LED),
    "labels-mended": (4, _MENDED_DRAWS, ("combee", "gepa")),
    "decide": (6, _NEW_SETS, _AGGREGATORS),
    "wrong": (6, _WRONG_SETS, _AGGREGATORS),
    "peers": (6, _NEW_SETS, ("floor", "gepa")),
    "today": (6, _TODAY_SETS, ("combee", "gepa")),
    "plain": (6, _PLAIN_SETS, ("combee", "gepa")),
    "mended": (6, _MENDED_SETS, _AGGREGATORS),
    "mended-wrong": (6, _MENDED_WRONG_SETS, _AGGREGATORS),
}

PARTS = (
    "sets",
    "beside",
    "retention",
    "parts",
    "wide",
    "labels",
    "labels-mended",
    "decide",
    "wrong",
    "peers",
    "today",
    "plain",
    "mended",
    "mended-wrong",
    "many",
    "many-again",
)
"""Parts of the study, the most important first."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run.

    Attributes:
        part: Which part it belongs to.
        method: A method, or an aggregator in ``retention``.
        size: Rules, labels, or planted facts.
        number: Of the rule set or the draw of rows; seed of the planted facts.
    """

    part: str
    method: str
    size: int
    number: int

    @property
    def name(self) -> str:
        """What tells it from all others."""
        return f"{self.part}-{self.size}-{self.number}-{self.method}"

    @property
    def tokens(self) -> int:
        """Tokens that a search may take."""
        return _TOKENS[self.part][self.size] if self.has_many_rules else _MOST

    @property
    def has_many_rules(self) -> bool:
        """Whether rows and answers have the sizes of tasks with 24 and 40 rules."""
        return self.part in _TOKENS


def planned(part: str) -> Iterator[Cell]:
    """Yield the cells of a part in their order."""
    if part in _SET_BY_SET:
        size, numbers, names = _SET_BY_SET[part]
        for number, method in product(numbers, names):
            yield Cell(part, method, size, number)
    elif part in _BESIDE:
        for method, number in product(_BESIDE[part], _SETS[:8]):
            yield Cell(part, method, 6, number)
    elif part == "retention":
        names = ("reference-scan", "parallel-scan", "union")
        for seed, size, method in product(range(5), _SIZES, names):
            yield Cell(part, method, size, seed)
    else:
        yield from _planned_many_rules(part)


def _planned_many_rules(part: str) -> Iterator[Cell]:
    numbers, passes = _MANY_RULES[part]
    for rules, names in product((24, 40), passes):
        for number, method in product(numbers, names):
            yield Cell(part, method, rules, number)
