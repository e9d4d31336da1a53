"""Rows of formula-mini, made from a seed: figures are drawn, and questions written out around them.

The i-th row of a cell (a formula and a level) depends on the seed, the task
and the cell alone, so a longer list of rows starts with the shorter one.

Computing questions come at three levels. Level 1 states every value plainly.
Level 2 gives one value by way of another (a change since last year, or a sum
of two), writes percentages as ``5%`` or ``0.05``, and says in which form a
percentage is wanted. Level 3 adds facts that do not matter, writes sums in
thousands or millions, rates in basis points and terms in months, and may want
dollars answered in thousands.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

from combee_dspy.benchmarks.formula_mini.formulas import (
    BY_NAME,
    PARTS,
    Argument,
    FinanceFormula,
    Values,
)
from combee_dspy.benchmarks.formula_mini.scenes import (
    SCENERY,
    add_distractors,
    describe_who,
    dollars,
    fill_slots,
    name_company,
)
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.streams import derive

Task = Literal["route", "compute"]
Cell = tuple[str, int]
"""Formula name and level."""

LEVELS: Mapping[Task, tuple[int, ...]] = {"route": (1, 2), "compute": (1, 2, 3)}
"""Levels of difficulty by task."""

_CLEAN_ATTEMPTS = 200
_CHANGES = (10, 20, 25, 50, -10, -20, -25)
_SHARES = (Fraction(1, 4), Fraction(2, 5), Fraction(3, 5))


def cell_rows(task: Task, seed: int, cell: Cell, count: int) -> list[dict[str, Any]]:
    """Return the first rows of a cell, all different.

    Raises:
        ArgumentValueError: The cell does not hold that many different rows.
    """
    make = _route_row if task == "route" else _compute_row
    rows: dict[str, dict[str, Any]] = {}
    index = 0
    while len(rows) < count:
        if index > 4 * count + 100:
            remedy = f"It has {len(rows)}; ask for smaller splits or more formulas."
            raise ArgumentValueError(
                "heldout + validation + train", count, f"exceed the rows of {cell}", remedy
            )
        row = make(seed, cell, index)
        rows.setdefault(row["question"], row)
        index += 1
    return list(rows.values())


def _phrasing(seed: int, task: Task, cell: Cell, index: int, count: int) -> int:
    # Every block of `count` rows uses each phrasing once, so that each split sees all of them.
    block, place = divmod(index, count)
    order = list(range(count))
    derive(seed, "formula-mini", task, *cell, "phrasing", block).shuffle(order)
    return order[place]


def _route_row(seed: int, cell: Cell, index: int) -> dict[str, Any]:
    """Ask in a word of the trade (level 1) or tell a story (level 2), never by the formula's own
    name.
    """
    name, level = cell
    formula = BY_NAME[name]
    if level == 1:
        stream = derive(seed, "formula-mini", "jargon", name, index)
        chosen = _phrasing(seed, "route", (name, 1), index, len(formula.jargon))
        values = _draw(formula, 1, stream)
        facts = [_fact(item, values[item.name], 1, False, stream) for item in formula.arguments]
        question = f"{name_company(stream)} has {_listed(facts)}. "
        question += stream.choice(SCENERY["asks"]).format(name=formula.jargon[chosen])
    else:
        chosen = _phrasing(seed, "route", (name, 0), index, len(formula.questions))
        slots = fill_slots(derive(seed, "formula-mini", "route", name, index))
        question = formula.questions[chosen].format(**slots)
    return {"question": question, "formula": name, "level": level, "phrasing": chosen}


def _compute_row(seed: int, cell: Cell, index: int) -> dict[str, Any]:
    """Ask for a number. The phrasing counts the openings and requests round; the stream decides the
    rest.
    """
    name, level = cell
    formula = BY_NAME[name]
    stream = derive(seed, "formula-mini", "compute", name, level, index)
    values = _draw(formula, level, stream)
    result = formula.function(values)
    leads, asks = SCENERY["leads"][formula.setting], SCENERY["asks"]
    phrasing = _phrasing(seed, "compute", cell, index, 30)
    amounts = [item for item in formula.arguments if item.unit in ("money", "unit-price")]
    indirect = stream.choice(amounts) if level > 1 and amounts else None
    facts = [
        _fact(item, values[item.name], level, item is indirect, stream)
        for item in formula.arguments
    ]
    lead = leads[phrasing % len(leads)].format(facts=_listed(facts), **describe_who(stream))
    ask = asks[phrasing % len(asks)].format(name=formula.phrase)
    factor, wish = _wish(formula, result, level, stream)
    return {
        "question": " ".join(
            filter(None, [lead, *add_distractors(formula.setting, level, stream), ask, wish])
        ),
        "answer": rounded(result * factor),
        "formula": name,
        "level": level,
        "values": json.dumps({key: _decimal(value) for key, value in values.items()}),
        "factor": _decimal(factor),
    }


def rounded(value: Fraction) -> str:
    """Return an exact value with two decimals, halves away from zero."""
    cents = (abs(value) * 100 + Fraction(1, 2)) // 1
    sign = "-" if value < 0 and cents else ""
    return f"{sign}{cents // 100}.{cents % 100:02d}"


def _draw(formula: FinanceFormula, level: int, stream: random.Random) -> Values:
    """Draw values whose result is positive, above 1 %, and in none of its scales a rounding tie.

    At level 1 the result has two decimals exactly, where such values turn up.
    """
    parts = PARTS.get(formula.name)
    attempt = 0
    while True:
        attempt += 1
        values = {item.name: _value(item, level, stream) for item in formula.arguments}
        if parts and not values[parts[0]] < values[parts[1]]:
            continue
        result = formula.function(values)
        # As it is, as a fraction of percent, and in thousands: a third decimal of 5 that is the
        # last is a tie.
        tie = any((result * thousandths) % 10 == 5 for thousandths in (1000, 10, 1))
        if tie or result <= (1 if formula.unit == "percent" else 0):
            continue
        if level > 1 or attempt > _CLEAN_ATTEMPTS or (result * 100).denominator == 1:
            return values


def _value(argument: Argument, level: int, stream: random.Random) -> Fraction:
    low, high, step = argument.span
    if level > 1 and argument.unit not in ("years", "count"):
        step /= 4
    return low + step * stream.randint(0, int((high - low) / step))


def _decimal(value: Fraction, form: str = "f") -> str:
    """Return a fraction that has a finite decimal expansion as that decimal, without trailing
    zeros.
    """
    return format((Decimal(value.numerator) / Decimal(value.denominator)).normalize(), form)


def _fact(
    argument: Argument, value: Fraction, level: int, indirect: bool, stream: random.Random
) -> str:
    """State a value, or give it by a change since last year where that comes out in cents, else as
    a sum of two.
    """
    if not indirect:
        return f"{argument.label} of {_amount(argument, value, level, stream)}"
    change = stream.choice(_CHANGES)
    base = value / (1 + Fraction(change, 100))
    if (base * 100).denominator == 1 and stream.random() < 0.6:
        side = "above" if change > 0 else "below"
        return f"{argument.label} {abs(change)}% {side} last year's {dollars(base)}"
    first = Fraction(max(1, value * 100 * stream.choice(_SHARES) // 1), 100)
    return f"{argument.label} of {dollars(first)} plus another {dollars(value - first)}"


def _amount(argument: Argument, value: Fraction, level: int, stream: random.Random) -> str:
    forms: list[str] = []
    if argument.unit == "percent":
        forms = [
            f"{_decimal(value)}%",
            _decimal(value / 100),
            f"{_decimal(value * 100, ',f')} basis points",
        ]
        forms = forms[1:] if level > 2 else forms[:level]
    elif argument.unit == "money" and level > 2:
        forms = [f"${_decimal(value / 10**6)} million", f"${_decimal(value / 1000, ',f')} thousand"]
    if forms:
        return stream.choice(forms)
    if argument.unit == "years":
        return f"{_decimal(value * 12)} months" if level > 2 else f"{_decimal(value)} years"
    return _decimal(value, ",f") if argument.unit in ("count", "factor") else dollars(value)


def _wish(
    formula: FinanceFormula, result: Fraction, level: int, stream: random.Random
) -> tuple[Fraction, str]:
    if formula.unit == "percent" and level > 1:
        # Below 10 %, two decimals of a fraction would leave one significant digit.
        if result >= 10 and stream.random() < 0.6:
            return Fraction(1, 100), "Give it as a decimal fraction, not in percent."
        return Fraction(1), "Give it in percent."
    large = formula.unit == "money" and any(item.unit == "money" for item in formula.arguments)
    if (
        level > 2
        and large
        and formula.setting == "company"
        and formula.name != "Earnings per Share"
    ):
        return Fraction(1, 1000), "Answer in thousands of dollars."
    return Fraction(1), ""


def _listed(facts: Sequence[str]) -> str:
    return facts[0] if len(facts) == 1 else f"{', '.join(facts[:-1])} and {facts[-1]}"
