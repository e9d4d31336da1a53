"""Rows of formula-mini, made from a seed.

The i-th row of a cell (a formula and a level) depends on the seed, the task
and the cell alone, so a longer list of rows starts with the shorter one.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Literal

from combee_dspy.benchmarks.formula_mini.formulas import BY_NAME, Argument, FinanceFormula, Values, rounded
from combee_dspy.benchmarks.formula_mini.questions import ask_in_jargon, decimal_text, render, route_slots
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.streams import derive

__all__ = ["LEVELS", "Cell", "Task", "cell_rows"]

Task = Literal["route", "compute"]
Cell = tuple[str, int]
"""Formula name and level."""

LEVELS: Mapping[Task, tuple[int, ...]] = {"route": (1, 2), "compute": (1, 2, 3)}
"""Levels of difficulty by task."""

_ATTEMPTS = 400
_CLEAN_ATTEMPTS = 200


def cell_rows(task: Task, seed: int, cell: Cell, count: int) -> list[dict[str, Any]]:
    """Return the first rows of a cell, all different.

    Raises:
        ArgumentValueError: The cell does not hold that many different rows.
    """
    rows: list[dict[str, Any]] = []
    seen: set[str] = set()
    index = 0
    while len(rows) < count:
        row = _route_row(seed, cell, index) if task == "route" else _compute_row(seed, cell, index)
        index += 1
        if row["question"] not in seen:
            seen.add(row["question"])
            rows.append(row)
        elif index > 4 * count + 100:
            remedy = f"It has {len(rows)}; ask for smaller splits or more formulas."
            raise ArgumentValueError("heldout + validation + train", count, f"exceed the rows of {cell}", remedy)
    return rows


def _phrasing(seed: int, task: Task, cell: Cell, index: int, count: int) -> int:
    # Every block of `count` rows uses each phrasing once, so that each split sees all of them.
    block, place = divmod(index, count)
    order = list(range(count))
    derive(seed, "formula-mini", task, *cell, "phrasing", block).shuffle(order)
    return order[place]


def _route_row(seed: int, cell: Cell, index: int) -> dict[str, Any]:
    """Ask in a word of the trade (level 1) or tell a story (level 2), never by the formula's own name."""
    name, level = cell
    formula = BY_NAME[name]
    if level == 1:
        stream = derive(seed, "formula-mini", "jargon", name, index)
        chosen = _phrasing(seed, "route", (name, 1), index, len(formula.jargon))
        question = ask_in_jargon(formula, _draw(formula, 1, stream), formula.jargon[chosen], stream)
    else:
        chosen = _phrasing(seed, "route", (name, 0), index, len(formula.questions))
        slots = route_slots(derive(seed, "formula-mini", "route", name, index))
        question = formula.questions[chosen].format(**slots)
    return {"question": question, "formula": name, "level": level, "phrasing": chosen}


def _compute_row(seed: int, cell: Cell, index: int) -> dict[str, Any]:
    name, level = cell
    formula = BY_NAME[name]
    stream = derive(seed, "formula-mini", "compute", name, level, index)
    values = _draw(formula, level, stream)
    result = formula.function(values)
    question, factor = render(formula, values, result, level, _phrasing(seed, "compute", cell, index, 30), stream)
    return {
        "question": question,
        "answer": rounded(result * factor),
        "formula": name,
        "level": level,
        "values": json.dumps({key: decimal_text(value) for key, value in values.items()}),
        "factor": decimal_text(factor),
    }


def _draw(formula: FinanceFormula, level: int, stream: random.Random) -> Values:
    """Draw values whose result is positive, above 1 %, and in none of its scales a rounding tie.

    At level 1 the result has two decimals exactly, where such values turn up.
    """
    for attempt in range(_ATTEMPTS):
        values = {item.name: _value(item, level, stream) for item in formula.arguments}
        if not formula.holds_for(values):
            continue
        result = formula.function(values)
        scales = (Fraction(1), Fraction(1, 100), Fraction(1, 1000))
        if result <= (1 if formula.unit == "percent" else 0) or any(_tie(result * scale) for scale in scales):
            continue
        if level > 1 or attempt >= _CLEAN_ATTEMPTS or (result * 100).denominator == 1:
            return values
    raise ArgumentValueError("formula", formula.name, "has no usable values in its ranges", "Widen its ranges.")


def _value(argument: Argument, level: int, stream: random.Random) -> Fraction:
    low, high, step = argument.span
    if level > 1 and argument.unit not in ("years", "count"):
        step /= 4
    return low + step * stream.randint(0, int((high - low) / step))


def _tie(value: Fraction) -> bool:
    thousandths = value * 1000
    return thousandths.denominator == 1 and thousandths.numerator % 10 == 5
