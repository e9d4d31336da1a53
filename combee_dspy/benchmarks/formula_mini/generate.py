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

from combee_dspy.benchmarks.formula_mini.formulas import BY_NAME, Argument, FinanceFormula, Values, rounded, texts
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.streams import derive

Task = Literal["route", "compute"]
Cell = tuple[str, int]
"""Formula name and level."""

LEVELS: Mapping[Task, tuple[int, ...]] = {"route": (1, 2), "compute": (1, 2, 3)}
"""Levels of difficulty by task."""

_ATTEMPTS = 400
_CLEAN_ATTEMPTS = 200
_SCENERY = texts("scenery")
_CHANGES = (10, 20, 25, 50, -10, -20, -25)
_SHARES = (Fraction(1, 4), Fraction(2, 5), Fraction(3, 5))


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
        question = _ask_in_jargon(formula, _draw(formula, 1, stream), formula.jargon[chosen], stream)
    else:
        chosen = _phrasing(seed, "route", (name, 0), index, len(formula.questions))
        slots = _route_slots(derive(seed, "formula-mini", "route", name, index))
        question = formula.questions[chosen].format(**slots)
    return {"question": question, "formula": name, "level": level, "phrasing": chosen}


def _compute_row(seed: int, cell: Cell, index: int) -> dict[str, Any]:
    name, level = cell
    formula = BY_NAME[name]
    stream = derive(seed, "formula-mini", "compute", name, level, index)
    values = _draw(formula, level, stream)
    result = formula.function(values)
    question, factor = _render(formula, values, result, level, _phrasing(seed, "compute", cell, index, 30), stream)
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


def decimal_text(value: Fraction, *, grouped: bool = False) -> str:
    """Return a fraction that has a finite decimal expansion as that decimal, without trailing zeros."""
    number = (Decimal(value.numerator) / Decimal(value.denominator)).normalize()
    return f"{number:,f}" if grouped else f"{number:f}"


def _render(
    formula: FinanceFormula, values: Values, result: Fraction, level: int, phrasing: int, stream: random.Random
) -> tuple[str, Fraction]:
    """Return a computing question, and what the formula's result is to be multiplied by for the answer.

    ``phrasing`` says which opening and which request to use, counted round; the stream decides the rest.
    """
    indirect = _pick_indirect(formula.arguments, level, stream)
    facts = [_fact(item, values[item.name], level, item.name == indirect, stream) for item in formula.arguments]
    leads, asks = _SCENERY["leads"][formula.setting], _SCENERY["asks"]
    who = {"c": _company(stream), "p": stream.choice(_SCENERY["people"]), "when": stream.choice(_SCENERY["periods"])}
    lead = leads[phrasing % len(leads)].format(facts=_listed(facts), **who)
    ask = asks[phrasing % len(asks)].format(name=formula.phrase)
    factor, wish = _wish(formula, result, level, stream)
    parts = [lead, *_distractors(formula.setting, level, stream), ask, wish]
    return " ".join(part for part in parts if part), factor


def _ask_in_jargon(formula: FinanceFormula, values: Values, word: str, stream: random.Random) -> str:
    """Return a question that states every figure the formula takes and asks by a word of the trade."""
    facts = [_fact(item, values[item.name], 1, False, stream) for item in formula.arguments]
    return f"{_company(stream)} has {_listed(facts)}. {stream.choice(_SCENERY['asks']).format(name=word)}"


def _route_slots(stream: random.Random) -> dict[str, str]:
    """Return a value for every slot of a routing question (see ``formulas.toml``)."""
    small = stream.randint(4, 40) * 5_000
    mid = small + stream.randint(4, 40) * 5_000
    big = mid + stream.randint(4, 80) * 5_000
    cost = stream.randint(4, 60) * 50
    price = cost + stream.randint(4, 80) * 50
    per = stream.randint(2, 30) * 20
    share = per * stream.randint(6, 24)
    low = stream.randint(4, 12)
    high = low + stream.randint(4, 16)
    return {
        "c": _company(stream),
        "p": stream.choice(_SCENERY["people"]),
        "when": stream.choice(_SCENERY["periods"]),
        "big": _dollars(Fraction(big)),
        "mid": _dollars(Fraction(mid)),
        "small": _dollars(Fraction(small)),
        "sum": _dollars(Fraction(stream.randint(4, 80) * 250)),
        "price": _dollars(Fraction(price, 100)),
        "cost": _dollars(Fraction(cost, 100)),
        "share": _dollars(Fraction(share, 100)),
        "per": _dollars(Fraction(per, 100)),
        "low": f"{low / 2:g}%",
        "high": f"{high / 2:g}%",
        "vol": f"{stream.randint(12, 48) / 2:g}%",
        "years": str(stream.randint(2, 12)),
        "units": f"{stream.randint(4, 80) * 2_500:,}",
        "beta": f"{stream.randint(5, 20) / 10:.1f}",
    }


def _company(stream: random.Random) -> str:
    return f"{stream.choice(_SCENERY['places'])} {stream.choice(_SCENERY['trades'])}"


def _pick_indirect(arguments: Sequence[Argument], level: int, stream: random.Random) -> str | None:
    candidates = [item.name for item in arguments if item.unit in ("money", "unit-price")]
    return stream.choice(candidates) if level > 1 and candidates else None


def _fact(argument: Argument, value: Fraction, level: int, indirect: bool, stream: random.Random) -> str:
    if indirect:
        return f"{argument.label} {_indirect(value, stream)}"
    return f"{argument.label} of {_amount(argument, value, level, stream)}"


def _indirect(value: Fraction, stream: random.Random) -> str:
    """Give a value by a change since last year where that comes out in cents, else as a sum of two."""
    change = stream.choice(_CHANGES)
    base = value / (1 + Fraction(change, 100))
    if (base * 100).denominator == 1 and stream.random() < 0.6:
        side = "above" if change > 0 else "below"
        return f"{abs(change)}% {side} last year's {_dollars(base)}"
    cents = value * 100 * stream.choice(_SHARES) // 1
    first = Fraction(max(1, cents), 100)
    return f"of {_dollars(first)} plus another {_dollars(value - first)}"


def _amount(argument: Argument, value: Fraction, level: int, stream: random.Random) -> str:
    if argument.unit == "percent":
        forms = [f"{decimal_text(value)}%"]
        if level > 1:
            forms.append(decimal_text(value / 100))
        if level > 2:
            forms = [forms[1], f"{decimal_text(value * 100, grouped=True)} basis points"]
        return stream.choice(forms)
    if argument.unit == "years":
        return f"{decimal_text(value * 12)} months" if level > 2 else f"{decimal_text(value)} years"
    if argument.unit == "money" and level > 2:
        million = f"${decimal_text(value / 10**6)} million"
        thousand = f"${decimal_text(value / 1000, grouped=True)} thousand"
        return stream.choice([million, thousand])
    if argument.unit in ("money", "unit-price"):
        return _dollars(value)
    return decimal_text(value, grouped=True)


def _dollars(value: Fraction) -> str:
    """Return an amount such as ``$1,250`` or ``$2.40``."""
    if value.denominator == 1:
        return f"${value.numerator:,}"
    return f"${Decimal(value.numerator) / Decimal(value.denominator):,.2f}"


def _wish(formula: FinanceFormula, result: Fraction, level: int, stream: random.Random) -> tuple[Fraction, str]:
    if formula.unit == "percent" and level > 1:
        # Below 10 %, two decimals of a fraction would leave one significant digit.
        if result >= 10 and stream.random() < 0.6:
            return Fraction(1, 100), "Give it as a decimal fraction, not in percent."
        return Fraction(1), "Give it in percent."
    large = formula.unit == "money" and any(item.unit == "money" for item in formula.arguments)
    if level > 2 and large and formula.setting == "company" and formula.name != "Earnings per Share":
        return Fraction(1, 1000), "Answer in thousands of dollars."
    return Fraction(1), ""


def _distractors(setting: str, level: int, stream: random.Random) -> list[str]:
    if level < 3:
        return []
    pool = _SCENERY["distractors"]["firm" if setting in ("company", "share") else "private"]
    return [
        text.format(n=stream.randint(12, 480), k=stream.randint(2, 30), y=stream.randint(1950, 2015))
        for text in stream.sample(pool, stream.randint(1, 2))
    ]


def _listed(facts: Sequence[str]) -> str:
    return facts[0] if len(facts) == 1 else f"{', '.join(facts[:-1])} and {facts[-1]}"
